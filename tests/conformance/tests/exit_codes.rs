//! Promise: the exit code tells the truth: the command's own, 125 not made, 126 not executable, 127 not found,
//! 128+n killed. DESIGN §4; issue "Bad input"; both backends.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use lockgate_conformance::{Backend, Bench, Needs, ready};
use lockgate_needs::missing;

#[test]
fn exit_codes_tell_the_truth() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    bench.file("workspace/plain", "not a program");
    for backend in Backend::all() {
        let run = bench.run(backend);
        let named = backend.name();
        for (line, code) in
            [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -KILL $$", 137), ("kill -TERM $$", 143)]
        {
            let ended = run.shell(line);
            assert!(ended.code == code, "`{line}` under {named}: {ended}");
        }
        let missing = run.command(["/no/such/program"]);
        assert!(missing.code == 127 && missing.stderr.contains("/no/such/program"), "{named}: {missing}");
        // A folder of `PATH` is not a program with an empty name.
        for absent in ["lockgate-no-such-program", ""] {
            let missing = run.command([absent]);
            assert!(missing.code == 127, "{named}: {missing}");
        }
        let plain = run.command([bench.workspace().join("plain")]);
        assert!(plain.code == 126, "{named}: {plain}");
    }
}

/// A program for i386 that ends with 0: exit(2) by `int 0x80`. elf(5)
fn program_of_32_bits() -> Vec<u8> {
    const BASE: u32 = 0x0804_8000;
    const CODE: &[u8] = b"\xb8\x01\0\0\0\x31\xdb\xcd\x80";
    const LENGTH: u32 = 84 + CODE.len() as u32;
    let mut octets = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x03\0".to_vec();
    octets.extend([1, BASE + 84, 52, 0, 0].map(u32::to_le_bytes).as_flattened());
    octets.extend([52, 32, 1, 0, 0, 0].map(u16::to_le_bytes).as_flattened());
    octets.extend([1, 0, BASE, BASE, LENGTH, LENGTH, 5, 4096].map(u32::to_le_bytes).as_flattened());
    octets.extend(CODE);
    octets
}

#[test]
fn a_program_of_32_bits_is_told_why_it_ended() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let program = bench.file("workspace/program", "");
    fs::write(&program, program_of_32_bits()).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    // By a shell: the file was open for writing a moment ago, also to what another test forks just then.
    let started = format!("for try in 1 2 3 4 5; do {0} && exit; sleep 0.2; done; exit 1", program.display());
    if !Command::new("sh").args(["-c", &started]).status().is_ok_and(|control| control.success()) {
        return missing("a kernel that runs programs of 32 bits");
    }
    let ended = bench.run(Backend::isolated()).command([&program]);
    assert!(ended.code == 159 && ended.stderr.contains("use a 64-bit build"), "{ended}");
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    for backend in Backend::all() {
        let run = bench.run(backend);
        let told = run.around("\"$@\" >/dev/full", "echo lost");
        assert!(told.stderr.contains("standard output: No space left"), "{} {told}", backend.name());
        // Here stderr is full as well, so nobody can be told.
        let untold = run.around("\"$@\" 2>/dev/full", "echo lost >&2");
        assert_eq!((told.code, untold.code), (125, 125), "{} {told} {untold}", backend.name());
    }
}

#[test]
fn what_cannot_be_made_is_said_once_and_clearly() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let wide = bench.file("outside/wide.toml", "[[egress.allow]]\nhost = \"*.com\"\n");
    let unknown = bench.file("outside/unknown.toml", "[egress]\ndefalt = \"deny\"\n");
    let cases: &[(&[&str], &str)] = &[
        (&["--policy", wide.to_str().unwrap()], "*.com"),
        (&["--policy", unknown.to_str().unwrap()], "defalt"),
        (&["--policy", "/no/such/policy.toml"], "/no/such/policy.toml"),
        (&["--memory", "1KiB"], "memory"),
        (&["--mount", "/no/such/source:/home/agent/x"], "/no/such/source"),
    ];
    let nonsense = bench.lockgate(&["run", "--backend", "nonsense", "--", "true"]);
    assert!(nonsense.code == 2 && nonsense.stderr.contains("nonsense"), "{nonsense}");
    for (flags, named) in cases {
        let ended = bench.run(Backend::isolated()).flags(*flags).command(["true"]);
        assert!(matches!(ended.code, 2 | 125), "{flags:?}: {ended}");
        assert!(ended.stderr.contains(named), "{flags:?} is not named: {ended}");
        assert!(!ended.stderr.contains("panicked"), "{flags:?}: {ended}");
    }
}
