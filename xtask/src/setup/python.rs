//! Installs the Python packages of the client tests, in a virtual environment inside the target directory.
//!
//! It uses the distribution's Python, the one that a sandbox sees. Nothing is installed outside that folder.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Rights;
use crate::bounded::Bounded;

/// The environment, beneath the target directory.
pub(crate) const VENV: &str = "venv";

const PYTHON: &str = "/usr/bin/python3";
const LIMIT: Duration = Duration::from_secs(300);

/// Written last, so that an interrupted installation, or one with another list, is made anew.
const STAMP: &str = "lockgate-packages.txt";
const PACKAGES: [&str; 5] =
    ["httpx==0.28.1", "aiohttp==3.14.5", "anthropic==2.14.0", "openai==3.57.0", "pygit2==1.21.0"];

/// Makes the environment if it is not complete.
pub(super) fn prepare(target: &Path, rights: Rights) -> Result<Option<String>> {
    let venv = target.join(VENV);
    if is_complete(&venv) {
        return Ok(None);
    }
    match (make(&venv), rights) {
        (Ok(()), _) => Ok(None),
        (Err(error), Rights::Root) => Err(error),
        (Err(error), Rights::User) => {
            Ok(Some(format!("missing: {} (Python clients): {error:#}", PACKAGES.join(", "))))
        }
    }
}

fn is_complete(venv: &Path) -> bool {
    venv.join("bin/python").exists() && fs::read_to_string(venv.join(STAMP)).is_ok_and(|text| text == stamp())
}

fn make(venv: &Path) -> Result<()> {
    let shown = venv.to_str().context("the target directory's path is no UTF-8")?;
    Bounded::new(PYTHON, &["-m", "venv", "--clear", shown], LIMIT).run()?;
    let pip = venv.join("bin/pip");
    let pip = pip.to_str().context("the target directory's path is no UTF-8")?;
    let args = ["install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:", "--no-input"];
    Bounded::new(pip, &[&args[..], &PACKAGES[..]].concat(), LIMIT).run()?;
    fs::write(venv.join(STAMP), stamp()).context("failed to write the list of Python packages")
}

fn stamp() -> String {
    PACKAGES.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_counts_only_when_it_was_finished_with_this_list() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        fs::write(folder.path().join("bin/python"), "").unwrap();
        assert!(!is_complete(folder.path()));
        fs::write(folder.path().join(STAMP), "httpx==0.1").unwrap();
        assert!(!is_complete(folder.path()));
        fs::write(folder.path().join(STAMP), stamp()).unwrap();
        assert!(is_complete(folder.path()));
    }
}
