//! Promise: the sandbox's own init cannot be read, traced, stopped or killed by what it guards.
//! THREATS X "own init".

use lockgate_conformance::{Backend, Bench, Needs, ready};

#[test]
fn init_is_out_of_reach() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let own = std::process::id().to_string();
    bench.controls(&[&["proc-read", &own]]);
    let run = bench.run(Backend::isolated());
    run.nothing_works(&[&["stop-init"], &["proc-read", "1"], &["ptrace", "1"]]);
    run.contained();
    let ended = run.shell("kill -9 1; kill -15 1; kill -19 1; sleep 0.2; echo still here");
    assert!(ended.code == 0 && ended.stdout.contains("still here"), "{ended}");
    assert!(run.probe(&["identity"]).number("pid") != 1, "the command is process 1 and would have to reap");
}
