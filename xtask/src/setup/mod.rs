//! `cargo xtask setup`: installs what the tests and benchmarks need, from the distribution, cargo, pip and npm.
//!
//! As root, where there is apt-get, it installs what is missing; an installation that fails is an error. Elsewhere it must change
//! nothing outside the target directory and cargo's own folder: it lists what is missing and succeeds, so that tests run what they
//! can.

mod account;
mod agents;
mod cargo_tools;
mod guest;
mod images;
mod packages;
mod python;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::workspace::Workspace;

pub(crate) use images::OF_ENGINES as ENGINES_IMAGE;
pub(crate) use python::VENV;

/// The rights we run with, which decide what may be changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rights {
    Root,
    User,
}

/// Runs `cargo xtask setup`.
pub(crate) fn run() -> Result<()> {
    let absent = prepare(&Workspace::locate()?)?;
    if absent.is_empty() {
        eprintln!("setup: all that the tests need is here");
    }
    Ok(())
}

/// Prepares this machine and returns what is still missing, one line each.
pub(crate) fn prepare(workspace: &Workspace) -> Result<Vec<String>> {
    let rights = if is_root() { Rights::Root } else { Rights::User };
    let mut absent = packages::prepare(rights)?;
    absent.extend(account::prepare(rights)?);
    cargo_tools::prepare(&workspace.root)?;
    absent.extend(python::prepare(&workspace.target, rights)?);
    absent.extend(agents::prepare(&workspace.target, rights)?);
    absent.extend(guest::prepare(&workspace.target, rights)?);
    absent.extend(images::prepare(&workspace.target, rights)?);
    for line in &absent {
        eprintln!("    {line}");
    }
    Ok(absent)
}

/// Whether xtask runs as root.
pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// Finds a program on the `PATH`, in the system folders that a user's `PATH` leaves out, or in cargo's own.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from).or(home.map(|home| home.join(".cargo")));
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .chain(cargo.map(|folder| folder.join("bin")))
        .map(|folder| folder.join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|it| it.is_file() && it.mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name_and_only_when_they_are_there() {
        assert!(program("sh").is_some_and(|path| path.is_absolute()));
        assert!(program("no-such-program-anywhere").is_none());
        assert!(!is_executable(Path::new("/etc/passwd")));
    }
}
