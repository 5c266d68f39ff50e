//! Promise: without its sidecar a run has no way out, and does not go on.
//! DESIGN §4 "closed, not open"; E19.

use std::time::Instant;

use lockgate_conformance::{
    Backend, Bench, Canary, Live, Needs, kill_containers, processes_named, ready, vanishes, within,
};

/// Returns the process ids beneath `parent`, at any depth.
fn descendants(parent: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let id = entry.file_name().to_string_lossy().parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((id, stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?))
        })
        .collect();
    let mut found = vec![parent];
    let mut at = 0;
    while at < found.len() {
        let next = found[at];
        found.extend(parents.iter().filter(|(_, above)| *above == next).map(|(id, _)| *id));
        at += 1;
    }
    found.split_off(1)
}

#[test]
fn a_run_ends_with_its_sidecar() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let mark = Canary::draw();
    let live = held(&bench, &mark);
    let start = Instant::now();
    kill_sidecar(&bench, live.id());
    let ended = live.wait();
    assert!(start.elapsed() < Backend::patience(5), "{ended}");
    assert!(ended.code != 0 && ended.stderr.contains("sidecar"), "{ended}");
    assert!(vanishes(mark.text(), Backend::patience(2)), "the command outlived its sidecar");
}

#[test]
fn a_run_whose_init_is_killed_does_not_blame_its_sidecar() {
    // An engine ends containers by name, and tells itself what became of them.
    if Backend::isolated().is_engine() || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let mark = Canary::draw();
    let live = held(&bench, &mark);
    let mut inits = descendants(live.id());
    inits.retain(|id| innermost(*id) == Some(1));
    assert!(inits.len() == 1, "which of {inits:?} is the init?");
    kill(inits[0]);
    let ended = live.wait();
    assert!(ended.code == 125 && ended.stderr.contains("its first process was ended"), "{ended}");
    assert!(!ended.stderr.contains("sidecar"), "{ended}");
    assert!(vanishes(mark.text(), Backend::patience(2)), "the command outlived its init");
}

/// Starts a run, and waits until its command has begun.
fn held(bench: &Bench, mark: &Canary) -> Live {
    let probe = bench.probe();
    let probe = probe.to_str().unwrap();
    let live = bench.run(Backend::isolated()).start([probe, "hold", "60", mark.text()]);
    let holds = || processes_named(mark.text()).iter().any(|(_, line)| line.starts_with(probe));
    assert!(within(Backend::patience(10), holds), "the command did not start");
    live
}

/// Kills the sidecar of this bench's only run, whose command line is the process `id`.
fn kill_sidecar(bench: &Bench, id: u32) {
    if Backend::isolated().is_engine() {
        let run = bench.lockgate(&["runs", "ls", "-q"]).stdout;
        let killed = kill_containers(&[run.trim(), "sidecar"]);
        assert!(killed == 1, "{killed} containers are the sidecar of {run}");
        return;
    }
    // The sidecar is the process beneath the command line that is in no PID namespace of its own.
    let candidates = || -> Vec<u32> {
        descendants(id).into_iter().filter(|id| depth(*id) == depth(std::process::id())).collect()
    };
    let mut sidecars = candidates();
    // The command may have begun before the helpers of its start were gone.
    for _ in 0..100 {
        if sidecars.len() == 1 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        sidecars = candidates();
    }
    assert!(sidecars.len() == 1, "which of {sidecars:?} is the sidecar?");
    kill(sidecars[0]);
}

fn kill(id: u32) {
    let killed = std::process::Command::new("kill").args(["-s", "KILL", &id.to_string()]).status();
    assert!(killed.is_ok_and(|status| status.success()));
}

/// Returns how many PID namespaces, seen from here, contain a process; none when it has ended.
fn depth(id: u32) -> usize {
    ids(id).len()
}

/// Returns the id of a process in its innermost PID namespace.
fn innermost(id: u32) -> Option<u32> {
    ids(id).last().copied()
}

/// Returns the ids of a process, from the outermost seen from here to the innermost.
fn ids(id: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    line.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}
