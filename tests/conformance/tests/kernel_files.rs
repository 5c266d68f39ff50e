//! Promise: no file of the kernel's opens for writing, not even for a run that root started.
//! DESIGN §9 (`core_pattern`); THREATS X "cgroups", "rootfs paths".

use lockgate_conformance::{Backend, Bench, Needs, is_root, ready};

const FILES: &[&str] = &[
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hotplug",
    "/proc/sys/vm/panic_on_oom",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sysrq-trigger",
    "/sys/kernel/uevent_helper",
    "/sys/power/state",
];

#[test]
fn kernel_files_cannot_be_written() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    if is_root() {
        let control = bench.control(&["kernel-writable"]);
        assert!(control.to_string().contains("/proc/sys/kernel/core_pattern"), "{control}");
    }
    let run = bench.run(Backend::isolated());
    let attempts: Vec<[&str; 2]> = FILES.iter().map(|file| ["open-write", *file]).collect();
    run.nothing_works(&attempts.iter().map(|attempt| attempt.as_slice()).collect::<Vec<_>>());
    let seen = run.probe(&["kernel-writable"]);
    assert!(!seen.done(), "{seen}");
    run.nothing_works(&[&["open", "/proc/kcore"], &["open", "/proc/kmsg"]]);
}
