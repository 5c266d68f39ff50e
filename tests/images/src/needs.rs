//! The requirements of these tests. Where one is missing, a test is skipped by the rule of `lockgate_needs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lockgate_conformance::is_root;
use lockgate_needs::{made_by_setup, met, program, succeeds};

/// A requirement of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Debian's `docker-registry`.
    Registry,
    /// The program `zstd`.
    Zstd,
    /// A mount namespace, in which names resolve to this machine.
    Names,
    /// The image of busybox that `cargo xtask setup` makes.
    Busybox,
    /// Root, and an account without rights to become.
    Account,
}

/// Returns whether all requirements of a test are met. Otherwise it prints the reason, and the test must return.
///
/// # Panics
/// When a requirement is missing and everything is required.
#[must_use]
pub fn ready(needs: &[Needs]) -> bool {
    met(program("lockgate").and_then(|_| needs.iter().try_for_each(|need| have(*need)))).is_some()
}

/// Returns the archive of busybox, from a folder above where this test was built.
///
/// # Errors
/// When there is no archive.
pub fn busybox() -> Result<PathBuf, String> {
    made_by_setup("images/busybox.tar")
}

/// Returns the account that `cargo xtask setup` makes, or one that every system has, and its id.
#[must_use]
pub fn account() -> Option<(&'static str, u32)> {
    let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
    ["lockgate-test", "nobody"].into_iter().find_map(|wanted| {
        let mut rows = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let row = rows.find(|row| row.first() == Some(&wanted))?;
        Some((wanted, row.get(2)?.parse().ok()?))
    })
}

/// Returns a command with `hosts` as its list of names: without root, in a user namespace.
pub(crate) fn with_names(hosts: &Path, program: &Path) -> Command {
    let mut command = Command::new("unshare");
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
    command.args(["--mount", "--", "sh", "-c", script]).arg(hosts).arg(program);
    command
}

fn have(need: Needs) -> Result<(), String> {
    match need {
        Needs::Registry => {
            succeeds(Command::new("docker-registry").arg("--version"), "`docker-registry` is not installed")
        }
        Needs::Zstd => succeeds(Command::new("zstd").arg("--version"), "`zstd` is not installed"),
        Needs::Names => succeeds(
            &mut with_names(Path::new("/etc/hosts"), Path::new("true")),
            "no mount namespace can be made here",
        ),
        Needs::Busybox => busybox().map(drop),
        Needs::Account if !is_root() => Err("only root can become somebody else".into()),
        Needs::Account => account().map(drop).ok_or_else(|| "there is no account to become".into()),
    }
}
