//! What is started, and by whom.

use std::path::PathBuf;

use super::sample::Role;

/// The command that all of them start.
pub(crate) const COMMAND: &str = "/bin/true";

/// Something that starts a command.
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) program: PathBuf,
    /// All but the command itself.
    pub(crate) args: Vec<String>,
}
