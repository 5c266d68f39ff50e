//! Promise: control groups cannot be changed from inside, and no release agent can be set.
//! THREATS X "cgroups" (CVE-2022-0492, CVE-2023-25809).

use lockgate_conformance::{Backend, Bench, Needs, is_root, ready};

#[test]
fn control_groups_are_out_of_reach() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    if is_root() {
        bench.controls(&[&["cgroup-writable"]]);
    }
    let run = bench.run(Backend::isolated());
    run.nothing_works(&[&["cgroup-writable"], &["mkdir", "/sys/fs/cgroup/conformance"]]);
    let groups = run.shell("cat /proc/self/cgroup").stdout;
    for line in groups.lines() {
        let path = line.splitn(3, ':').nth(2).unwrap_or_default();
        assert!(path == "/" || !path.contains("lockgate"), "the run sees where its control group is: {line}");
    }
}
