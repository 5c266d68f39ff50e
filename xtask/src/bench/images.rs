//! The images that `cargo xtask setup` makes, as archives: none is fetched.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::Bench;
use crate::workspace::Workspace;

/// What is started, and what is taken in.
pub(crate) const SMALL: &str = "busybox";
pub(crate) const LARGE: &str = "debian";

/// An image's archive, if it was made.
pub(crate) fn archive(name: &str) -> Result<Option<PathBuf>> {
    let archive = Workspace::locate()?.target.join("images").join(name).with_extension("tar");
    Ok(archive.is_file().then_some(archive))
}

/// The same, where everybody can read it.
pub(crate) fn readable(bench: &Bench, name: &str) -> Result<Option<PathBuf>> {
    let Some(made) = archive(name)? else { return Ok(None) };
    let copy = bench.folder.join(name).with_extension("tar");
    fs::copy(made, &copy).context("failed to copy the image")?;
    Ok(Some(copy))
}

/// Why something is skipped that needs an image.
pub(crate) fn absent(name: &str) -> String {
    format!("{name}.tar is not there: `cargo xtask setup` makes it as root")
}
