//! `cargo xtask test`: prepares, builds, checks, and runs every test against the release binary.
//!
//! It stops at the first step that fails. Tests find the programs by their environment and never build one themselves, so that they
//! test what is shipped.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::bounded::Bounded;
use crate::steps::Steps;
use crate::workspace::{Workspace, in_ci};
use crate::{check, engines, order, setup, skips};

const TEST_LIMIT: Duration = Duration::from_secs(70 * 60);

/// Where nextest keeps its reports, whatever the target directory is (`store.dir` of its configuration).
const REPORTS: &str = "target/nextest";

/// The flags of `.cargo/config.toml`: rustdoc does not read `rustflags`. Without them an example is linked position-independent
/// against crates that are not, and fails.
const DOC_FLAGS: &str =
    "-C target-feature=+crt-static -C relocation-model=static -C symbol-mangling-version=v0";

/// Runs `cargo xtask test`.
pub(crate) fn run() -> Result<()> {
    let workspace = Workspace::locate()?;
    let mut steps = Steps::default();
    let mut closing = Closing::default();
    let result = all(&workspace, &mut steps, &mut closing);
    eprint!("\n{}", steps.table());
    for line in
        closing.absent.iter().chain(&closing.skipped).chain(&closing.summary).chain(&closing.at_second_try)
    {
        eprintln!("  {}", line.trim());
    }
    result
}

/// What is repeated at the end.
#[derive(Default)]
struct Closing {
    absent: Vec<String>,
    skipped: Vec<String>,
    summary: Option<String>,
    /// The tests that failed first and passed when they were tried once more, as nextest names them at its end.
    at_second_try: Vec<String>,
}

fn all(workspace: &Workspace, steps: &mut Steps, closing: &mut Closing) -> Result<()> {
    closing.absent = steps.run("setup", || setup::prepare(workspace))?;
    let lockgate =
        steps.run("build lockgate", || workspace.build("lockgate", &["--release", "-p", "lockgate-cli"]))?;
    steps.run("order of a start's functions", || order::check(workspace, &lockgate))?;
    // With the features of the whole workspace, so that the tests' own build finds most of it done.
    let probe = steps.run("build probe", || workspace.build("probe", &["--workspace"]))?;
    let world = steps.run("build world", || workspace.build("world", &["--workspace"]))?;
    let engine = steps.run("build engine", || workspace.build("engine", &["--workspace"]))?;
    check::steps_of_check(workspace, steps)?;

    let venv = workspace.target.join(setup::VENV);
    let informed = |command: Bounded| {
        let command = command
            .env("LOCKGATE_BIN", &lockgate)
            .env("LOCKGATE_PROBE_BIN", &probe)
            .env("LOCKGATE_WORLD_BIN", &world)
            .env("LOCKGATE_ENGINE_BIN", &engine)
            .env("LOCKGATE_TEST_VENV", &venv);
        if in_ci() { command.env("LOCKGATE_TEST_REQUIRE", "all") } else { command }
    };
    let profile = if in_ci() { "ci" } else { "default" };
    steps.run("tests", || {
        let report = workspace.root.join(REPORTS).join(profile).join("junit.xml");
        forget(&report);
        let args = ["nextest", "run", "--workspace", "--profile", profile];
        let engines = engines::words(workspace, &engine);
        let result = informed(workspace.cargo_behind(&engines, &args, TEST_LIMIT)).watch_stderr(|line| {
            let line = plain(line);
            if line.trim_start().starts_with("Summary [") {
                closing.summary = Some(line);
            } else if closing.summary.is_some() && line.trim_start().starts_with("FLAKY ") {
                closing.at_second_try.push(line);
            }
        });
        let skipped = skips::read(&report);
        if result.is_err() {
            // A run that failed early leaves no report; its own error says more.
            closing.skipped = skipped.unwrap_or_default();
            return result;
        }
        closing.skipped = skipped?;
        Ok(())
    })?;
    steps.run("documentation tests", || {
        informed(workspace.cargo(&["test", "--doc", "--workspace"], TEST_LIMIT))
            .env("RUSTDOCFLAGS", DOC_FLAGS)
            .run()
    })
}

/// Removes the old report, which must not speak for a new run.
fn forget(report: &Path) {
    // It is usually absent. nextest overwrites one that cannot be removed, or fails there with its reason.
    let _ = std::fs::remove_file(report);
}

/// Returns a line without the terminal's colour sequences (ECMA-48 SGR).
fn plain(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_taken_away() {
        assert_eq!(plain("\u{1b}[32;1m Summary\u{1b}[0m [ 0.1s]"), " Summary [ 0.1s]");
        assert_eq!(plain("as it is"), "as it is");
    }
}
