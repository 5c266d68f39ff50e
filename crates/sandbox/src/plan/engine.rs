//! An engine and the image that a run has there, as far as a plan depends on them.

use std::path::{Path, PathBuf};

use policy::{Inbound, Port};
use serde::{Deserialize, Serialize};

use crate::caller::Caller;
use crate::error::Error;

/// Where an engine's socket is if nobody says.
pub(crate) const SOCKET: &str = "/var/run/docker.sock";

/// What parts the options of a mount, or stands for something else in them: to the kernel, to an engine, to mount(8).
const NOT_IN_OPTIONS: &[char] = &[',', ':', '\\', '"'];

/// The longest options: the kernel takes a page, mount(2).
const LONGEST: usize = 4000;

/// What a run needs to know of an engine and the image it has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EngineRun {
    /// Where it is.
    pub at: EngineAt,
    /// The image's name there.
    pub image: String,
    /// What the image says of the command.
    pub config: EngineImage,
    /// Who the workspace belongs to: user and group.
    pub owner: (u32, u32),
    /// How many sidecars may wait there for later runs; with none, none of them is taken either.
    pub pool: usize,
    /// Of a companion whose health no command tells: the ports that tell it.
    #[serde(skip)]
    pub ports: Vec<Port>,
    /// The ports of this machine that it publishes, each on the same port of the sidecar's container.
    #[serde(skip)]
    pub published: Vec<Inbound>,
    /// The folder of the caller's own in which runs take slots at engines.
    #[serde(skip)]
    pub slots: PathBuf,
}

/// Where an engine is, and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineAt {
    /// Its socket.
    pub socket: PathBuf,
    /// The version of its API that is spoken.
    pub minor_version: usize,
    /// Whether it runs without root: outside of its containers all that it runs is its own user, or a subordinate id of theirs.
    pub rootless: bool,
    /// Who made it.
    pub maker: Maker,
}

impl EngineAt {
    /// Whether it opens declared ports itself. Podman's would pass on whoever reaches its other networks as if that were this machine,
    /// also to a port that is for this machine alone: so a process of ours opens them there.
    #[must_use]
    pub fn publishes(&self) -> bool {
        self.maker == Maker::Docker
    }

    /// Whether it makes its own user somebody else inside than root: Podman's, of somebody who is not root.
    pub(crate) fn keeps_user(&self) -> bool {
        self.maker == Maker::Podman && self.rootless
    }

    /// Whether its own user, and so the command, is root inside: Docker's, of somebody who is not root.
    pub(crate) fn makes_user_root(&self) -> bool {
        self.rootless && !self.keeps_user()
    }

    /// Whether sidecars wait there. At Podman's without root none do: one that comes out of the pool resolves no names.
    pub(crate) fn lends_sidecars(&self) -> bool {
        self.maker == Maker::Docker || !self.rootless
    }
}

/// Who made an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Maker {
    /// Docker, or one that is not known from it.
    Docker,
    /// Podman's service.
    Podman,
}

impl Maker {
    /// As its makers write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
        }
    }
}

/// What an image of the engine's says of the command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineImage {
    /// What the engine knows it by: the digest of its configuration.
    pub id: String,
    /// Its variables.
    pub environment: Vec<(String, String)>,
    /// What the command is an argument of.
    pub entrypoint: Vec<String>,
    /// What is run where nothing was said.
    pub command: Vec<String>,
    /// Where it starts.
    pub directory: Option<String>,
    /// Who it runs as, as it says: `USER`, `UID`, `USER:GROUP` or `UID:GID`; empty for root.
    pub user: String,
    /// The same as user and group, where that is said by numbers, or was looked up.
    pub ids: Option<(u32, u32)>,
    /// What of it is to be written to: the directories that it declares as volumes.
    pub volumes: Vec<PathBuf>,
    /// The signal by which it wants to be ended.
    pub stop_signal: Option<String>,
}

impl EngineImage {
    /// Whether it names a user by what its own files alone tell, and not root.
    #[must_use]
    pub fn names_account(&self) -> bool {
        self.ids.is_none() && !matches!(self.user.split(':').next(), None | Some("" | "0" | "root"))
    }

    /// The user and the group that it names, where that is known and not root. Nobody has root's group, and so it is one of the
    /// user's own number.
    pub(crate) fn account(&self) -> Option<(u32, u32)> {
        let (uid, gid) = self.ids.filter(|(uid, _)| *uid != 0)?;
        Some((uid, if gid == 0 { uid } else { gid }))
    }
}

/// Where the caller's engine is: a socket of this machine. What the engine is asked to show it looks up by path, so one
/// elsewhere would show something else.
pub(crate) fn socket(caller: &Caller) -> Result<PathBuf, Error> {
    match caller.variable("DOCKER_HOST").filter(|host| !host.is_empty()) {
        None => Ok(SOCKET.into()),
        Some(host) => match host.strip_prefix("unix://").filter(|path| path.starts_with('/')) {
            Some(path) => Ok(path.into()),
            None => Err(Error::Refused {
                what: format!(
                    "DOCKER_HOST is `{host}`, and only an engine on this machine can show a workspace"
                ),
                remedy: Some("name its socket: DOCKER_HOST=unix:///var/run/docker.sock".into()),
            }),
        },
    }
}

/// Why an engine cannot keep apart what is written in a folder, and what would help; nothing where it can.
pub(crate) fn refusal(folders: [&Path; 2]) -> Option<(String, &'static str)> {
    let unfit = folders.into_iter().find(|path| !fits(path))?;
    let why = format!("`{}` cannot be said in the options of a mount", unfit.display());
    Some((why, "it takes a path without `,`, `:`, `\\`, `\"` and control characters, or --backend container"))
}

/// Whether a path means itself in the options of a mount.
fn fits(path: &Path) -> bool {
    let plain = |text: &str| !text.contains(NOT_IN_OPTIONS) && !text.contains(char::is_control);
    path.to_str().is_some_and(|text| plain(text) && text.len() <= LONGEST / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_options_cannot_carry_is_refused_by_name() {
        for path in ["/a,b", "/a:b", "/a\\b", "/a\"b", "/a\nb"] {
            let (why, _) = refusal([Path::new("/w"), Path::new(path)]).unwrap();
            assert!(why.contains(path), "{why}");
        }
        let long = format!("/{}", "a".repeat(LONGEST / 4));
        assert!(refusal([Path::new(&long), Path::new("/w")]).is_some());
        for path in ["/a b", "/ä", "/it's", "/a=b"] {
            assert_eq!(refusal([Path::new(path), Path::new("/w")]), None);
        }
    }
}
