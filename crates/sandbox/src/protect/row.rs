//! The list of protected paths, read from `profiles/protected.txt`. Only reads it: what a row means for a workspace is said by who uses it.

use std::path::Path;
use std::sync::LazyLock;

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
