//! The words that records use for planes, actions and outcomes. Each word is spelled here and nowhere else.

use std::fmt;

use policy::Plane;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The plane of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryPlane {
    /// No plane: the sidecar records something of the run itself.
    Gate,
    /// The plane of an exchange.
    Of(Plane),
}

/// What the sidecar records of the run itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateAction {
    /// The chain begins.
    Open,
    /// A companion has a chain of its own.
    Companion,
    /// The command itself holds a credential, in a variable.
    Expose,
    /// Records were left out: the audit of this run is full.
    Omit,
    /// The chain ends.
    Close,
}

/// The outcome of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was allowed.
    Allowed,
    /// It was denied.
    Denied,
    /// It was allowed, and failed.
    Failed,
}

/// A word of a record that is read, which another version may have written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word<T> {
    /// A word that this version writes.
    Known(T),
    /// Any other word, as it is.
    Other(String),
}

/// A closed set of words.
pub(super) trait Vocabulary: Copy {
    fn as_str(self) -> &'static str;

    /// Parses a word of the set.
    fn of(word: &str) -> Option<Self>;
}

impl Vocabulary for EntryPlane {
    fn as_str(self) -> &'static str {
        match self {
            Self::Gate => "gate",
            Self::Of(plane) => plane.as_str(),
        }
    }

    fn of(word: &str) -> Option<Self> {
        let mut all = Plane::ALL.into_iter().map(Self::Of).chain([Self::Gate]);
        all.find(|plane| plane.as_str() == word)
    }
}

impl Vocabulary for GateAction {
    fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Companion => "companion",
            Self::Expose => "expose",
            Self::Omit => "omit",
            Self::Close => "close",
        }
    }

    fn of(word: &str) -> Option<Self> {
        let mut all = [Self::Open, Self::Companion, Self::Expose, Self::Omit, Self::Close].into_iter();
        all.find(|it| it.as_str() == word)
    }
}

impl Vocabulary for Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Failed => "failed",
        }
    }

    fn of(word: &str) -> Option<Self> {
        [Self::Allowed, Self::Denied, Self::Failed].into_iter().find(|it| it.as_str() == word)
    }
}

impl Serialize for EntryPlane {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de, T: Vocabulary> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        Ok(T::of(&word).map_or(Self::Other(word), Self::Known))
    }
}

impl<T: Vocabulary> fmt::Display for Word<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Known(known) => known.as_str(),
            Self::Other(word) => word,
        })
    }
}
