//! Promise: the command has stdin, stdout and stderr, and no other descriptor of anybody's.
//! THREATS X "fds" (CVE-2024-21626).

use std::fs::File;
use std::process::{Command, Stdio};

use lockgate_conformance::{Backend, Bench, Live, Needs, ready};

#[test]
fn only_three_descriptors() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let directory = bench.outside();
    // The shell opens descriptor 9 on a directory of the host's and hands it on.
    let line = format!("exec 9<{}; exec \"$@\"", directory.display());
    let words = |command: Vec<std::ffi::OsString>| {
        let mut shell = Command::new("sh");
        shell.args(["-c", &line, "sh"]).args(command).stdin(Stdio::from(File::open("/dev/null").unwrap()));
        shell.envs(bench.environment()).current_dir(bench.workspace());
        Live::start(&mut shell).wait()
    };
    let probe = bench.probe().into_os_string();
    let control = words(vec![probe.clone(), "descriptors".into()]);
    assert!(control.stdout.contains("\"fd\":9"), "{control}");

    for backend in Backend::all() {
        let ended = words(bench.run(backend).words([probe.to_str().unwrap(), "descriptors"]));
        let report: serde_json::Value = serde_json::from_str(ended.stdout.trim()).expect("a report");
        let numbers: Vec<u64> =
            report["detail"].as_array().unwrap().iter().map(|open| open["fd"].as_u64().unwrap()).collect();
        assert_eq!(numbers, [0, 1, 2], "{} {ended}", backend.name());
    }
}
