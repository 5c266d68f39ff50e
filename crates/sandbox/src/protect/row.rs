//! The list of protected paths, read from `profiles/protected.txt`. Only reads it: what a row means for a workspace is said by who uses it.

use std::path::Path;
use std::sync::LazyLock;

use super::kind::Kind;

const DATA: &str = include_str!("../../../../profiles/protected.txt");

/// One protected path.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) path: &'static Path,
    pub(super) when_absent: WhenAbsent,
    /// Held only where this is there.
    pub(super) beside: Option<&'static Path>,
}

/// The rows that are repositories. One as a whole is protected only where it is a file, which leads to a repository elsewhere: the protected
/// paths in it have rows of their own.
const REPOSITORIES: [&str; 2] = [".git", ".jj/repo"];

/// The folder in a protected one that is the command's all the same: it holds whole checkouts. What this machine would execute in one of
/// them is as little protected as in any other checkout below a workspace.
pub(crate) const LEFT: &str = ".claude/worktrees";

impl Row {
    pub(super) fn is_repository(&self) -> bool {
        REPOSITORIES.iter().any(|repository| self.path == Path::new(repository))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WhenAbsent {
    HoldByDirectory,
    HoldByFile,
    HoldByEmptyFile,
    /// Holding one of these rows is enough.
    HoldOne,
    /// Held if one of those is.
    HoldWithOne,
    Leave,
}

impl WhenAbsent {
    /// Returns the kind of placeholder that holds such a name.
    pub(super) fn kind(self) -> Option<Kind> {
        match self {
            Self::HoldByDirectory | Self::HoldOne | Self::HoldWithOne => Some(Kind::Directory),
            Self::HoldByFile => Some(Kind::Dot),
            Self::HoldByEmptyFile => Some(Kind::Void),
            Self::Leave => None,
        }
    }

    /// Whether such a name means something without others: one part of a bare repository does not.
    pub(super) fn counts_alone(self) -> bool {
        !matches!(self, Self::HoldOne | Self::HoldWithOne)
    }
}

/// Whether a path may be held by such a placeholder, wherever its workspace is. Whatever else is there is the user's own. In a bare
/// repository the names of a `.git` are at the top. A file that is to have a content was half made while it has none: only where its row
/// says, because another row holds the same name at the top.
pub(super) fn may_be_held_by(kind: Kind, path: &Path) -> bool {
    let is_at_top = |row: &Row| {
        let at_top = row.path.strip_prefix(".git").ok().filter(|rest| !rest.as_os_str().is_empty());
        at_top.is_some_and(|name| path.ends_with(name))
    };
    rows().any(|row| match row.when_absent.kind() {
        Some(of_row) if of_row == kind => path.ends_with(row.path) || is_at_top(&row),
        Some(Kind::Dot) => kind == Kind::Void && path.ends_with(row.path),
        _ => false,
    })
}

pub(super) fn rows() -> impl Iterator<Item = Row> {
    // Parsed once: a start uses them several times.
    static ROWS: LazyLock<Vec<Row>> = LazyLock::new(read_rows);
    ROWS.iter().copied()
}

fn read_rows() -> Vec<Row> {
    let row = |line: &'static str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let when_absent = match words.next()? {
            "hold" => WhenAbsent::HoldByDirectory,
            "file" => WhenAbsent::HoldByFile,
            "void" => WhenAbsent::HoldByEmptyFile,
            "one" => WhenAbsent::HoldOne,
            "with" => WhenAbsent::HoldWithOne,
            _ => WhenAbsent::Leave,
        };
        let path = Path::new(words.next()?);
        Some(Row { path, when_absent, beside: words.nth(1).map(Path::new) })
    };
    DATA.lines().filter_map(row).collect()
}
