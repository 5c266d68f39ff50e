//! The place of a value in the configuration, for errors.

use crate::error::ConfigError;
use crate::pattern::Width;

/// The layer and field that a value was read from, and how wide a pattern there may be.
pub(crate) struct Location<'a> {
    pub(crate) origin: &'a str,
    pub(crate) field: &'a str,
    pub(crate) width: Width,
}

impl Location<'_> {
    pub(crate) fn error(&self, field: &str, problem: impl ToString) -> ConfigError {
        let path = if field.is_empty() { self.field.to_owned() } else { format!("{}.{field}", self.field) };
        ConfigError::new(self.origin, path, problem)
    }
}
