//! What makes a sandbox, and how its network reaches the sidecar: by the words that a policy and a record have for it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::choice::{self, Choice};

/// What makes the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Namespaces, seccomp, Landlock and cgroups of this kernel.
    Linux,
    /// The same, with an image as its root file system.
    Container,
    /// A container of an engine's, beside one for its sidecar.
    Docker,
    /// A plain child process: no isolation, only the sidecar.
    Process,
}

impl Choice for Backend {
    const ALL: &'static [Self] = &[Self::Linux, Self::Container, Self::Docker, Self::Process];
    const NOUN: Option<&'static str> = Some("backend");

    fn as_str(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Container => "container",
            Self::Docker => "docker",
            Self::Process => "process",
        }
    }

    fn read(word: &str) -> Option<Self> {
        // `LOCKGATE_SANDBOX` has a second word for it. S4.15
        if word == "none" { Some(Self::Process) } else { choice::find(word) }
    }
}

impl Serialize for Backend {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Backend {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        Self::read(&word).ok_or_else(|| de::Error::custom(choice::is_none::<Self>(&word)))
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How the network of a sandbox that this kernel makes reaches its sidecar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wiring {
    /// Inside, every address is local and all TCP goes to one port: there is no link, and it takes no root.
    #[default]
    Redirect,
    /// A pair of links, of which the host's end leads to the sidecar and nowhere else. S2.11
    Veth,
}

impl Choice for Wiring {
    const ALL: &'static [Self] = &[Self::Redirect, Self::Veth];
    const NOUN: Option<&'static str> = Some("wiring");

    fn as_str(self) -> &'static str {
        match self {
            Self::Redirect => "redirect",
            Self::Veth => "veth",
        }
    }
}

impl fmt::Display for Wiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
