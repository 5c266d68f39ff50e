//! Values that may be written in more than one way.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A number that may be written bare or as text.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(untagged)]
pub enum Number {
    /// `2`
    Whole(u32),
    /// `0.5`
    Part(f64),
    /// `"0.5"`
    Text(String),
}

impl Number {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Whole(n) => n.to_string(),
            Self::Part(n) => n.to_string(),
            Self::Text(t) => t.clone(),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
pub(crate) fn is_false(value: &bool) -> bool {
    !value
}

/// A value, or a list of them.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    /// One.
    One(T),
    /// A list.
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    /// All of them.
    pub fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}
