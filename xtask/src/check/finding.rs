//! The finding of a check: a place, what is wrong there, and how to fix it.

use std::fmt;

/// One broken rule, shown as `path:line: what; mend`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) path: String,
    /// Counted from one.
    pub(crate) line: usize,
    pub(crate) what: String,
    pub(crate) mend: String,
}

impl Finding {
    /// Makes a finding at `line` of `path`, which is relative to the root.
    pub(crate) fn new(path: &str, line: usize, what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into(), mend: mend.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}; {}", self.path, self.line, self.what, self.mend)
    }
}
