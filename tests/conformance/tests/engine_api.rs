//! Promise: an engine is asked by its API alone: no client of its, and no other program, is executed for it.
//! S3.15.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use lockgate_conformance::{Backend, Bench, Needs, promised, ready};

/// Programs that other users of an engine execute.
const PROGRAMS: [&str; 7] = ["docker", "podman", "nerdctl", "iptables", "nft", "ip", "sh"];

#[test]
fn no_program_is_executed_for_it() {
    if !promised("engine_api") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let (folder, mark) = (bench.outside().join("programs"), bench.workspace().join("executed"));
    fs::create_dir(&folder).unwrap();
    for name in PROGRAMS {
        let program = folder.join(name);
        fs::write(&program, format!("#!/bin/sh\necho {name} >> {}\n", mark.display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    // The control: a lookup by name finds these programs.
    let by_name = Command::new("/bin/sh").args(["-c", "docker ps"]).env("PATH", &folder).status();
    assert!(by_name.unwrap().success() && fs::read_to_string(&mark).unwrap() == "docker\n");
    fs::remove_file(&mark).unwrap();

    let run = bench.run(Backend::isolated()).caller("PATH", folder.to_str().unwrap());
    let ended = run.command(["/bin/echo", "ran"]);
    assert!(ended.code == 0 && ended.stdout == "ran\n", "{ended}");
    assert!(!mark.exists(), "executed: {}", fs::read_to_string(&mark).unwrap());
}
