//! Configuration errors: the place of the value, the problem, and a remedy.

/// An error in a policy, with the path of its field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {field}: {problem}")]
pub struct ConfigError {
    /// The file, variable or flag the value came from.
    pub origin: String,
    /// The path of the field, as in `egress.allow[2].host`.
    pub field: String,
    /// The problem.
    pub problem: String,
    /// The remedy, if the problem does not imply it.
    pub hint: Option<String>,
}

impl ConfigError {
    pub(crate) fn new(origin: &str, field: impl Into<String>, problem: impl ToString) -> Self {
        Self { origin: origin.into(), field: field.into(), problem: problem.to_string(), hint: None }
    }

    /// Replaces the rule's name of a field by the name as it was written.
    pub(crate) fn renamed(mut self, called: &str, written: impl Into<String>) -> Self {
        if self.field == called {
            self.field = written.into();
        }
        self
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
