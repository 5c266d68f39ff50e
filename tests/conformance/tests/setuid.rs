//! Promise: a setuid program gives nobody anything.
//! THREATS X "mounts: nosuid"; S2.7.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use lockgate_conformance::{Backend, Bench, Needs, ready};

#[test]
fn setuid_has_no_effect() {
    // Only root can make the setuid-root program for the attempt.
    if !ready(&[Needs::Linux, Needs::Root]) {
        return;
    }
    let bench = Bench::new();
    let copy = bench.workspace().join("setuid");
    std::fs::copy(bench.probe(), &copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o4755)).unwrap();

    let control =
        Command::new("setpriv").args(["--reuid=65534", "--clear-groups"]).arg(&copy).arg("identity").output();
    let control = String::from_utf8(control.unwrap().stdout).unwrap();
    assert!(control.contains("\"euid\":0"), "the control did not become root: {control}");

    let ended = bench.run(Backend::isolated()).command([copy.to_str().unwrap(), "identity"]);
    assert!(ended.stdout.contains("\"euid\"") && !ended.stdout.contains("\"euid\":0,"), "{ended}");
    assert!(ended.stdout.contains("\"effective\":\"0000000000000000\""), "{ended}");
}
