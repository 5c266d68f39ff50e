//! Promise: no device of the machine's can be reached or made; `/dev` holds only the harmless ones.
//! THREATS X; S2.6.

use lockgate_conformance::{Backend, Bench, Needs, is_root, ready};

const HARMLESS: &[&str] = &[
    "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout",
    "tty", "urandom", "zero", "console",
];

#[test]
fn no_devices() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let run = bench.run(Backend::isolated());
    let node = bench.workspace().join("node");
    if is_root() {
        bench.controls(&[&["device", node.to_str().unwrap()]]);
    }
    run.nothing_works(&[
        &["device", node.to_str().unwrap()],
        &["device", "/tmp/node"],
        &["device", "/dev/node"],
        &["open-write", "/dev/mem"],
        &["open-write", "/dev/kmsg"],
        &["open", "/dev/vda"],
        &["open", "/dev/sda"],
        &["open-write", "/dev/fuse"],
        &["open-write", "/dev/net/tun"],
        &["open-write", "/dev/kvm"],
    ]);
    run.everything_works(&[&["read", "/dev/zero"], &["open-write", "/dev/null"], &["read", "/dev/urandom"]]);
    let listed = run.probe(&["list", "/dev"]);
    for name in listed.detail().as_array().expect("a list of names") {
        assert!(HARMLESS.contains(&name.as_str().unwrap()), "/dev/{name} is in the sandbox: {listed}");
    }
}

#[test]
fn message_queues_work_and_are_the_runs_own() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let control = bench.control(&["queue", "/probe"]);
    let inside = bench.run(Backend::isolated()).probe(&["queue", "/probe"]);
    // A kernel may be built without them.
    assert!(control.done() || control.absent(), "the control did not work: {control}");
    assert_eq!(inside.done(), control.done(), "{inside}; outside {control}");
}
