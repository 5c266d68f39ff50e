//! Finds the image archives that `cargo xtask setup` makes. None is fetched.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::Bench;
use crate::workspace::Workspace;

/// The image that is started, and the image that is imported.
pub(crate) const SMALL: &str = "busybox";
pub(crate) const LARGE: &str = "debian";

/// Returns an image's archive, if it was made.
pub(crate) fn archive(name: &str) -> Result<Option<PathBuf>> {
    let archive = Workspace::locate()?.target.join("images").join(name).with_extension("tar");
    Ok(archive.is_file().then_some(archive))
}

/// Returns a copy of the archive that every user can read.
pub(crate) fn readable(bench: &Bench, name: &str) -> Result<Option<PathBuf>> {
    let Some(made) = archive(name)? else { return Ok(None) };
    let copy = bench.folder.join(name).with_extension("tar");
    fs::copy(made, &copy).context("failed to copy the image")?;
    Ok(Some(copy))
}

/// Returns the reason why a measurement that needs an image is skipped.
pub(crate) fn absent(name: &str) -> String {
    format!("{name}.tar is not there: `cargo xtask setup` makes it as root")
}
