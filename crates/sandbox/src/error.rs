//! What can go wrong before the command runs, a variant an operation.

use std::io;
use std::path::PathBuf;

use crate::failure::{Failure, Need};

/// An error of this crate: each reads on after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A plan was asked for that this host cannot carry out.
    #[error("plan the run: {what}")]
    Refused {
        /// What is not there.
        what: String,
        /// What would help.
        remedy: Option<String>,
    },
    /// Something was asked for by a name that nothing has.
    #[error("plan the run: {what}")]
    Unknown {
        /// What there is not.
        what: String,
        /// What there is.
        remedy: String,
    },
    /// A path of the host that should enter the sandbox cannot.
    #[error("use `{path}` of the host: {why}")]
    Source {
        /// The path as it was resolved.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A step of the plan failed in the sandbox's own process.
    #[error("{}: {}", .0.step, .0.cause)]
    Step(Failure),
    /// The command could not be executed.
    #[error("execute `{}`: {source}", program.escape_debug())]
    Execute {
        /// The command as it was given.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A control group could not be made.
    #[error("make the control group: {0}")]
    Cgroup(#[source] io::Error),
    /// The link to a sandbox could not be made.
    #[error("wire the sandbox by `veth`: {what}: {source}")]
    Link {
        /// What of it.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The sidecar could not be started, for a reason that only whoever starts it knows.
    #[error("start the sidecar: {0}")]
    Sidecar(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A process of ours could not be started.
    #[error("start {what}: {source}")]
    Start {
        /// Which one.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The conversation with a process of ours broke off.
    #[error("talk to {whom}: {source}")]
    Handshake {
        /// With whom.
        whom: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// What the person can do about it, where we know.
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
                EPERM | EACCES => Some(
                    "allow unprivileged user namespaces: `sysctl kernel.unprivileged_userns_clone=1 \
                     kernel.apparmor_restrict_unprivileged_userns=0`; `lockgate doctor` tells what is missing",
                ),
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

/// What could not be started where it was a sandbox's init.
pub(crate) const THE_SANDBOX: &str = "the sandbox";

/// What helps where a filter knows no namespaces.
pub(crate) const NONE_INSIDE: &str = "inside a sandbox, Lockgate's or a container's, no other can be made: run the command as it is, for it \
                                      is shut in there already; or run this outside";

/// Why a kernel makes no process in namespaces of its own, clone(2): a filter forbids it, so do its settings, or there are too many.
pub(crate) const ENOSYS: i32 = 38;
const EPERM: i32 = 1;
const EACCES: i32 = 13;
const ENOSPC: i32 = 28;
const EUSERS: i32 = 87;
