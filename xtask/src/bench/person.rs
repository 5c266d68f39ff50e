//! The people who start what is measured: the user who runs the bench and, if that is root, the unprivileged account of the tests.
//!
//! Each has folders of its own on a real disk, and inherits nothing of the environment of the user who runs the bench.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::setup;

/// The unprivileged account that `cargo xtask setup` makes.
const ACCOUNT: &str = "lockgate-test";
/// The `PATH` of a program.
const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How long a program that is not measured may take, in seconds.
const PATIENCE: &str = "120";

/// A user who starts programs.
pub(crate) struct Person {
    /// `root`, or `unprivileged`.
    pub(crate) name: &'static str,
    /// The ids to run with, if they are not our own.
    ids: Option<(u32, u32)>,
    home: PathBuf,
}

impl Person {
    /// Returns the user who runs the bench; and the unprivileged account, if that user is root and the account exists.
    pub(crate) fn all(folder: &Path) -> Result<Vec<Self>> {
        let root = setup::is_root();
        let mut all = vec![Self::settle(if root { "root" } else { "unprivileged" }, None, folder)?];
        if root && let Some(ids) = account(&fs::read_to_string("/etc/passwd").unwrap_or_default()) {
            all.push(Self::settle("unprivileged", Some(ids), folder)?);
        }
        Ok(all)
    }

    fn settle(name: &'static str, ids: Option<(u32, u32)>, folder: &Path) -> Result<Self> {
        let home = folder.join(name);
        for at in [home.clone(), home.join("state"), home.join("work")] {
            fs::create_dir(&at).with_context(|| format!("failed to make {}", at.display()))?;
            if let Some((uid, gid)) = ids {
                std::os::unix::fs::chown(&at, Some(uid), Some(gid))?;
            }
        }
        Ok(Self { name, ids, home })
    }

    /// The folder commands are started in, which a sandbox shows.
    pub(crate) fn work(&self) -> PathBuf {
        self.home.join("work")
    }

    /// Gives a file to this person alone.
    pub(crate) fn own(&self, file: &Path) -> Result<()> {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(file, fs::Permissions::from_mode(0o600))?;
        if let Some((uid, gid)) = self.ids {
            std::os::unix::fs::chown(file, Some(uid), Some(gid))?;
        }
        Ok(())
    }

    /// Returns a command of this person: a small environment, no input, and no output unless the caller asks for it.
    pub(crate) fn command(&self, program: &Path, args: &[String]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.work()).env_clear();
        command.env("PATH", SEARCH).env("HOME", &self.home).env("XDG_STATE_HOME", self.home.join("state"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some((uid, gid)) = self.ids {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Returns a program's output, within a time limit; an error carries the program's own message.
    pub(crate) fn told(&self, program: &Path, args: &[String]) -> Result<String> {
        let args = [owned(&["--kill-after=5", PATIENCE, shown(program)?]), args.to_vec()].concat();
        let mut command = self.command(Path::new("timeout"), &args);
        let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            bail!("`{}` ended with {}: {}", args[2..].join(" "), output.status, words.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Returns arguments as owned strings.
pub(crate) fn owned(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

/// Returns a path as an argument.
pub(crate) fn shown(path: &Path) -> Result<&str> {
    path.to_str().context("a path is no UTF-8")
}

fn account(passwd: &str) -> Option<(u32, u32)> {
    let mut fields =
        passwd.lines().find_map(|line| line.strip_prefix(ACCOUNT)?.strip_prefix(':'))?.split(':').skip(1);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_is_found_by_its_whole_name() {
        let passwd = "lockgate-tester:x:7:7::/:/bin/sh\nlockgate-test:x:1001:1002::/home/x:/bin/sh\n";
        assert_eq!(account(passwd), Some((1001, 1002)));
        assert_eq!(account("root:x:0:0::/:/bin/sh\n"), None);
    }
}
