//! Each limit is set for one run, by its policy file or by a flag, and the set value holds. S1.30, S1.31, S1.33.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockgate_clients::{Need, Run, Site};

const NEEDS: &[Need] = &[Need::Root, Need::Program("df")];
const MIB: u64 = 1 << 20;

#[test]
fn the_examples_run_for_whoever_may_limit_nothing() {
    let Some(site) = Site::for_unprivileged_test(&[]) else { return };
    // The fourth, companions.toml, takes images.
    for name in ["agent.toml", "one-api.toml", "open-internet.toml"] {
        let text = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name));
        let policy = site.file(name, text.expect("an example"));
        let ended = site.lockgate(&["run", "--policy", &policy.to_string_lossy(), "--", "true"]);
        assert_eq!(ended.code, 0, "{name}: {ended}");
    }
}

/// The limits of a run: memory, thousandths of a processor, processes, and the size of its private directories.
#[derive(Debug, PartialEq, Eq)]
struct Limits {
    memory: u64,
    milli_cpus: u64,
    pids: u64,
    disk: u64,
}

/// Returns that many thousandths of a processor, at most as many as there are.
fn processors(milli: u64) -> u64 {
    let all = std::thread::available_parallelism().expect("a number of processors");
    milli.min(all.get() as u64 * 1000)
}

/// Returns the control groups of a run, wherever they are.
fn groups(below: &Path, name: &str) -> Vec<PathBuf> {
    let folders = fs::read_dir(below).into_iter().flatten().flatten();
    let folders = folders.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let found = folders.flat_map(|entry| {
        let path = entry.path();
        if entry.file_name() == *name { vec![path] } else { groups(&path, name) }
    });
    found.collect()
}

/// Reads the limits that the kernel enforces, during the run.
fn held(site: &Site, run: &Run<'_>) -> Limits {
    for mark in ["begun", "go"] {
        let _ = fs::remove_file(site.workspace().join(mark));
    }
    let script = "echo $LOCKGATE_RUN_ID > begun.new; df -B1 --output=size /tmp | tail -n 1 >> begun.new; mv begun.new begun
                  until [ -e go ]; do sleep 0.02; done";
    let (said, files) = std::thread::scope(|scope| {
        let runs = scope.spawn(|| run.script(script));
        let deadline = Instant::now() + Duration::from_secs(60);
        let begun = site.workspace().join("begun");
        while !begun.exists() && Instant::now() < deadline && !runs.is_finished() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let said = fs::read_to_string(begun).unwrap_or_default();
        let name = format!("lockgate-{}", said.lines().next().unwrap_or_default());
        let mut files = BTreeMap::new();
        for entry in groups(Path::new("/sys/fs/cgroup"), &name).iter().flat_map(fs::read_dir) {
            for file in entry.flatten() {
                let text = fs::read_to_string(file.path()).unwrap_or_default();
                files.insert(file.file_name().to_string_lossy().into_owned(), text.trim().to_owned());
            }
        }
        fs::write(site.workspace().join("go"), "").expect("room for a mark");
        let ended = runs.join().expect("the run");
        assert!(ended.code == 0 && said.lines().count() == 2, "{ended}");
        (said, files)
    });
    let found = |names: [&str; 2]| {
        let text = names.iter().find_map(|name| files.get(*name))?;
        Some(text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(u64::MAX))
    };
    let number =
        |names| found(names).unwrap_or_else(|| panic!("neither of {names:?} is in {:?}", files.keys()));
    // Of a period of 100 ms, in both versions. All processors of the machine are no limit, for which version 1 makes no group.
    let milli_cpus = processors(found(["cpu.max", "cpu.cfs_quota_us"]).unwrap_or(u64::MAX) / 100);
    Limits {
        memory: number(["memory.max", "memory.limit_in_bytes"]),
        milli_cpus,
        pids: number(["pids.max", "pids.max"]),
        disk: said.lines().nth(1).and_then(|size| size.trim().parse().ok()).expect("a size"),
    }
}

#[test]
fn each_limit_is_what_this_run_was_given() {
    // S1.33
    let Some(site) = Site::for_test(NEEDS) else { return };
    // Init is one more process, and the private directories take at most half of the memory.
    let usual = Limits { memory: 1536 * MIB, milli_cpus: processors(2000), pids: 513, disk: 768 * MIB };
    assert_eq!(held(&site, &site.run()), usual);
    let file = "[limits]\nmemory = \"512MiB\"\ncpus = 1.5\npids = 100\ndisk = \"64MiB\"\n";
    let by_file = Limits { memory: 512 * MIB, milli_cpus: processors(1500), pids: 101, disk: 64 * MIB };
    assert_eq!(held(&site, &site.run().policy(file)), by_file);
    // A flag overrides the file in either direction, each limit by itself.
    let flags: [(&[&str], Limits); 5] = [
        (&["--memory", "1GiB"], Limits { memory: 1024 * MIB, ..by_file }),
        (&["--cpus", "0.5"], Limits { milli_cpus: 500, ..by_file }),
        (&["--pids", "200"], Limits { pids: 201, ..by_file }),
        (&["--disk", "128MiB"], Limits { disk: 128 * MIB, ..by_file }),
        (
            &["--memory", "256MiB", "--cpus", "2", "--pids", "50", "--disk", "32MiB"],
            Limits { memory: 256 * MIB, milli_cpus: processors(2000), pids: 51, disk: 32 * MIB },
        ),
    ];
    for (flags, expected) in flags {
        assert_eq!(held(&site, &site.run().policy(file).flags(flags)), expected, "{flags:?}");
    }
    // The next run has none of it.
    assert_eq!(held(&site, &site.run()), usual);
}

#[test]
fn the_time_is_what_this_run_was_given() {
    // S1.33
    for site in Site::for_everyone(&[]) {
        let file = "timeout = \"1s\"\n";
        let ended = site.run().policy(file).script("sleep 30");
        assert!(ended.code == 124 && ended.took < Duration::from_secs(20), "{ended}");
        let ended = site.run().policy(file).flags(["--timeout", "1m"]).script("sleep 2; echo done");
        assert!(ended.code == 0 && ended.stdout == "done\n", "{ended}");
        let ended = site.run().policy("timeout = \"1m\"\n").flags(["--timeout", "1s"]).script("sleep 30");
        assert!(ended.code == 124 && ended.took < Duration::from_secs(20), "{ended}");
    }
}

/// Asks for huge pages in each way, and for ordinary ones.
const HUGE: &str = r#"
import ctypes, errno, mmap, os
def named(call):
    try:
        call()
        return "works"
    except OSError as error:
        return errno.errorcode[error.errno]
libc = ctypes.CDLL(None, use_errno=True)
def shared(flags):
    if libc.shmget(0, 2 << 20, 0o1600 | flags) < 0:
        raise OSError(ctypes.get_errno(), "shmget")
private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
print(named(lambda: mmap.mmap(-1, 2 << 20, flags=private | 0x40000)), named(lambda: mmap.mmap(-1, 2 << 20, flags=private)),
      named(lambda: os.memfd_create("huge", os.MFD_HUGETLB)), named(lambda: os.memfd_create("small")),
      named(lambda: shared(0o4000)), named(lambda: shared(0)))
"#;

#[test]
fn no_memory_is_taken_that_no_limit_counts() {
    for site in Site::for_everyone(&[Need::Program("python3")]) {
        let ended = site.lockgate(&["run", "--", "python3", "-c", HUGE]);
        assert_eq!(ended.stdout, "EPERM works EPERM works EPERM works\n", "{ended}");
    }
}
