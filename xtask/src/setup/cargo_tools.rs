//! Installs the tools that cargo provides, at a pinned version when absent; those that are present stay.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::program;
use crate::bounded::Bounded;

const INSTALL_LIMIT: Duration = Duration::from_secs(40 * 60);

/// Program and version. Both build with Rust 1.95; change the version only here.
const TOOLS: [(&str, &str); 2] = [("cargo-nextest", "0.9.143"), ("cargo-deny", "0.20.2")];

/// The tools run for seconds, so a short build is worth more than fast code: cargo-deny takes two minutes on two cores.
const QUICK_BUILD: [(&str, &str); 3] = [
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
];

/// Installs the absent tools. Without them nothing can be checked or tested, so a failure is an error.
pub(super) fn prepare(root: &Path) -> Result<()> {
    for (name, version) in TOOLS.into_iter().filter(|(name, _)| program(name).is_none()) {
        let crate_at_version = format!("{name}@{version}");
        let install = Bounded::cargo(&["install", "--locked", &crate_at_version], INSTALL_LIMIT)
            .within(root)
            // Its outputs would only fill our target directory.
            .without_env("CARGO_TARGET_DIR");
        QUICK_BUILD.into_iter().fold(install, |install, (key, value)| install.env(key, value)).run()?;
    }
    Ok(())
}
