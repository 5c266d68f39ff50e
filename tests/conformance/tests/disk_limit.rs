//! Promise: a disk filler and an inode filler end inside the limit of the private directories.
//! DESIGN §5 "disk bounds what the run writes"; L06, L10.

use std::process::Command;

use lockgate_conformance::{Backend, Bench, Ended, Needs, Seen, ready, run as run_outside};

/// The private directories.
const DIRECTORIES: [&str; 4] = ["/tmp", "/home/agent", "/run", "/dev/shm"];

#[test]
fn fillers_end_inside_the_limit() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let outside = bench.outside();
    bench.controls(&[&["fill-disk", outside.to_str().unwrap(), "100"]]);
    let run = bench.run(Backend::isolated()).flags(["--disk", "64MiB"]);
    for directory in DIRECTORIES {
        let seen = run.probe(&["fill-disk", directory, "100"]);
        assert!(!seen.done(), "{directory} took more than its limit: {seen}");
        assert!(seen.number("got") <= 64, "{directory}: {seen}");
    }
    let seen = run.probe(&["fill-disk", "/tmp", "16"]);
    assert!(seen.done(), "an ordinary file does not fit: {seen}");
    // The limit is the run's: four directories do not make four limits. An engine's `/dev/shm` is its own, beside that limit.
    let directories = if Backend::isolated().is_engine() {
        ["/tmp", "/home/agent", "/run", "/var/tmp"]
    } else {
        DIRECTORIES
    };
    let probe = bench.probe();
    let probe = probe.display();
    let fill = |directory: &str| {
        format!("head -c 40M /dev/zero > {directory}/filled; '{probe}' stat {directory}/filled\n")
    };
    let sizes = |ended: &Ended| -> Vec<u64> {
        let seen = Seen::all(ended);
        assert!(seen.len() == directories.len() && seen.iter().all(Seen::done), "{ended}");
        seen.iter().map(|seen| seen.number("bytes")).collect()
    };
    let all = run.shell(&directories.map(fill).concat());
    let sum: u64 = sizes(&all).iter().sum();
    assert!((48 << 20..=64 << 20).contains(&sum), "{sum} octets fit into 64 MiB: {all}");
    // The control: without a limit they all fit.
    let free = ["1", "2", "3", "4"].map(|name| outside.join(name).display().to_string());
    let fill_all = free.each_ref().map(|it| format!("mkdir {it}; {}", fill(it))).concat();
    let free = run_outside(Command::new("/bin/sh").args(["-c", &fill_all]));
    assert!(sizes(&free).iter().all(|size| *size == 40 << 20), "{free}");
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
