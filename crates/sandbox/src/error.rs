//! The errors of this crate, one variant for each failed operation.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::failure::Failure;
use crate::need::Need;
use crate::process_files;

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
    /// The spec asks for what cannot be, on whatever machine.
    #[error("plan the run: {what}")]
    Impossible {
        /// What was asked for, and why it cannot be.
        what: String,
        /// What to ask for instead.
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
    /// What is mounted below a host path cannot be told.
    #[error(
        "use `{path}` of the host: what is mounted below it cannot be told: /proc/self/mountinfo: {source}"
    )]
    Unlisted {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A host path cannot be opened now.
    #[error("use `{path}` of the host: {source}")]
    Open {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A host path that is open cannot be mounted. The kernel gives each such mount a namespace until it is attached, open_tree(2).
    #[error("use `{path}` of the host: it cannot be mounted: {source}")]
    Mount {
        /// The path as it was resolved.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file system does not map owners, mount_setattr(2), so root's runs, which have a user of their own, could not write there.
    #[error("use `{}` of the host: its file system{} cannot map owners to the run's own user", path.display(), or_below(below.as_deref()))]
    Unmappable {
        /// The path as it was resolved.
        path: PathBuf,
        /// The first mount below it, whose file system it may be.
        below: Option<PathBuf>,
    },
    /// The file system of the state directory does not map owners.
    #[error("use `{path}` of the state directory: its file system cannot map owners to the run's own user")]
    UnmappableState {
        /// The run's directory in it.
        path: PathBuf,
    },
    /// The file system of the image store does not map owners.
    #[error("use `{path}` of the image store: its file system cannot map owners to the run's own user")]
    UnmappableLayer {
        /// The layer in it.
        path: PathBuf,
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
    /// A path is, or leads through, a link, which may lead elsewhere at the next look. `real` is where it leads now.
    #[must_use]
    pub fn behind_link(path: &Path, real: Option<&Path>) -> Self {
        let real = real.map(|real| format!(": {}", real.display())).unwrap_or_default();
        let why = format!("it is, or leads through, a symbolic link; name the place the link leads to{real}");
        Self::Source { path: path.into(), why }
    }

    /// Tells of a directory of the run's own, which the caller chose by the state directory alone.
    pub(crate) fn of_the_state(self) -> Self {
        match self {
            Self::Unmappable { path, .. } => Self::UnmappableState { path },
            error => error,
        }
    }

    /// Tells of a layer, which the caller chose by the image store alone.
    pub(crate) fn of_the_store(self) -> Self {
        match self {
            Self::Unmappable { path, .. } => Self::UnmappableLayer { path },
            error => error,
        }
    }

    /// Returns what the user can do about it, if that is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        let text = match self {
            Self::Refused { remedy, .. } => remedy.as_deref(),
            Self::Step(Failure { need, .. }) => return need.map(Need::remedy),
            Self::Unknown { remedy, .. } | Self::Impossible { remedy, .. } => Some(remedy.as_str()),
            Self::Start { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                return Some(Need::ProcessFiles.remedy());
            }
            Self::Start { .. } if process_files::children_are_elsewhere() => {
                return Some(Need::OwnPidNamespace.remedy());
            }
            Self::Start { what: THE_SANDBOX, source } => {
                return Need::of_namespaces(source).map(Need::remedy);
            }
            Self::Start { source, .. } if Errno::from_io_error(source) == Some(Errno::NOSYS) => {
                return Some(Need::NewerKernel.remedy());
            }
            // What fork(2) says where one process more is one too many.
            Self::Start { source, .. } if source.kind() == io::ErrorKind::WouldBlock => {
                return Some(Need::MoreProcesses.remedy());
            }
            // cgroups(7): what mkdir(2) says where one more would be too many, or too deep.
            Self::Cgroup(source) if Errno::from_io_error(source) == Some(Errno::AGAIN) => Some(
                "allow more control groups: raise `cgroup.max.descendants` and `cgroup.max.depth` of your group or of one above it; or \
                 end other runs, which have one each",
            ),
            // openat2(2): a service of systemd's with `RestrictSUIDSGID=` has not got it either.
            Self::Open { source, .. } if Errno::from_io_error(source) == Some(Errno::NOSYS) => {
                return Some(Need::NewerKernel.remedy());
            }
            Self::Mount { source, .. } => return Need::of_mounts(source).map(Need::remedy),
            Self::Unmappable { .. } => Some(
                "use a folder on ext4, xfs or btrfs, in a container a volume that is on one; or show it read-only (the workspace by \
                 --workspace-mode ro); or have another user than root own it (chown), and start as that user",
            ),
            Self::UnmappableState { .. } => Some(
                "name a place on ext4, xfs or btrfs for it, in a container a volume that is on one: XDG_STATE_HOME=DIR",
            ),
            Self::UnmappableLayer { .. } => Some(
                "name a place on ext4, xfs or btrfs for images, in a container a volume that is on one, with XDG_DATA_HOME=DIR, and \
                 import or pull the image there",
            ),
            Self::Link { .. } => Some(
                "the kernel needs veth, nf_tables with nft_redir, nft_ct and nft_connlimit; or use --wiring redirect",
            ),
            _ => None,
        };
        text.map(str::to_owned)
    }
}

fn or_below(place: Option<&Path>) -> String {
    place.map(|place| format!(", or that of `{}` below it,", place.display())).unwrap_or_default()
}

/// The text for the start of a sandbox's init.
pub(crate) const THE_SANDBOX: &str = "the sandbox";
/// The text for the start of a plain command's supervisor.
pub(crate) const THE_SUPERVISOR: &str = "the command's supervisor";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_too_many_is_told_by_the_limit_of_their_number() {
        let remedy = |errno: Errno| Error::Start { what: "the sidecar", source: errno.into() }.remedy();
        assert!(remedy(Errno::AGAIN).unwrap().contains("ulimit -u"));
        assert_eq!(remedy(Errno::IO), None);
        assert_eq!(remedy(Errno::NOSYS), Some(Need::NewerKernel.remedy()));
    }

    #[test]
    fn one_control_group_too_many_is_told_by_the_limit_of_their_number() {
        let remedy = Error::Cgroup(Errno::AGAIN.into()).remedy().unwrap();
        assert!(remedy.contains("cgroup.max.descendants") && remedy.contains("cgroup.max.depth"), "{remedy}");
        assert_eq!(Error::Cgroup(Errno::IO.into()).remedy(), None);
    }
}
