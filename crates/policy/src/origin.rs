//! The origin of a configuration layer.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::ConfigError;

/// The origin of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Origin {
    /// The machine's managed policy, by its path.
    Managed(String),
    /// The user's own configuration, by its path.
    User(String),
    /// A project's file, and whether the user has approved its exact content.
    Project {
        /// The path of the file.
        path: String,
        /// Whether this content was approved.
        approved: bool,
    },
    /// A file named with `--policy`.
    Named(String),
    /// A variable of the environment, by its name.
    Variable(String),
    /// A variable that bounds every run.
    Bound(String),
    /// Command-line flags.
    Flags,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Managed(path) | Self::User(path) | Self::Project { path, .. } | Self::Named(path) => {
                f.write_str(path)
            }
            Self::Variable(name) | Self::Bound(name) => f.write_str(name),
            Self::Flags => f.write_str("command line"),
        }
    }
}

pub(crate) fn parse<T: std::str::FromStr<Err: fmt::Display>>(
    origin: &Origin,
    field: &str,
    text: &str,
) -> Result<T, ConfigError> {
    text.parse().map_err(|e: T::Err| ConfigError::new(&origin.to_string(), field, e))
}
