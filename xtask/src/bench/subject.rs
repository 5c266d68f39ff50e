//! A program that is measured.

use std::path::PathBuf;

use super::sample::Role;

/// The command that all subjects start.
pub(crate) const COMMAND: &str = "/bin/true";

/// A program that starts a command.
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) program: PathBuf,
    /// All arguments but the command.
    pub(crate) args: Vec<String>,
}
