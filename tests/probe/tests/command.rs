//! The probe as its callers use it: a list, one JSON object per attempt, exit 2 on a usage error.
//! These tests make only harmless attempts.

#![expect(clippy::expect_used, reason = "a test that cannot start the probe has failed")]

use std::process::{Command, Output};

use serde_json::Value;

fn probe(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_probe")).args(arguments).output().expect("the probe starts")
}

fn report(arguments: &[&str]) -> Value {
    let output = probe(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn every_name_is_listed_once() {
    let output = probe(&["--list"]);
    let text = String::from_utf8(output.stdout).expect("text");
    let mut names: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert!(count > 60 && names.len() == count, "{text}");
}

#[test]
fn wrong_calls_are_told_apart_from_refusals() {
    for arguments in [&[][..], &["no-such-probe"], &["read"], &["tcp", "localhost", "not-a-port"]] {
        assert_eq!(probe(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn outcomes_follow_the_errno() {
    assert_eq!(report(&["read", "/proc/self/status"])["outcome"], "done");
    let absent = report(&["read", "/no/such/file"]);
    assert_eq!((&absent["outcome"], &absent["errno"]), (&"absent".into(), &"ENOENT".into()));
    let refused = report(&["tcp", "127.0.0.1", "1"]);
    assert_eq!((&refused["outcome"], &refused["errno"]), (&"refused".into(), &"ECONNREFUSED".into()));
}

#[test]
fn the_machines_own_processes_are_left_alone() {
    // In a container of a build machine there is another PID namespace, and nothing to protect.
    let first = std::fs::read_link("/proc/self/ns/pid")
        .is_ok_and(|link| link.to_string_lossy() == "pid:[4026531836]");
    if first {
        assert_eq!(report(&["stop-init"])["outcome"], "error");
        assert_eq!(report(&["walk-for", "3b383b383b383b383b383b38", "everyone"])["outcome"], "error");
    }
}
