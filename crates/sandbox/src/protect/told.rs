//! Names in a workspace as they are told to a person. The command chose them.

use std::ffi::OsStr;

const LONGEST_TOLD: usize = 256;

/// Formats a name for users, truncated.
pub(super) fn shown(name: &OsStr) -> String {
    let name = name.display().to_string();
    match name.char_indices().nth(LONGEST_TOLD) {
        Some((at, _)) => format!("{}…", name[..at].escape_debug()),
        None => name.escape_debug().to_string(),
    }
}
