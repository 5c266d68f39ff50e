//! The backend that makes a sandbox, and the wiring between its network and the sidecar, with their names in policies and
//! records.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::choice::{self, Choice};

/// The mechanism that makes the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Namespaces, seccomp, Landlock and cgroups of this kernel.
    Linux,
    /// As `Linux`, with an image as the root file system.
    Container,
    /// A container of an engine, with a second container for its sidecar.
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

/// How the network of a `linux` or `container` sandbox reaches its sidecar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wiring {
    /// Inside, every address is local and all TCP goes to one port. There is no link, and no root is needed.
    #[default]
    Redirect,
    /// A veth pair whose host end leads to the sidecar and nowhere else. S2.11
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
