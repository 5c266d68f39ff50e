//! Promise: the command has stdin, stdout and stderr, and no other descriptor of anybody's.
//! THREATS X "fds" (CVE-2024-21626).

use std::fs::File;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lockgate_conformance::{Backend, Bench, Live, Needs, ready, sidecar, within};
use lockgate_needs::missing;

#[test]
fn only_three_descriptors() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let directory = bench.outside();
    // The shell opens descriptor 9 on a directory of the host's and hands it on.
    let line = format!("exec 9<{}; exec \"$@\"", directory.display());
    let words = |command: Vec<std::ffi::OsString>| {
        let mut shell = Command::new("sh");
        shell.args(["-c", &line, "sh"]).args(command).stdin(Stdio::from(File::open("/dev/null").unwrap()));
        shell.envs(bench.environment()).current_dir(bench.workspace());
        Live::start(&mut shell).wait()
    };
    let probe = bench.probe().into_os_string();
    let control = words(vec![probe.clone(), "descriptors".into()]);
    assert!(control.stdout.contains("\"fd\":9"), "{control}");

    for backend in Backend::all() {
        let ended = words(bench.run(backend).words([probe.to_str().unwrap(), "descriptors"]));
        let report: serde_json::Value = serde_json::from_str(ended.stdout.trim()).expect("a report");
        let numbers: Vec<u64> =
            report["detail"].as_array().unwrap().iter().map(|open| open["fd"].as_u64().unwrap()).collect();
        assert_eq!(numbers, [0, 1, 2], "{} {ended}", backend.name());
    }
}

#[test]
fn of_files_the_sidecar_can_append_to_its_audit_alone() {
    // Root alone sees the descriptors of a process that is not dumpable. At an engine it has a container to itself.
    if Backend::isolated().is_engine() || !ready(&[Needs::Linux, Needs::Root]) {
        return;
    }
    let bench = Bench::new();
    let (out, begun) = (bench.outside().join("out"), bench.workspace().join("begun"));
    let line = format!("exec <{0} >>{0} 2>&1; exec \"$@\"", out.display());
    std::fs::write(&out, "").unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", &line, "sh"]).envs(bench.environment()).current_dir(bench.workspace());
    let held = ["sh", "-c", "echo > begun; until test -e go-on; do sleep 0.1; done"];
    shell.args(bench.run(Backend::isolated()).words(held));
    let live = Live::start(&mut shell);
    assert!(within(Backend::patience(10), || begun.exists()), "the command did not start");
    // The control: the caller's own process has that file.
    assert!(opened(live.id()).iter().any(|(_, path, _)| *path == out), "{:?}", opened(live.id()));
    let all = opened(sidecar(live.id()));
    std::fs::write(bench.workspace().join("go-on"), "").unwrap();
    let ended = live.wait();
    let nothing = all.iter().filter(|(number, path, _)| *number < 3 && *path == Path::new("/dev/null"));
    assert_eq!(nothing.count(), 3, "{all:?} {ended}");
    let is_file = |path: &Path| path.is_absolute() && path != Path::new("/dev/null");
    let written: Vec<_> = all.iter().filter(|(.., flags)| flags & ACCESS != 0).collect();
    let written: Vec<_> = written.into_iter().filter(|(_, path, _)| is_file(path)).collect();
    let [(_, audit, flags)] = written[..] else { panic!("{written:?}") };
    assert!(audit.extension().is_some_and(|it| it == "jsonl"), "{audit:?}");
    assert_eq!(flags & (ACCESS | APPEND), 1 | APPEND, "{flags:o}"); // O_WRONLY
}

/// `O_ACCMODE` and `O_APPEND` of asm-generic/fcntl.h.
const ACCESS: u32 = 3;
const APPEND: u32 = 0o2000;

/// Returns the open descriptors of a process: number, what it leads to, and its flags.
fn opened(id: u32) -> Vec<(u32, PathBuf, u32)> {
    let entries = std::fs::read_dir(format!("/proc/{id}/fd")).unwrap().flatten();
    let one = |number: &str| {
        let path = std::fs::read_link(format!("/proc/{id}/fd/{number}")).ok()?;
        let info = std::fs::read_to_string(format!("/proc/{id}/fdinfo/{number}")).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        Some((number.parse().ok()?, path, u32::from_str_radix(flags.trim(), 8).ok()?))
    };
    entries.filter_map(|entry| one(&entry.file_name().to_string_lossy())).collect()
}

#[test]
fn the_sidecar_is_sent_no_descriptor() {
    // At an engine the gateway has no Unix socket.
    if Backend::isolated().is_engine() || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let path = bench.outside().join("listener");
    let _listener = UnixListener::bind(&path).unwrap();
    let control = bench.control(&["send-descriptor", path.to_str().unwrap()]);
    let inside = bench.run(Backend::isolated()).probe(&["send-descriptor", "/run/lockgate.sock"]);
    if control.absent() {
        // See `syscalls::closing_a_socket_makes_nobody_wait`.
        return missing("a kernel before Linux 6.16 cannot refuse descriptors");
    }
    assert!(control.done(), "the control did not work: {control}");
    assert!(inside.refused() && inside.errno() == "EPERM", "{inside}");
}
