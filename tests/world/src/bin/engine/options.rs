//! The command line. It must not create or open anything.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::error::Error;

/// The daemon's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    /// The caller's.
    Here,
    /// An empty one, with a loopback device.
    Own,
}

/// The kind of engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Docker,
    /// Rootless, for an account with subordinate ids.
    DockerOf(Account),
    /// Root's.
    Podman,
    /// Rootless, as [`Kind::DockerOf`].
    PodmanOf(Account),
}

/// A user and a group, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Account {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// The parsed command line.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) kind: Kind,
    pub(crate) network: Network,
    pub(crate) archives: Vec<PathBuf>,
    /// The variable in which the command finds the engine's address.
    pub(crate) variable: OsString,
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
}

impl Options {
    /// Reads the arguments that follow the program's own name.
    pub(crate) fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<Self, Error> {
        let (mut kind, mut network, mut archives) = (Kind::Docker, Network::Own, Vec::new());
        let mut variable = OsString::from("DOCKER_HOST");
        loop {
            let Some(argument) = arguments.next() else {
                return Err(Error::Arguments("`--` and a command are missing".to_owned()));
            };
            match argument.to_str() {
                Some("--") => break,
                Some("--podman") => kind = Kind::Podman,
                Some(of @ ("--docker-of" | "--podman-of")) => {
                    let account = arguments.next().as_ref().and_then(|ids| Account::read(ids.to_str()?));
                    let Some(account) = account else {
                        return Err(Error::Arguments(format!("`{of}` needs USER:GROUP, both numbers")));
                    };
                    kind =
                        if of == "--docker-of" { Kind::DockerOf(account) } else { Kind::PodmanOf(account) };
                }
                Some("--here") => network = Network::Here,
                Some("--as") => match arguments.next() {
                    Some(name) => variable = name,
                    None => return Err(Error::Arguments("`--as` needs the name of a variable".to_owned())),
                },
                Some("--archive") => match arguments.next() {
                    Some(path) => archives.push(PathBuf::from(path)),
                    None => return Err(Error::Arguments("`--archive` needs a path".to_owned())),
                },
                _ => return Err(Error::Arguments(format!("`{}` is unknown", argument.display()))),
            }
        }
        let program = arguments.next().ok_or_else(|| Error::Arguments("a command is missing".to_owned()))?;
        Ok(Self { kind, network, archives, variable, program, arguments: arguments.collect() })
    }
}

impl Kind {
    pub(crate) fn is_docker(self) -> bool {
        matches!(self, Self::Docker | Self::DockerOf(_))
    }

    /// The account of a rootless engine.
    pub(crate) fn account(self) -> Option<Account> {
        match self {
            Self::DockerOf(account) | Self::PodmanOf(account) => Some(account),
            Self::Docker | Self::Podman => None,
        }
    }
}

impl Account {
    fn read(ids: &str) -> Option<Self> {
        let (user, group) = ids.split_once(':')?;
        Some(Self { user: user.parse().ok()?, group: group.parse().ok()? })
    }
}
