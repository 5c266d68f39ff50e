//! The steps of a plan: what is done to make a sandbox, each with the words by which an error names it.

use std::fmt;
use std::path::{Path, PathBuf};

use policy::{ByteSize, MountMode, WorkspaceMode};

/// A host path that becomes visible inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visible {
    /// What is shown.
    pub source: Source,
    /// Where it is shown.
    pub target: PathBuf,
    /// How it may be used.
    pub mode: MountMode,
}

/// Where something visible comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A path of the host, opened without following links.
    Host(PathBuf),
}

/// A file of the sandbox's own. What it holds was prepared outside and is no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateFile {
    /// Where it lies inside; among the additions to a plan, from the home.
    pub path: PathBuf,
    /// What it holds.
    pub content: Vec<u8>,
    /// Who may use it, as in chmod(2).
    pub mode: u32,
}

/// A cache of the caller's, which the command may write over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// The directory of the host.
    pub source: PathBuf,
    /// Where it is shown, from the home inside.
    pub target: PathBuf,
}

/// One step in the making of a `linux` sandbox, in the order of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Opens everything that is shown, before anything is covered.
    OpenSources,
    /// Mounts the private root, with room for this many octets and files.
    MountRoot {
        /// Octets.
        size: ByteSize,
        /// Files and directories.
        inodes: u64,
    },
    /// Mounts the layers of an image under a private one, with room for this many octets and files.
    MountImage {
        /// The directories of the layers, bottom first.
        layers: Vec<PathBuf>,
        /// Octets.
        size: ByteSize,
        /// Files and directories.
        inodes: u64,
        /// The directory on disk that takes what is written, where memory cannot.
        written: Option<PathBuf>,
    },
    /// Shows a system directory of the host, read-only.
    ShowSystem(PathBuf),
    /// Repeats a link of the host's root.
    Link(PathBuf, PathBuf),
    /// Makes a private directory.
    Directory(PathBuf, u32),
    /// Gives a directory of an image to the command, made if it is not there.
    Volume(PathBuf),
    /// Makes the network of the run at the engine.
    RunNetwork,
    /// Makes the sidecar's container, which is on that network and reaches the outside.
    SidecarContainer,
    /// Makes the agent's container of an image, which is on that network alone.
    AgentContainer(String),
    /// Makes a private directory in memory, for this many octets and files.
    PrivateDirectory {
        /// Where.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// Octets.
        size: ByteSize,
        /// Files and directories.
        inodes: u64,
    },
    /// Makes a directory of the sandbox's own in the place of whatever an image has there.
    OwnDirectory(PathBuf, u32),
    /// Shows `/etc` read-only, with files of ours over it.
    ShowEtc,
    /// Writes the few files of an image's `/etc` that must speak of the sandbox.
    WriteEtc,
    /// Reads whom the host trusts, and makes it ready for one more.
    ReadAuthorities(PathBuf),
    /// Lets programs trust the run's authority, beside those that the host trusts.
    TrustAuthority(Option<PathBuf>),
    /// The same where the command sees this machine's files: writes what trusts it to a directory of the run's own.
    WriteAuthority {
        /// The host's bundle.
        bundle: Option<PathBuf>,
        /// The directory.
        directory: PathBuf,
    },
    /// Mounts the process file system of the sandbox's own processes.
    MountProc,
    /// Makes `/dev` with the harmless devices.
    MakeDevices,
    /// Shows the workspace.
    ShowWorkspace(PathBuf, WorkspaceMode),
    /// Shows the workspace, with what is written kept in another directory.
    OverlayWorkspace {
        /// The workspace.
        workspace: PathBuf,
        /// The directory that has [`crate::changes::WRITTEN`] and [`crate::changes::WORK`].
        changes: PathBuf,
    },
    /// Shows a path of the host.
    Show(Visible),
    /// Shows a directory of the host with what is written over it kept until the end: in memory, which has room for this many
    /// octets, or on disk.
    ShowUnder {
        /// The directory of the host.
        source: PathBuf,
        /// Where it is shown.
        target: PathBuf,
        /// Octets.
        size: ByteSize,
        /// The directory on disk that takes what is written, where memory cannot: with [`crate::changes::WRITTEN`] and
        /// [`crate::changes::WORK`].
        written: Option<PathBuf>,
    },
    /// Writes a file of the sandbox's own.
    WriteFile(PrivateFile),
    /// Copies a path of the host.
    Copy(PathBuf, PathBuf),
    /// Makes what the host would later execute or trust read-only.
    Protect,
    /// Makes the private root the root.
    EnterRoot,
    /// Gives the host its name.
    SetHostname,
    /// Makes every address local, and redirects TCP.
    WireNetwork,
    /// Binds the listeners and hands them to the sidecar.
    HandOutListeners,
    /// Leads everything over a link of the run's own to the host's end, where the listeners are.
    JoinLink,
    /// Gives up identities and capabilities for good.
    DropPrivileges,
    /// Restricts file access by Landlock.
    Landlock,
    /// Installs the system-call filter.
    Seccomp,
}

impl Step {
    /// The place inside that this covers, of those that a person or what they asked for has chosen.
    pub(crate) fn covers(&self) -> Option<&Path> {
        match self {
            Self::ShowWorkspace(path, _) | Self::OverlayWorkspace { workspace: path, .. } => Some(path),
            Self::Show(Visible { target, .. }) | Self::ShowUnder { target, .. } | Self::Copy(_, target) => {
                Some(target)
            }
            Self::WriteFile(file) => Some(&file.path),
            _ => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpenSources => f.write_str("open what the sandbox is shown"),
            Self::MountRoot { size, inodes } => write!(f, "mount the private root ({size}, {inodes} files)"),
            Self::MountImage { layers, size, inodes, .. } => {
                write!(f, "mount the image ({} layers) under room for {size}, {inodes} files", layers.len())
            }
            Self::ShowSystem(path) => write!(f, "show {} read-only", path.display()),
            Self::Link(path, to) => write!(f, "link {} to {}", path.display(), to.display()),
            Self::Directory(path, mode) => write!(f, "make {} (mode {mode:o})", path.display()),
            Self::Volume(path) => write!(f, "give {} to the command", path.display()),
            Self::RunNetwork => f.write_str("make the run's network, which leads nowhere"),
            Self::SidecarContainer => f.write_str("make the sidecar's container"),
            Self::AgentContainer(image) => write!(f, "make the agent's container of {image}, read-only"),
            Self::PrivateDirectory { path, mode, size, inodes } => {
                write!(f, "make {} (mode {mode:o}, {size}, {inodes} files)", path.display())
            }
            Self::OwnDirectory(path, mode) => write!(f, "make {} anew (mode {mode:o})", path.display()),
            Self::ShowEtc => {
                f.write_str("show /etc read-only, with its own hosts, resolv.conf, passwd and group")
            }
            Self::WriteEtc => f.write_str("write hosts, resolv.conf, passwd and group"),
            Self::ReadAuthorities(bundle) => write!(f, "read whom {} trusts", bundle.display()),
            Self::TrustAuthority(_) => f.write_str("trust the run's own authority"),
            Self::WriteAuthority { directory, .. } => {
                write!(f, "write the run's own authority to {}", directory.display())
            }
            Self::MountProc => f.write_str("mount /proc"),
            Self::MakeDevices => f.write_str("make /dev"),
            Self::ShowWorkspace(path, WorkspaceMode::ReadWrite) => {
                write!(f, "show the workspace {} for reading and writing", path.display())
            }
            Self::OverlayWorkspace { workspace, .. } => {
                write!(f, "show the workspace {}, with what is written kept apart", workspace.display())
            }
            Self::ShowWorkspace(path, WorkspaceMode::ReadOnly | WorkspaceMode::Overlay) => {
                write!(f, "show the workspace {} read-only", path.display())
            }
            Self::Show(Visible { source: Source::Host(path), target, mode }) => {
                let how = if *mode == MountMode::ReadOnly { "read-only" } else { "for reading and writing" };
                write!(f, "show {} at {} {how}", path.display(), target.display())
            }
            Self::ShowUnder { source, target, size, written } => {
                let (source, target) = (source.display(), target.display());
                match written {
                    Some(_) => write!(
                        f,
                        "show {source} at {target}, with what is written kept on disk until the end"
                    ),
                    None => {
                        write!(f, "show {source} at {target}, with what is written kept in memory ({size})")
                    }
                }
            }
            Self::WriteFile(file) => write!(f, "write {} (mode {:o})", file.path.display(), file.mode),
            Self::Copy(from, to) => write!(f, "copy {} to {}", from.display(), to.display()),
            Self::Protect => f.write_str("protect what the host would execute or trust"),
            Self::EnterRoot => f.write_str("enter the private root"),
            Self::SetHostname => f.write_str("set the host name"),
            Self::WireNetwork => f.write_str("redirect the network to one port"),
            Self::HandOutListeners => f.write_str("hand the listeners to the sidecar"),
            Self::JoinLink => f.write_str("lead the network over a link to the sidecar"),
            Self::DropPrivileges => f.write_str("drop privileges"),
            Self::Landlock => f.write_str("restrict files by Landlock"),
            Self::Seccomp => f.write_str("install the system-call filter"),
        }
    }
}
