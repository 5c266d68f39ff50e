//! Promise: a memory bomb ends inside its limit, and the limit is named with its peak.
//! S1.30, S2.9; DESIGN §4 exit codes; L06.

use lockgate_conformance::{Backend, Bench, Ended, Needs, ready};

#[test]
fn a_memory_bomb_ends_inside_its_limit() {
    if !ready(&[Needs::Linux, Needs::ControlGroups]) {
        return;
    }
    let bench = Bench::new();
    bench.controls(&[&["eat-memory", "300"]]);
    let run = bench.run(Backend::isolated()).flags(["--memory", "128MiB"]);
    run.everything_works(&[&["eat-memory", "32"]]);
    let ended = run.command([bench.probe().to_str().unwrap(), "eat-memory", "300"]);
    assert!(ended.code == 137, "{ended}");
    assert!(
        ended.stderr.contains("killed: out of memory (it used ") && ended.stderr.contains("MiB of 128MiB)"),
        "the limit is not named: {ended}"
    );
    // The sum of several processes counts, not only the first, and so do files in the private directories.
    let probe = bench.probe();
    let probe = probe.display();
    let many = format!("for i in 1 2 3 4; do '{probe}' eat-memory 60 & done; wait; '{probe}' spin 1 1");
    let ended = run.shell(&many);
    assert!(ended.stdout.matches("\"eat-memory\"").count() < 4 || ended.code == 137, "{ended}");
    let named = ended.stderr.contains("of its processes ran out of memory (limit 128MiB)");
    assert!(named || ended.stderr.contains("of 128MiB)"), "the limit is not named: {ended}");
}

/// At an engine init alone tells how the command ended. It is as small as any of them, but not as near to being ended.
#[test]
fn of_many_small_processes_those_of_the_command_are_ended() {
    if !ready(&[Needs::Linux, Needs::ControlGroups]) {
        return;
    }
    let ended = fork_without_memory("");
    let named = ended.stderr.contains("of its processes ran out of memory (limit 64MiB)");
    assert!(named || ended.stderr.contains("killed: out of memory (it used "), "{ended}");
    assert!(ended.stderr.contains("--memory") && !ended.stderr.contains("failed to"), "{ended}");
}

/// A command may put itself back beside init, and end its own run by that. Podman does not tell want of memory from any other kill.
#[test]
fn an_init_that_was_ended_for_want_of_memory_is_told_as_that() {
    let isolated = Backend::isolated();
    let at_engine = matches!(isolated, Backend::Docker | Backend::Podman);
    if !at_engine || !ready(&[Needs::Linux, Needs::ControlGroups]) {
        return;
    }
    let ended = fork_without_memory("echo 0 > /proc/self/oom_score_adj; ");
    assert!(ended.stderr.contains("out of memory") && ended.stderr.contains("--memory"), "{ended}");
    assert!(isolated == Backend::Podman || !ended.stderr.contains("failed to"), "{ended}");
}

/// Starts processes until there is no memory for them.
fn fork_without_memory(first: &str) -> Ended {
    let bench = Bench::new();
    let run = bench.run(Backend::isolated()).flags(["--memory", "64MiB", "--timeout", "2m"]);
    run.shell(&format!("{first}exec bash -c 'f() {{ f | f & }}; f; sleep 3; echo after'"))
}
