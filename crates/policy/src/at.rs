//! Where in a configuration something stands.

use crate::error::ConfigError;
use crate::pattern::Width;

/// Where in a configuration a rule stands.
pub(crate) struct At<'a> {
    pub(crate) origin: &'a str,
    pub(crate) field: &'a str,
    pub(crate) width: Width,
}

impl At<'_> {
    pub(crate) fn error(&self, field: &str, problem: impl ToString) -> ConfigError {
        let path = if field.is_empty() { self.field.to_owned() } else { format!("{}.{field}", self.field) };
        ConfigError::new(self.origin, path, problem)
    }
}
