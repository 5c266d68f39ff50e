//! Replays every seed of every fuzz target: inputs that lead into each part of a parser, and those that were findings once.
//!
//! Each test needs a process of its own, which nextest gives it: several targets keep a sidecar for the life of the process, whose
//! upstream listens at an address that belongs to the process.

#![expect(clippy::expect_used, clippy::panic, clippy::print_stderr, reason = "this is a test")]

use std::fs;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// How long a thread of a sidecar's peer may take to judge what was sent last.
const AFTERMATH: Duration = Duration::from_millis(100);

/// What panicked, in whatever thread. A fuzzer ends at each, and so must a replay.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

macro_rules! replay_each {
    ($($target:ident)*) => {
        const TARGETS: &[&str] = &[$(stringify!($target)),*];
        $(
            #[test]
            fn $target() {
                replay(stringify!($target), targets::$target);
            }
        )*
    };
}

replay_each! {
    audit_verify
    builtin_config
    chunked_body
    client_hello
    dns_answer
    forward
    gateway
    host_pattern
    http2
    image
    line
    meter
    placeholder
    policy_config
    proxy_answer
    registry
    request_head
    response
    scrub
    system_keys
    target
    template
    vault_record
    websocket
}

#[test]
fn every_target_is_replayed() {
    let files = entries("fuzz_targets");
    let names: Vec<String> = files.iter().map(|path| name(&path.with_extension(""))).collect();
    assert_eq!(names, TARGETS, "the files in fuzz/fuzz_targets, and the list in this file");
    for (file, target) in files.iter().zip(TARGETS) {
        let text = fs::read_to_string(file).expect("a target can be read");
        assert!(text.contains(&format!("targets::{target}(input)")), "{file:?} calls another target");
    }
    let folders: Vec<String> =
        entries("seeds").iter().filter(|path| path.is_dir()).map(|path| name(path)).collect();
    assert_eq!(folders, TARGETS, "the folders in fuzz/seeds, and the list in this file");
}

/// Runs a check on every seed of its target.
fn replay(target: &str, check: fn(&[u8])) {
    record_panics();
    let seeds = entries(&format!("seeds/{target}"));
    assert!(!seeds.is_empty(), "there are no seeds in fuzz/seeds/{target}");
    for seed in &seeds {
        let shown = format!("fuzz/seeds/{target}/{}", name(seed));
        eprintln!("{shown}"); // for one that ends the process, or does not end
        let input = fs::read(seed).expect("a seed can be read");
        let passed = panic::catch_unwind(|| check(&input)).is_ok();
        let panics = recorded_panics();
        assert!(passed && panics.is_empty(), "{shown} is a finding:\n{panics}");
    }
    std::thread::sleep(AFTERMATH);
    let panics = recorded_panics();
    assert!(panics.is_empty(), "the last seeds of fuzz/seeds/{target} are a finding:\n{panics}");
}

fn record_panics() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        PANICS.lock().expect("nobody panics with it").push(panicked.to_string());
        report(panicked);
    }));
}

fn recorded_panics() -> String {
    std::mem::take(&mut *PANICS.lock().expect("nobody panics with it")).join("\n")
}

/// Returns what lies in a folder of `fuzz/`, sorted.
fn entries(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(folder);
    let listed = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = listed.map(|entry| entry.expect("an entry can be read").path()).collect();
    paths.sort();
    paths
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
