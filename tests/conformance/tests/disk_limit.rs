//! Promise: a disk filler and an inode filler end inside the limit of the private directories.
//! DESIGN §5 "disk bounds what the run writes"; L06, L10.

use lockgate_conformance::{Backend, Bench, Needs, ready};

#[test]
fn fillers_end_inside_the_limit() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let outside = bench.outside();
    bench.controls(&[&["fill-disk", outside.to_str().unwrap(), "100"]]);
    let run = bench.run(Backend::isolated()).flags(["--disk", "64MiB"]);
    for directory in ["/tmp", "/home/agent", "/run", "/dev/shm"] {
        let seen = run.probe(&["fill-disk", directory, "100"]);
        assert!(!seen.done(), "{directory} took more than its limit: {seen}");
        assert!(seen.number("got") <= 64, "{directory}: {seen}");
    }
    let seen = run.probe(&["fill-disk", "/tmp", "16"]);
    assert!(seen.done(), "an ordinary file does not fit: {seen}");
    // The limit is the run's: four directories do not make four limits.
    let probe = bench.probe();
    let probe = probe.display();
    let fill = "head -c 40M /dev/zero > /tmp/a; head -c 40M /dev/zero > /home/agent/b";
    let both = run.shell(&format!("{fill}; '{probe}' stat /tmp/a; '{probe}' stat /home/agent/b"));
    let sizes: u64 = both
        .stdout
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|report| report["detail"]["bytes"].as_u64())
        .sum();
    assert!(sizes <= 64 << 20, "{sizes} octets fit into 64 MiB: {both}");
}

#[test]
fn inodes_are_bounded() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let outside = bench.outside();
    bench.controls(&[&["fill-inodes", outside.to_str().unwrap(), "1000"]]);
    let run = bench.run(Backend::isolated()).flags(["--disk", "16MiB"]);
    let seen = run.probe(&["fill-inodes", "/tmp", "400000"]);
    assert!(!seen.done() && seen.errno() == "ENOSPC", "{seen}");
}
