//! Promise: no capabilities, no way to new ones, an allowlist of system calls in force, and nobody's root.
//! S2.7, S2.8, S3.13.

use lockgate_conformance::{Backend, Bench, Needs, is_engine_without_root, makes_user_root, ready};

#[test]
fn there_are_no_privileges() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let control = bench.control_apart(&["identity"]);
    assert!(control.detail()["capabilities"]["effective"] != "0000000000000000", "{control}");

    let seen = bench.run(Backend::isolated()).probe(&["identity"]);
    for set in ["inheritable", "permitted", "effective", "bounding", "ambient"] {
        assert!(seen.detail()["capabilities"][set] == "0000000000000000", "{set}: {seen}");
    }
    assert!(seen.text("no_new_privs") == "1", "{seen}");
    // S2.3
    assert!(seen.text("seccomp") == "2", "no filter is in force: {seen}");
    let is_root = ["uid", "euid", "gid"].map(|id| seen.number(id) == 0);
    assert!(is_root == [makes_user_root(); 3], "{seen}");
    // "0 0 1" would map root inside to root outside; so would any line whose second number is 0.
    // Root's engine maps no ids: there the command has the same id inside and outside, and it is not root.
    let outside = seen.text("uid_map").split_whitespace().nth(1).map(str::to_owned);
    let mapped = !Backend::isolated().is_engine() || is_engine_without_root();
    assert!(!mapped || outside.as_deref() != Some("0"), "root outside is mapped: {seen}");
    // 1 and not 0: no file is that small, and no crash handler behind a pipe is started either, core(5).
    assert!(seen.detail()["limits"]["core"]["soft"] == 1, "a core file could be written: {seen}");
}
