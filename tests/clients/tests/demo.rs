//! The demonstration, README's first command: every step succeeds, and README quotes its output exactly.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lockgate_clients::{product, ready, run_to_end};

#[test]
fn the_demonstration_shows_what_it_promises() {
    if !ready(&[]) {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let mut command = Command::new(product().unwrap());
    command.arg("demo").env("XDG_STATE_HOME", state.path()).env("HOME", state.path());
    let ended = run_to_end(&mut command, Duration::from_secs(60));
    ended.says("✓ leave a process behind");
    let lines: Vec<&str> = ended.stdout.lines().filter(|line| line.starts_with("  ")).collect();
    assert!(lines.len() > 12 && lines.iter().all(|line| line.starts_with("  ✓ ")), "{lines:#?}");
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let told: Vec<&str> = readme.lines().filter(|line| line.starts_with("  ✓ ")).collect();
    assert!(told.len() > 5);
    assert!(told.iter().all(|line| lines.contains(line)), "README tells {told:#?}, and it was {lines:#?}");
}
