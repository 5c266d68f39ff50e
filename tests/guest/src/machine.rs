//! The machine: builds its first root from the parts, starts it, and reads its console to the end. It never outlives its deadline, even if
//! the test that started it dies.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::process::{Command, Stdio};

use crate::answer::Answer;
use crate::archive::Archive;
use crate::modules;
use crate::parts::{Parts, QEMU};
use crate::scenario::{Caller, Scenario};

/// The guest's first process.
const INIT: &str = include_str!("init.sh");

/// The modules that the product's network needs of a modular kernel, and a file system that supports id mapping: the guest's own root is in
/// memory, where Linux 6.1 supports none.
const MODULES: [&str; 6] = ["nft_chain_nat", "nft_redir", "tcp_diag", "loop", "ext4", "overlay"];

/// Seconds that the machine may run, fewer than the test runner grants a test.
const LIMIT: &str = "150";

/// The guest's time counts instructions, eight nanoseconds each: its clocks, and so its limits and timeouts, are the same on a busy
/// machine, and an idle guest waits for nothing. A kernel that calibrates its clock on a busy machine hangs.
const CLOCK: &str = "shift=3,sleep=off";

/// No devices but a console. `microvm` starts the kernel without firmware. The machine is emulated, because an existing `/dev/kvm` may
/// still not run a guest.
const FLAGS: &[&str] = &[
    "-machine",
    "microvm,pcie=on",
    "-accel",
    "tcg",
    "-cpu",
    "max",
    "-icount",
    CLOCK,
    "-m",
    "1024",
    "-nodefaults",
    "-no-user-config",
    "-display",
    "none",
    "-serial",
    "stdio",
    "-no-reboot",
    "-append",
    "console=ttyS0 quiet loglevel=1 panic=-1 mitigations=off random.trust_cpu=on",
];

/// Boots a guest, runs every scenario in order, and returns how each ended.
///
/// # Panics
/// When the machine cannot be made, or it ended before every scenario had; the message contains its console output.
#[must_use]
pub fn boot(parts: &Parts, scenarios: &[(Caller, Scenario)]) -> Vec<Answer> {
    let folder = tempfile::tempdir().expect("room for the guest's root");
    let root = folder.path().join("root.cpio");
    fs::write(&root, first_root(parts, scenarios)).expect("the guest's root");
    // timeout(1) leads a process group of its own, and ends the machine even when this test is gone.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", LIMIT, QEMU]).args(FLAGS);
    command.arg("-kernel").arg(&parts.kernel).arg("-initrd").arg(&root);
    let output = command.stdin(Stdio::null()).output().expect("the machine starts");
    let console = String::from_utf8_lossy(&output.stdout);
    let (told, rest): (Vec<_>, Vec<_>) =
        console.lines().map(|line| (line, Answer::parse(line))).partition(|(_, answer)| answer.is_some());
    let mut answers: BTreeMap<usize, Answer> = told.into_iter().filter_map(|(_, answer)| answer).collect();
    let rest: Vec<&str> = rest.into_iter().map(|(line, _)| line).collect();
    let told = |number: usize| {
        answers.remove(&number).unwrap_or_else(|| {
            let words = String::from_utf8_lossy(&output.stderr);
            let name = scenarios[number].1.name;
            panic!("no answer to `{name}` ({number}); {}\n{words}\n{}", output.status, rest.join("\n"))
        })
    };
    (0..scenarios.len()).map(told).collect()
}

/// Returns the archive of everything in the guest.
fn first_root(parts: &Parts, scenarios: &[(Caller, Scenario)]) -> Vec<u8> {
    let mut archive = Archive::default();
    for name in ["bin", "dev", "modules", "scenarios", "root"] {
        archive.directory(name);
    }
    // Without it the first process has no streams.
    archive.device("dev/console", [5, 1]);
    archive.file("init", INIT.as_bytes());
    for (name, path) in [("busybox", &parts.busybox), ("lockgate", &parts.product), ("probe", &parts.probe)] {
        let octets = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        archive.file(&format!("bin/{name}"), &octets);
    }
    let modules = modules::in_order(&parts.modules, &MODULES).unwrap_or_else(|error| panic!("{error}"));
    for (number, (name, octets)) in modules.iter().enumerate() {
        archive.file(&format!("modules/{number:02}-{name}.ko"), octets);
    }
    let mut list = String::new();
    for (number, (caller, scenario)) in scenarios.iter().enumerate() {
        archive.file(&format!("scenarios/{number}"), scenario.script.as_bytes());
        // Writing to a string cannot fail.
        let _ = writeln!(list, "{number} {} {}", caller.user(), caller.group());
    }
    archive.file("scenarios/list", list.as_bytes());
    archive.finish()
}
