//! Promise: every system call of the escape table is refused before the kernel's own code sees it, each by name.
//! S2.8; THREATS X "syscalls to deny", "clone3".

use lockgate_conformance::{Backend, Bench, Needs, is_root, ready};

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
            _ => {
                eprintln!("no control for {name} without root");
                continue;
            }
        };
        match control.detail()[name]["outcome"].as_str() {
            Some("done") => proven += 1,
            Some("absent") => eprintln!("this kernel has no {name}: its refusal proves nothing here"),
            _ => panic!("the control for {name} did not work: {}", control.detail()[name]),
        }
    }
    assert!(proven >= 40, "only {proven} calls have a working control");
}

#[test]
fn clone3_is_absent_and_foreign_tables_kill() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let run = bench.run(Backend::isolated());
    let seen = run.probes(&[&["syscall", "clone3"], &["syscall", "i386-getpid"], &["syscall", "x32-getpid"]]);
    // Absent, so that a C library falls back to clone, whose flags a filter can read.
    assert!(seen[0].absent() && seen[0].errno() == "ENOSYS", "{}", seen[0]);
    assert!(seen[1].text("answer") == "SIGSYS" || seen[1].absent(), "{}", seen[1]);
    assert!(seen[2].text("answer") == "SIGSYS" || seen[2].absent(), "{}", seen[2]);
}
