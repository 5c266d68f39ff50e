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
    // What an engine does about these is its own.
    if !Backend::isolated().is_engine() {
        run.nothing_works(&PRESSURE.map(|file| ["open-write", file]).each_ref().map(|attempt| &attempt[..]));
    }
}

/// Where everybody may have the machine watched.
const PRESSURE: [&str; 3] = ["/proc/pressure/cpu", "/proc/pressure/io", "/proc/pressure/memory"];

/// Prints what is told inside of reads of a shown device, and what there is of real-time priority.
const ASK: &str = r#"
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
watcher = libc.inotify_init()
for name, mask in ("read", 1), ("all", 0xfff), ("write", 2):
    print(name, libc.inotify_add_watch(watcher, b"/dev/tty", mask) < 0)
print("notify", libc.fcntl(os.open("/usr", os.O_RDONLY), 1026, 1) < 0)
print("priority", resource.getrlimit(resource.RLIMIT_RTPRIO), resource.getrlimit(resource.RLIMIT_NICE))
"#;

#[test]
fn what_others_do_on_this_machine_is_not_told() {
    if !ready(&[Needs::Linux, Needs::Program("python3")]) || Backend::isolated() != Backend::Linux {
        return;
    }
    let run = Bench::new().run(Backend::Linux).command(["python3", "-c", ASK]);
    let expected = "read True\nall True\nwrite False\nnotify True\npriority (0, 0) (0, 0)\n";
    assert_eq!(run.stdout, expected, "{}", run.stderr);
    Bench::new().run(Backend::Linux).nothing_works(&[&["open", "/proc/keys"], &["open", "/proc/key-users"]]);
}
