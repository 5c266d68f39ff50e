//! The words that records have for what they are of and what came of it. A word is spelled here and nowhere else.

use std::fmt;

use policy::Plane;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The way in that a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryPlane {
    /// None: the sidecar writes it of the run.
    Gate,
    /// That of an exchange.
    Of(Plane),
}

/// What the sidecar writes of the run, beside exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateAction {
    /// The chain begins.
    Open,
    /// A companion has a chain of its own.
    Companion,
    /// The command holds a credential itself, in a variable.
    Expose,
    /// The chain ends.
    Close,
}

/// What came of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was let through.
    Allowed,
    /// It was refused.
    Denied,
    /// It was let through, and came to nothing.
    Failed,
}

/// A word of a record that is read: one of this version's, or as it stands another version's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word<T> {
    /// One that this version writes.
    Known(T),
    /// Any other.
    Other(String),
}

/// A closed set of words.
pub(super) trait Vocabulary: Copy {
    fn as_str(self) -> &'static str;

    /// What a word means, if it is one of them.
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
            Self::Close => "close",
        }
    }

    fn of(word: &str) -> Option<Self> {
        [Self::Open, Self::Companion, Self::Expose, Self::Close].into_iter().find(|it| it.as_str() == word)
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
