//! Promise: the sandbox's own init cannot be read, traced, stopped or killed by what it guards.
//! THREATS X "own init".

use lockgate_conformance::{Backend, Bench, Needs, Seen, is_engine_without_root, ready};

#[test]
fn init_is_out_of_reach() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let own = std::process::id().to_string();
    bench.controls(&[&["proc-read", &own]]);
    let run = bench.run(Backend::isolated());
    run.nothing_works(&[&["stop-init"], &["ptrace", "1"]]);
    // Where the command is root inside, as at an engine without root, it sees the numbers of init's descriptors, and not what they are.
    match is_engine_without_root() {
        true => assert_eq!(worked(&run.probe(&["proc-read", "1"])), ["fd"]),
        false => run.nothing_works(&[&["proc-read", "1"]]),
    }
    run.contained();
    let ended = run.shell("kill -9 1; kill -15 1; kill -19 1; sleep 0.2; echo still here");
    assert!(ended.code == 0 && ended.stdout.contains("still here"), "{ended}");
    assert!(run.probe(&["identity"]).number("pid") != 1, "the command is process 1 and would have to reap");
}

/// What of a process's files was not refused.
fn worked(seen: &Seen) -> Vec<&str> {
    let files = seen.detail().as_object().expect("a file a line");
    let open =
        files.iter().filter(|(_, said)| !said.as_str().is_some_and(|said| said.starts_with("refused")));
    open.map(|(name, _)| name.as_str()).collect()
}
