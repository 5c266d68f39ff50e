//! The files of built-in tools in the agent's container: files of the home, which our init writes as the command's user, and links
//! to the caches. None of them is secret.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::overlay::overlays;
use crate::plan::Plan;
use crate::step::Step;

/// The files (path, text, mode) and links (path, target) to bring.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ToolFiles {
    files: Vec<(PathBuf, String, u32)>,
    links: Vec<(PathBuf, PathBuf)>,
}

impl ToolFiles {
    /// Collects the files and links of a plan.
    pub(super) fn of(plan: &Plan) -> Self {
        let file = |step: &Step| match step {
            Step::WriteFile(file) => {
                // The content was made from text.
                let text = String::from_utf8_lossy(&file.content).into_owned();
                Some((file.path.clone(), text, file.mode))
            }
            _ => None,
        };
        let links = overlays(plan).filter_map(|overlay| overlay.link());
        Self { files: plan.steps.iter().filter_map(file).collect(), links: links.collect() }
    }

    /// Writes everything into the command's home. A directory that the engine made on the way to a mount is root's: files that
    /// belong there are left out, with a notice.
    pub(super) fn lay_out(&self, notices: &mut Vec<String>) -> Result<(), (PathBuf, io::Error)> {
        let mut leave_out = |path: &Path, error: io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                let why = "the engine made its folder for a mount, and that is root's";
                notices.push(format!("`{}` is not brought in: {why}", path.display()));
                Ok(())
            }
            _ => Err((path.to_owned(), error)),
        };
        for (path, text, mode) in &self.files {
            write(path, text, *mode).or_else(|error| leave_out(path, error))?;
        }
        for (path, to) in &self.links {
            make_folder_of(path).and_then(|()| symlink(to, path)).or_else(|error| leave_out(path, error))?;
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    make_folder_of(path)?;
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?.write_all(text.as_bytes())
}

fn make_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}
