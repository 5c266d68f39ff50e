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
    let groups = run.shell("cat /proc/self/cgroup");
    // cgroups(7): every process is in a group of each hierarchy, and there is at least one.
    assert!(groups.code == 0 && groups.stdout.lines().count() > 0, "{groups}");
    for line in groups.stdout.lines() {
        let path = line.splitn(3, ':').nth(2).expect("HIERARCHY:CONTROLLERS:PATH");
        assert!(path == "/" || !path.contains("lockgate"), "the run sees where its control group is: {line}");
    }
}
