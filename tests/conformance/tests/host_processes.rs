//! Promise: processes of the host are neither seen nor signalled nor looked into.
//! S2.4; THREATS X "signals".

use std::time::Duration;

use lockgate_conformance::{Backend, Bench, Canary, Live, Needs, processes_named, ready, within};

#[test]
fn host_processes_cannot_be_seen() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let mark = Canary::draw();
    let victim = Live::start(std::process::Command::new(bench.probe()).args(["hold", "60", mark.text()]));
    let id = victim.id().to_string();
    // A process just started has no command line for a moment: execve(2) lets its parent continue before it is in place.
    let has_begun = within(Duration::from_secs(10), || !processes_named(mark.text()).is_empty());
    assert!(has_begun, "the process to be looked for has not begun");
    bench.controls(&[&["see", mark.text()], &["signal", &id, "0"], &["proc-read", &id]]);

    let run = bench.run(Backend::isolated());
    // The mark must not be on a command line inside, so the test searches the visible ones.
    let seen = run.probe(&["processes"]);
    assert!(!seen.to_string().contains(mark.text()), "{seen}");
    let visible = seen.detail().as_array().unwrap().len();
    assert!(visible <= 4, "{visible} processes are visible: {seen}");
    if id.parse::<u32>().unwrap() > 100 {
        run.nothing_works(&[&["signal", &id, "9"], &["proc-read", &id], &["ptrace", &id]]);
    }
    // A signal to every process: only those inside may be hit.
    let ended = run.harm("kill -9 -1; true");
    assert!(ended.code != 125, "{ended}");
    assert!(bench.control(&["signal", &id, "0"]).done(), "the host's process was killed from inside");
}
