//! Promise: a memory bomb ends inside its limit, and the limit is named with its peak.
//! S1.30, S2.9; DESIGN §4 exit codes; L06.

use lockgate_conformance::{Backend, Bench, Needs, ready};

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
