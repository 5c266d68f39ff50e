//! Hints: what would turn a denial into a grant, by kind, with its text for people.

use std::fmt;
use std::ops::Deref;

/// What would allow a denied request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// A command of this program that would allow it.
    Command(String),
    /// An edit of a rule that would allow it.
    Edit(String),
    /// Other advice, or the statement that nothing can allow it.
    Advice(String),
}

impl Hint {
    /// Returns whether the hint would widen the policy. Such a hint is useless if a managed policy does not allow the request either.
    pub(crate) fn opens(&self) -> bool {
        match self {
            Self::Command(_) | Self::Edit(_) => true,
            Self::Advice(_) => false,
        }
    }

    /// Returns the hint with its text changed.
    #[must_use]
    pub fn map(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Command(text) => Self::Command(change(text)),
            Self::Edit(text) => Self::Edit(change(text)),
            Self::Advice(text) => Self::Advice(change(text)),
        }
    }
}

impl Deref for Hint {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Command(text) | Self::Edit(text) | Self::Advice(text) => text,
        }
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

/// A bare text is advice.
impl From<String> for Hint {
    fn from(text: String) -> Self {
        Self::Advice(text)
    }
}

impl From<&str> for Hint {
    fn from(text: &str) -> Self {
        Self::Advice(text.into())
    }
}
