//! Promise: every system call of the escape table is refused before the kernel's own code sees it, each by name.
//! S2.8; THREATS X "syscalls to deny", "clone3".

use lockgate_conformance::{Backend, Bench, Needs, is_root, ready};

/// Calls that a kernel may be built without: those of modules, kexec, I/O ports, libraries of a.out, x32, and what has an option of its own.
const LACKED: &[&str] = &[
    "acct",
    "bpf",
    "delete_module",
    "fanotify_init",
    "finit_module",
    "i386-getpid",
    "init_module",
    "ioperm",
    "iopl",
    "kcmp",
    "kexec_file_load",
    "kexec_load",
    "modify_ldt",
    "quotactl",
    "quotactl_fd",
    "uselib",
    "userfaultfd",
    "x32-getpid",
];

#[test]
fn the_escape_table_is_refused() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let root = is_root();
    let free = bench.control(&["syscalls"]);
    let apart = bench.control_apart(&["syscalls"]);
    let inside = bench.run(Backend::isolated()).probe(&["syscalls"]);
    let rows = inside.detail().as_object().expect("a table of calls");
    assert!(rows.len() > 50, "{inside}");
    let mut proven = 0;
    for (name, row) in rows {
        assert!(
            row["outcome"] == "refused" || row["outcome"] == "absent",
            "{name} got past the filter: {row}"
        );
        let control = match row["detail"]["control"].as_str() {
            Some("anyone") => &free,
            Some("namespace") => &apart,
            Some("machine") if root => &free,
            // A control would be a capability of the machine's. The same row has one where root runs this test.
            Some("machine") => continue,
            _ => panic!("{name} names no control: {row}"),
        };
        match control.detail()[name]["outcome"].as_str() {
            Some("done") => proven += 1,
            // This kernel lacks the call, and would say so: somebody before it refused.
            Some("absent") if row["outcome"] == "refused" && LACKED.contains(&name.as_str()) => proven += 1,
            _ => panic!("the control for {name} did not work: {}, and inside {row}", control.detail()[name]),
        }
    }
    let of_machine = rows.values().filter(|row| row["detail"]["control"] == "machine").count();
    let without = if root { 0 } else { of_machine };
    assert!(of_machine < 15 && proven == rows.len() - without, "{proven} of {} have a control", rows.len());
}

#[test]
fn clone3_is_absent_and_foreign_tables_kill() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let run = bench.run(Backend::isolated());
    let calls: [&[&str]; 3] =
        [&["syscall", "clone3"], &["syscall", "i386-getpid"], &["syscall", "x32-getpid"]];
    let free = calls.map(|call| bench.control(call));
    let seen = run.probes(&calls);
    assert!(free[0].done(), "the control for clone3 did not work: {}", free[0]);
    // Absent, so that a C library falls back to clone, whose flags a filter can read.
    assert!(seen[0].absent() && seen[0].errno() == "ENOSYS", "{}", seen[0]);
    for (free, seen) in free.iter().zip(&seen).skip(1) {
        // A kernel may be built without either table, and says so.
        assert!(free.done() || free.absent(), "the control did not work: {free}");
        assert!(
            seen.text("answer") == "SIGSYS" || (free.absent() && seen.absent()),
            "{seen}; outside {free}"
        );
    }
}

/// What a command may not do with calls that it needs.
const REFUSED_ARGUMENTS: &[&str] = &[
    "fcntl F_SETLEASE",
    "fcntl F_NOTIFY",
    "fcntl F_SETDELEG",
    "fcntl of a later kernel",
    "renameat2 RENAME_WHITEOUT",
    "renameat2 RENAME_WHITEOUT, above an int",
];

#[test]
fn an_argument_that_reaches_outside_is_one_that_the_kernel_does_not_know() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let free = bench.control(&["arguments"]);
    let inside = bench.run(Backend::isolated()).probe(&["arguments"]);
    let rows = inside.detail().as_object().expect("a table of calls");
    assert!(REFUSED_ARGUMENTS.iter().all(|name| rows.contains_key(*name)), "{inside}");
    for (name, errno) in rows {
        let control = &free.detail()[name];
        assert!(control == "EBADF" || control == "EFAULT", "the control for {name} did not work: {control}");
        if REFUSED_ARGUMENTS.contains(&name.as_str()) {
            assert_eq!(errno, "EINVAL", "{name} got past the filter");
        } else {
            assert_eq!(errno, control, "{name} did not get past the filter");
        }
    }
}

#[test]
fn closing_a_socket_makes_nobody_wait() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let free = bench.control(&["linger"]);
    assert_eq!(free.detail()["is_set"], true, "the control did not work: {free}");
    let inside = bench.run(Backend::isolated()).probe(&["linger"]);
    assert_eq!(inside.detail()["is_set"], false, "{inside}");
    // Programs that set it go on.
    assert_eq!(inside.detail()["answers"], serde_json::json!([0, 0]), "{inside}");
}
