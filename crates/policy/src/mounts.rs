//! Mounts, copies and the workspace: which host paths enter the sandbox, and where.

use std::path::{Component, Path, PathBuf};

use crate::choice::Choice;

/// How a mount may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountMode {
    /// Read only, recursively.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

impl Choice for MountMode {
    const ALL: &'static [Self] = &[Self::ReadOnly, Self::ReadWrite];

    fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "ro",
            Self::ReadWrite => "rw",
        }
    }
}

/// How the workspace may be used, from the least that the command may do to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkspaceMode {
    /// Read only.
    ReadOnly,
    /// Writes are kept apart, for review; the user then applies or discards them.
    Overlay,
    /// Writes go to the caller's folder.
    ReadWrite,
}

impl Choice for WorkspaceMode {
    const ALL: &'static [Self] = &[Self::ReadWrite, Self::ReadOnly, Self::Overlay];

    fn as_str(self) -> &'static str {
        match self {
            Self::ReadWrite => "rw",
            Self::ReadOnly => "ro",
            Self::Overlay => "overlay",
        }
    }
}

/// A mount that a policy asks for. Its source is not opened yet: the sandbox does that, component by component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// The path on the host, as written; `~` not yet replaced.
    pub source: PathBuf,
    /// The absolute path inside.
    pub target: PathBuf,
    /// How it may be used.
    pub mode: MountMode,
}

/// A copy that a policy asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyIn {
    /// The path on the host, as written.
    pub source: PathBuf,
    /// The absolute path inside.
    pub target: PathBuf,
}

/// Paths inside that belong to the sandbox itself.
const OWN: &[&str] = &["/proc", "/sys", "/dev"];

/// Parses a source path. It must not contain `..`.
pub(crate) fn source(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    if text.is_empty() || text.contains('\0') {
        return Err("a path must be named".into());
    }
    if path.components().any(|c| c == Component::ParentDir) {
        return Err(format!("`{text}` climbs with `..`; write the path it leads to"));
    }
    Ok(path.into())
}

/// Parses a target path: absolute, without `.` or `..`, and outside the sandbox's own directories.
pub(crate) fn target(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    if text.contains('\0') || !path.is_absolute() {
        return Err(format!("`{text}` is not an absolute path inside the sandbox"));
    }
    let dotted = text.split('/').any(|part| part == "." || part == "..");
    if dotted || path == Path::new("/") {
        return Err(format!("`{text}` must name a place below `/`, without `.` or `..`"));
    }
    if OWN.iter().any(|own| path.starts_with(own)) {
        return Err(format!("`{text}` lies in a directory that is the sandbox's own ({})", OWN.join(", ")));
    }
    // `/x/` is the place `/x`; with the slash the kernel would take a folder alone.
    Ok(path.components().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn climbing_and_own_places_are_refused() {
        // S3.12
        for text in ["", "../x", "/a/../b", "a/.."] {
            assert!(source(text).is_err(), "{text}");
        }
        for text in ["", "x", "/", "/a/./b", "/a/../b", "/proc/x", "/sys", "/dev/shm"] {
            assert!(target(text).is_err(), "{text}");
        }
        // As text: paths of the same parts are equal.
        for text in ["/x", "/x/", "//x//"] {
            assert_eq!(target(text).unwrap().as_os_str(), "/x");
        }
        assert!(source("~/.cache/pip").is_ok() && target("/home/agent/.cache/pip").is_ok());
    }
}
