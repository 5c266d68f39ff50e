//! What would change a denial: of what kind it is, and its words for a person. Whoever shows it shows the words.

use std::fmt;
use std::ops::Deref;

/// What would change a denial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// A command of this program that would have it allowed.
    Command(String),
    /// What to write into a rule, which would then allow it.
    Edit(String),
    /// What else helps, or that nothing does.
    Advice(String),
}

impl Hint {
    /// Whether it is about allowing what was denied: vain advice where a managed policy does not allow it either.
    pub(crate) fn opens(&self) -> bool {
        match self {
            Self::Command(_) | Self::Edit(_) => true,
            Self::Advice(_) => false,
        }
    }

    /// The same with other words.
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

/// Words alone are advice.
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
