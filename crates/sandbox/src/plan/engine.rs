//! A container engine and its image, as far as a plan depends on them.

use std::path::{Path, PathBuf};

use policy::{Inbound, Port};
use serde::{Deserialize, Serialize};

use crate::caller::Caller;
use crate::error::Error;

/// The default socket of an engine.
pub(crate) const SOCKET: &str = "/var/run/docker.sock";

/// Characters with a meaning in mount options: to the kernel, to an engine, or to mount(8).
const NOT_IN_OPTIONS: &[char] = &[',', ':', '\\', '"'];

/// Characters that end or quote a value of a mount at Podman. It joins the values to one line of comma-separated ones, RFC 4180.
const NOT_IN_VALUES: &[char] = &[',', '"'];

/// The longest mount options. The kernel takes a page, mount(2).
const LONGEST: usize = 4000;

/// An engine and the image that a run uses there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EngineRun {
    /// The engine.
    pub at: EngineAt,
    /// The image's name at the engine.
    pub image: String,
    /// The image's configuration.
    pub config: EngineImage,
    /// The workspace's owner: user and group.
    pub owner: (u32, u32),
    /// The most sidecars that wait at the engine for later runs. With 0, this run does not take one either.
    pub pool: usize,
    /// The ports that show a companion's health, if it has no health command.
    #[serde(skip)]
    pub ports: Vec<Port>,
    /// The ports of this machine that the engine publishes, each on the same port of the sidecar's container.
    #[serde(skip)]
    pub published: Vec<Inbound>,
    /// The caller's folder in which runs take slots at engines.
    #[serde(skip)]
    pub slots: PathBuf,
}

/// An engine: its socket, version and kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineAt {
    /// The socket.
    pub socket: PathBuf,
    /// The minor version of the API in use.
    pub minor_version: usize,
    /// Whether it is rootless: outside its containers, everything it runs has its user's id or one of their subordinate ids.
    pub rootless: bool,
    /// The user and group of the engine itself, if it is rootless.
    pub user: (u32, u32),
    /// Which engine it is.
    pub kind: EngineKind,
}

impl EngineAt {
    /// Whether the engine itself publishes declared ports. Podman would forward anybody on its other networks as if they were this machine,
    /// even to a port that is for this machine alone, so there a process of ours opens the ports.
    #[must_use]
    pub fn publishes(&self) -> bool {
        self.kind == EngineKind::Docker
    }

    /// Whether the engine maps its own user to a user other than root inside: rootless Podman.
    pub(crate) fn keeps_user(&self) -> bool {
        self.kind == EngineKind::Podman && self.rootless
    }

    /// Whether the engine's user, and so the command, is root inside: rootless Docker.
    pub(crate) fn makes_user_root(&self) -> bool {
        self.rootless && !self.keeps_user()
    }

    /// Whether sidecars can wait at the engine. Not at rootless Podman: a sidecar from the pool cannot resolve names there.
    pub(crate) fn lends_sidecars(&self) -> bool {
        self.kind == EngineKind::Docker || !self.rootless
    }
}

/// An engine, by who makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EngineKind {
    /// Docker, or an engine that cannot be told from it.
    Docker,
    /// Podman's service.
    Podman,
}

impl EngineKind {
    /// Returns the name as its makers write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
        }
    }
}

/// The configuration of an engine's image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineImage {
    /// Its id at the engine: the digest of its configuration.
    pub id: String,
    /// Its variables.
    pub environment: Vec<(String, String)>,
    /// The entry point, whose argument the command is.
    pub entrypoint: Vec<String>,
    /// The default command.
    pub command: Vec<String>,
    /// The directory that the command starts in.
    pub directory: Option<String>,
    /// The user as the image states it: `USER`, `UID`, `USER:GROUP` or `UID:GID`; empty for root.
    pub user: String,
    /// The user's and group's ids, if the image states numbers or they were looked up.
    pub ids: Option<(u32, u32)>,
    /// The directories that it declares as volumes, which are to be writable.
    pub volumes: Vec<PathBuf>,
    /// Where these lie once its links are followed, if that was looked up.
    pub linked: Vec<PathBuf>,
    /// The signal that ends its command.
    pub stop_signal: Option<String>,
}

impl EngineImage {
    /// Whether it names a user, other than root, by a name that only its own files resolve.
    #[must_use]
    pub fn names_account(&self) -> bool {
        self.ids.is_none() && !matches!(self.user.split(':').next(), None | Some("" | "0" | "root"))
    }

    /// Returns the user and group that it names, if they are known and not root, and never root's group.
    pub(crate) fn account(&self) -> Option<(u32, u32)> {
        let (uid, gid) = self.ids.filter(|(uid, _)| *uid != 0)?;
        Some((uid, never_root(gid, uid)))
    }
}

/// Replaces the group of root by the user's number: what that group may read or write on this machine is not for a command.
pub(super) fn never_root(gid: u32, uid: u32) -> u32 {
    if gid == 0 { uid } else { gid }
}

/// Returns the socket of the caller's engine. It must be on this machine: an engine looks up mounts by path, so one elsewhere would show
/// something else.
pub(crate) fn socket(caller: &Caller) -> Result<PathBuf, Error> {
    match caller.variable("DOCKER_HOST").filter(|host| !host.is_empty()) {
        None => Ok(SOCKET.into()),
        Some(host) => match host.strip_prefix("unix://").filter(|path| path.starts_with('/')) {
            Some(path) => Ok(path.into()),
            None => Err(Error::Impossible {
                what: format!(
                    "DOCKER_HOST is `{host}`, and only an engine on this machine can show a workspace"
                ),
                remedy: "name its socket: DOCKER_HOST=unix:///var/run/docker.sock".into(),
            }),
        },
    }
}

/// Returns the reason why an engine cannot overlay a folder, and a remedy, if it cannot.
pub(crate) fn refusal(folders: [&Path; 2]) -> Option<(String, &'static str)> {
    let unfit = folders.into_iter().find(|path| !fits(path))?;
    let why = format!("`{}` cannot be said in the options of a mount", unfit.display());
    Some((why, "it takes a path without `,`, `:`, `\\`, `\"` and control characters, or --backend container"))
}

/// Refuses an image with a volume that an engine could read as options of a mount, which the image would then have chosen.
pub(crate) fn refuse_unfit_volumes(volumes: &[PathBuf]) -> Result<(), Error> {
    match volumes.iter().find(|volume| !fits(volume)) {
        None => Ok(()),
        Some(volume) => Err(Error::Refused {
            what: format!(
                "the image declares a volume at `{}`, which cannot be said in the options of a mount",
                volume.to_string_lossy().escape_debug()
            ),
            remedy: Some("use another image".into()),
        }),
    }
}

/// Whether a path can be used in mount options without a special meaning.
fn fits(path: &Path) -> bool {
    let plain = |text: &str| !text.contains(NOT_IN_OPTIONS) && !text.contains(char::is_control);
    path.to_str().is_some_and(|text| plain(text) && text.len() <= LONGEST / 4)
}

/// Whether Podman takes a text as the one value of a mount that it is. In any other it would find options that nobody declared.
pub(crate) fn is_one_value(text: &str) -> bool {
    !text.contains(NOT_IN_VALUES) && !text.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_a_mount_is_one_value() {
        for text in ["/x/w,U=true,source=/x/victim:c", "q\"q", "/a\nb", "/a\rb"] {
            assert!(!is_one_value(text), "{text}");
        }
        for text in ["/a b", "/a:b", "/a\\b", "/ä", "/it's", "/a=b"] {
            assert!(is_one_value(text), "{text}");
        }
    }

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
