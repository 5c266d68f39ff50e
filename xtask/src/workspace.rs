//! Finds this workspace, and the directory of cargo's outputs.
//!
//! It asks cargo and never guesses: `CARGO_TARGET_DIR` and `.cargo/config.toml` both move the outputs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::bounded::Bounded;

/// A release build with link-time optimisation on two busy cores stays well below this.
const BUILD_LIMIT: Duration = Duration::from_secs(45 * 60);

/// The repository and its target directory.
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
}

#[derive(Deserialize)]
struct Metadata {
    target_directory: PathBuf,
}

/// One line of `cargo build --message-format=json`. Only messages of executables have `executable`.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

impl Workspace {
    /// Finds the repository this xtask was built from and asks cargo for its target directory.
    pub(crate) fn locate() -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = manifest.parent().context("xtask has no folder above it")?.to_owned();
        let args = ["metadata", "--format-version=1", "--no-deps", "--offline"];
        let text = Bounded::cargo(&args, Duration::from_secs(60)).within(&root).stdout()?;
        let metadata: Metadata = serde_json::from_str(&text).context("failed to read `cargo metadata`")?;
        Ok(Self { root, target: metadata.target_directory })
    }

    /// Prepares cargo with `args`, run at the root of the repository. In the CI a build keeps nothing for the next one, which would
    /// be five gigabytes of the machine's disk.
    pub(crate) fn cargo(&self, args: &[&str], limit: Duration) -> Bounded {
        self.cargo_behind(&[], args, limit)
    }

    /// As [`Workspace::cargo`], started by the command `before` that ends with it.
    pub(crate) fn cargo_behind(&self, before: &[String], args: &[&str], limit: Duration) -> Bounded {
        let command = Bounded::cargo_behind(before, args, limit).within(&self.root);
        if in_ci() { command.env("CARGO_INCREMENTAL", "0") } else { command }
    }

    /// Runs `cargo build ARGS` and returns the absolute path of the executable called `binary`.
    pub(crate) fn build(&self, binary: &str, args: &[&str]) -> Result<PathBuf> {
        self.build_by("build", binary, args)
    }

    /// As [`Workspace::build`], by `cargo COMMAND`: `rustc` takes arguments for the compiler.
    pub(crate) fn build_by(&self, command: &str, binary: &str, args: &[&str]) -> Result<PathBuf> {
        let args = [&[command, "--message-format=json-render-diagnostics", "--bin", binary], args].concat();
        let messages = self.cargo(&args, BUILD_LIMIT).stdout()?;
        executable(&messages, binary).with_context(|| format!("cargo built no executable called `{binary}`"))
    }
}

/// Whether this is a run in the CI, which must do all its machine can, and whose machine is thrown away after it.
pub(crate) fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

fn executable(messages: &str, binary: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .filter(|message| message.target.as_ref().is_some_and(|target| target.name == binary))
        .find_map(|message| message.executable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_found_among_the_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"probe"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"other"},"executable":"/t/other"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"probe"},"executable":"/t/probe"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        assert_eq!(executable(messages, "probe"), Some(PathBuf::from("/t/probe")));
        assert_eq!(executable(messages, "absent"), None);
    }

    #[test]
    fn cargo_names_the_target_directory() {
        let workspace = Workspace::locate().unwrap();
        assert!(workspace.root.join("xtask/Cargo.toml").is_file());
        assert!(workspace.target.is_absolute());
    }
}
