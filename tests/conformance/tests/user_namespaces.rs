//! Promise: no nested user namespace, and so no capabilities in one, unless it was asked for.
//! THREATS X "syscalls to deny"; S2.7.

use lockgate_conformance::{Backend, Bench, Needs, ready};

#[test]
fn no_nested_user_namespace() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    bench.controls(&[&["syscall", "unshare-user"], &["syscall", "unshare-all"], &["syscall", "clone-user"]]);
    let run = bench.run(Backend::isolated());
    run.nothing_works(&[
        &["syscall", "unshare-user"],
        &["syscall", "unshare-all"],
        &["syscall", "clone-user"],
    ]);
    let ended = run.command(["unshare", "--user", "--map-root-user", "true"]);
    assert!(ended.code != 0 && ended.code != 125, "{ended}");
}
