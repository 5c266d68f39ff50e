//! The errors of this crate, one variant for each failed operation.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::failure::{Failure, Need};

/// An error before the command runs. Its text reads on after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The plan was refused: this host cannot carry it out.
    #[error("plan the run: {what}")]
    Refused {
        /// What was refused, and why.
        what: String,
        /// A remedy, if one is known.
        remedy: Option<String>,
    },
    /// A name in the spec is unknown.
    #[error("plan the run: {what}")]
    Unknown {
        /// The unknown name.
        what: String,
        /// The known names.
        remedy: String,
    },
    /// A host path cannot be shown in the sandbox.
    #[error("use `{path}` of the host: {why}")]
    Source {
        /// The path as it was resolved.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A step of the plan failed in the sandbox's own process.
    #[error("{}: {}", .0.step, .0.cause)]
    Step(Failure),
    /// The command could not be executed.
    #[error("execute `{}`: {source}", program.escape_debug())]
    Execute {
        /// The command as the caller gave it.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A control group could not be made.
    #[error("make the control group: {0}")]
    Cgroup(#[source] io::Error),
    /// The veth pair of a sandbox could not be made.
    #[error("wire the sandbox by `veth`: {what}: {source}")]
    Link {
        /// The operation that failed.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The sidecar could not be started; its caller knows the reason.
    #[error("start the sidecar: {0}")]
    Sidecar(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A process of ours could not be started.
    #[error("start {what}: {source}")]
    Start {
        /// The process.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The conversation with one of our own processes broke off.
    #[error("talk to {whom}: {source}")]
    Handshake {
        /// The process.
        whom: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// Returns what the user can do about it, if that is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        let text = match self {
            Self::Refused { remedy, .. } => remedy.as_deref(),
            Self::Step(Failure { need, .. }) => return need.map(Need::remedy),
            Self::Unknown { remedy, .. } => Some(remedy.as_str()),
            Self::Start { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("a run needs the process file system: `mount -t proc proc /proc`")
            }
            Self::Start { what: THE_SANDBOX, source } => match source.raw_os_error()? {
                ENOSYS => Some(NONE_INSIDE),
                EPERM | EACCES => return Some(Need::UserNamespaces.remedy()),
                ENOSPC | EUSERS => Some("allow more user namespaces: `sysctl user.max_user_namespaces`"),
                _ => None,
            },
            Self::Link { .. } => Some(
                "the kernel needs veth, nf_tables with nft_redir, nft_ct and nft_connlimit; or use --wiring redirect",
            ),
            _ => None,
        };
        text.map(str::to_owned)
    }
}

/// The text for the start of a sandbox's init.
pub(crate) const THE_SANDBOX: &str = "the sandbox";

/// The remedy if a system-call filter forbids namespaces.
pub(crate) const NONE_INSIDE: &str = "inside a sandbox, Lockgate's or a container's, no other can be made: run the command as it is, for it \
                                      is shut in there already; or run this outside";

/// `ENOSYS` of clone(2): a system-call filter forbids new namespaces.
pub(crate) const ENOSYS: i32 = Errno::NOSYS.raw_os_error();
const EPERM: i32 = Errno::PERM.raw_os_error();
const EACCES: i32 = Errno::ACCESS.raw_os_error();
const ENOSPC: i32 = Errno::NOSPC.raw_os_error();
const EUSERS: i32 = Errno::USERS.raw_os_error();
