//! The kinds of placeholders, of which each protected name has one.

/// The kind of a placeholder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An empty directory.
    Directory,
    /// A file with the path `./.`, which in `.git/commondir` names the repository itself.
    Dot,
    /// An empty file.
    Void,
}
