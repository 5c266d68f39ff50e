//! Promise: without its sidecar a run has no way out, and does not go on.
//! DESIGN §4 "closed, not open"; E19.

use std::time::Instant;

use lockgate_conformance::{
    Backend, Bench, Canary, Live, Needs, descendants, innermost, kill_containers, processes_named, ready,
    sidecar, vanishes, within,
};

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
fn a_sidecar_that_tells_nothing_at_its_end_is_no_success() {
    // How an engine stops a process of a container is its own matter.
    if Backend::isolated().is_engine() || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let (begun, go_on) = (bench.workspace().join("begun"), bench.workspace().join("go-on"));
    let line = "echo > begun; until test -e go-on; do sleep 0.1; done";
    let live = bench.run(Backend::isolated()).flags(["--json"]).start(["sh", "-c", line]);
    assert!(within(Backend::patience(10), || begun.exists()), "the command did not start");
    signal("STOP", sidecar(live.id()));
    std::fs::write(go_on, "").unwrap();
    let ended = live.wait();
    assert_eq!(ended.code, 125, "{ended}");
    let report = ended.stderr.lines().last().and_then(|line| serde_json::from_str(line).ok());
    let report: serde_json::Value = report.expect("a report");
    assert!(report["error"].as_str().unwrap_or_default().contains("how the sidecar ended"), "{ended}");
    assert!(report["exit_code"] == 125 && report["allowed"].is_null(), "{ended}");
    let shown = bench.lockgate(&["runs", "ls"]).stdout;
    assert!(shown.contains("failed"), "{shown}");
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
    // The command begins a moment before its init can tell.
    let causes =
        ["its first process was ended", "the sandbox ended before it told that the command had begun"];
    assert!(ended.code == 125 && causes.iter().any(|it| ended.stderr.contains(it)), "{ended}");
    assert!(!ended.stderr.contains("sidecar"), "{ended}");
    assert!(vanishes(mark.text(), Backend::patience(2)), "the command outlived its init");
}

#[test]
fn a_sidecar_whose_command_was_killed_closes_its_audit() {
    if !Backend::isolated().is_engine() || !ready(&[]) {
        return;
    }
    let bench = Bench::new();
    let (live, run) = bench.run(Backend::isolated()).begin("begun; sleep 60");
    assert_eq!(kill_containers(&[&run, &format!("lockgate-agent-{run}")]), 1);
    let ended = live.wait();
    assert!(ended.code == 125 && ended.stderr.contains("its init was killed"), "{ended}");
    assert!(!ended.stderr.contains("sidecar"), "{ended}");
    let verified = bench.lockgate(&["audit", "verify", &run]);
    assert!(verified.code == 0 && verified.stdout.contains("properly closed"), "{verified}");
}

#[test]
fn a_signal_that_the_command_survived_is_not_blamed_for_what_comes_after() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let (begun, asked) = (bench.workspace().join("begun"), bench.workspace().join("asked"));
    let line = "trap 'echo > asked' INT; echo > begun; while :; do sleep 0.1; done";
    let live = bench.run(Backend::isolated()).start(["sh", "-c", line]);
    assert!(within(Backend::patience(10), || begun.exists()), "the command did not start");
    live.signal("INT");
    assert!(within(Backend::patience(10), || asked.exists()), "the command was not asked");
    kill_sidecar(&bench, live.id());
    let ended = live.wait();
    assert!(ended.code == 125 && ended.stderr.contains("sidecar"), "{ended}");
    assert!(!ended.stderr.contains("signal 2"), "{ended}");
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
    kill(sidecar(id));
}

fn kill(id: u32) {
    signal("KILL", id);
}

fn signal(name: &str, id: u32) {
    let sent = std::process::Command::new("kill").args(["-s", name, &id.to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()));
}
