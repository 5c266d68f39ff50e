//! Promise: a fork bomb ends inside its limit, named, and the host goes on.
//! S2.9; L06.

use std::time::{Duration, Instant};

use lockgate_conformance::{Backend, Bench, Needs, ready};

#[test]
fn a_fork_bomb_ends_inside_its_limit() {
    if !ready(&[Needs::Linux, Needs::ControlGroups]) {
        return;
    }
    let bench = Bench::new();
    bench.controls(&[&["forks", "200"]]);
    let run = bench.run(Backend::isolated()).flags(["--pids", "64"]);
    let seen = run.probe(&["forks", "200"]);
    assert!(seen.refused() && seen.errno() == "EAGAIN", "{seen}");
    assert!((32..64).contains(&seen.number("children")), "{seen}");

    let start = Instant::now();
    let ended = run.command([bench.probe().to_str().unwrap(), "fork-bomb", "10"]);
    assert!(start.elapsed() < Duration::from_secs(30), "{ended}");
    assert!(ended.stdout.contains("\"refused\""), "{ended}");
    assert!(
        ended.stderr.contains("pids") || ended.stderr.contains("processes"),
        "the limit is not named: {ended}"
    );
    assert!(bench.control(&["forks", "10"]).done(), "the host cannot fork");
}
