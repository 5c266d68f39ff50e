//! The steps of a plan. Each has a text by which an error names it.

use std::fmt;
use std::path::{Path, PathBuf};

use policy::{ByteSize, MountMode, WorkspaceMode};

use crate::further_authorities::FurtherAuthorities;

/// A host path that becomes visible inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visible {
    /// The path of the host, opened without following links.
    pub source: PathBuf,
    /// The place inside.
    pub target: PathBuf,
    /// Whether it is writable.
    pub mode: MountMode,
}

/// A file of the sandbox's own. Its content was prepared outside and is no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateFile {
    /// Its path inside. In the additions to a plan it is relative to the home.
    pub path: PathBuf,
    /// Its content.
    pub content: Vec<u8>,
    /// Its mode, chmod(2).
    pub mode: u32,
}

/// A cache of the caller, to which the command's writes do not go through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// The directory of the host.
    pub source: PathBuf,
    /// The place inside, relative to the home.
    pub target: PathBuf,
}

/// One step in making a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Opens all sources, before anything is covered.
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
        /// The directory on disk for writes, if memory cannot take them.
        written: Option<PathBuf>,
    },
    /// Shows a system directory or file of the host, read-only.
    ShowSystem(PathBuf),
    /// Repeats a link of the host.
    Link {
        /// Its path.
        path: PathBuf,
        /// Where it leads.
        to: PathBuf,
    },
    /// Makes a private directory.
    Directory(PathBuf, u32),
    /// Gives a directory of an image to the command, and makes it if it does not exist.
    Volume(PathBuf),
    /// The same for the home of the command, unless the image has there what is no directory.
    Home(PathBuf),
    /// Lets the command into a directory of an image that was made for root.
    LetInto(PathBuf),
    /// Makes a directory of an image writable for everybody, like `/tmp`.
    Everybodys(PathBuf),
    /// Makes the network of the run at the engine.
    RunNetwork,
    /// Makes the sidecar's container, which is on that network and has access to the outside.
    SidecarContainer,
    /// Makes the agent's container from an image, on that network alone.
    AgentContainer(String),
    /// Makes a private directory in memory, for this many octets and files.
    PrivateDirectory {
        /// Its path.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// Octets.
        size: ByteSize,
        /// Files and directories.
        inodes: u64,
    },
    /// Makes a directory of the sandbox's own in place of whatever an image has there.
    OwnDirectory(PathBuf, u32),
    /// Shows `/etc` read-only, with files of ours over it.
    ShowEtc,
    /// Writes the few files of an image's `/etc` that must describe the sandbox.
    WriteEtc,
    /// Reads the host's CA bundle, and prepares it to take further authorities.
    ReadAuthorities(PathBuf),
    /// Makes programs trust further authorities beside those of this bundle of the host, or of the image's.
    TrustAuthorities(Option<PathBuf>, FurtherAuthorities),
    /// Writes the CA bundle with further authorities to a directory of the run, for a command that sees the host's files.
    WriteAuthorities {
        /// The host's bundle.
        bundle: Option<PathBuf>,
        /// What it has not.
        further: FurtherAuthorities,
        /// The directory.
        directory: PathBuf,
    },
    /// Mounts `/proc` of the sandbox's pid namespace.
    MountProc,
    /// Makes `/dev` with the harmless devices.
    MakeDevices,
    /// Shows the workspace.
    ShowWorkspace(PathBuf, WorkspaceMode),
    /// Shows the workspace, with writes kept in another directory.
    OverlayWorkspace {
        /// The workspace.
        workspace: PathBuf,
        /// The directory that has [`crate::changes::WRITTEN`] and [`crate::changes::WORK`].
        changes: PathBuf,
    },
    /// Shows a path of the host.
    Show(Visible),
    /// Shows a directory of the host, with writes over it kept until the end: in memory, up to this many octets, or on disk.
    ShowUnder {
        /// The directory of the host.
        source: PathBuf,
        /// The place inside.
        target: PathBuf,
        /// Octets.
        size: ByteSize,
        /// The directory on disk for writes, if memory cannot take them: it has [`crate::changes::WRITTEN`] and
        /// [`crate::changes::WORK`].
        written: Option<PathBuf>,
    },
    /// Writes a file of the sandbox's own.
    WriteFile(PrivateFile),
    /// Copies a path of the host into the sandbox.
    Copy {
        /// The path of the host.
        source: PathBuf,
        /// The place inside.
        target: PathBuf,
    },
    /// Makes the workspace's protected paths read-only.
    Protect,
    /// Makes the private root the root.
    EnterRoot,
    /// Sets the host name.
    SetHostname,
    /// Makes every address local, and redirects TCP.
    WireNetwork,
    /// Binds the listeners and hands them to the sidecar.
    HandOutListeners,
    /// Routes everything over the run's veth pair to the host's end, where the listeners are.
    JoinLink,
    /// Gives up identities and capabilities for good.
    DropPrivileges,
    /// Restricts file access by Landlock.
    Landlock,
    /// Installs the system-call filter.
    Seccomp,
}

/// What a step opens of the host to show it, with the mounts below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TreeSource<'a> {
    /// A directory of an image's layer.
    Layer(&'a Path),
    /// A path that the caller named.
    Path(&'a Path, MountMode),
    /// A directory of the run's own in the state directory, to which it writes.
    State(&'a Path),
}

impl Step {
    /// Returns what the step opens of the host, in the order in which it takes the opened trees.
    pub(crate) fn trees(&self) -> Vec<TreeSource<'_>> {
        use MountMode::{ReadOnly, ReadWrite};
        match self {
            Self::MountImage { layers, written, .. } => {
                layers.iter().chain(written).map(|layer| TreeSource::Layer(layer)).collect()
            }
            Self::OverlayWorkspace { workspace, changes } => {
                vec![TreeSource::Path(workspace, ReadWrite), TreeSource::State(changes)]
            }
            Self::ShowWorkspace(path, mode) => {
                let mode = if *mode == WorkspaceMode::ReadWrite { ReadWrite } else { ReadOnly };
                vec![TreeSource::Path(path, mode)]
            }
            Self::Show(Visible { source, mode, .. }) => vec![TreeSource::Path(source, *mode)],
            Self::Copy { source, .. } | Self::ShowUnder { source, .. } => {
                vec![TreeSource::Path(source, ReadOnly)]
            }
            Self::OpenSources
            | Self::MountRoot { .. }
            | Self::ShowSystem(_)
            | Self::Link { .. }
            | Self::Directory(..)
            | Self::Volume(_)
            | Self::Home(_)
            | Self::LetInto(_)
            | Self::Everybodys(_)
            | Self::RunNetwork
            | Self::SidecarContainer
            | Self::AgentContainer(_)
            | Self::PrivateDirectory { .. }
            | Self::OwnDirectory(..)
            | Self::ShowEtc
            | Self::WriteEtc
            | Self::ReadAuthorities(_)
            | Self::TrustAuthorities(..)
            | Self::WriteAuthorities { .. }
            | Self::MountProc
            | Self::MakeDevices
            | Self::WriteFile(_)
            | Self::Protect
            | Self::EnterRoot
            | Self::SetHostname
            | Self::WireNetwork
            | Self::HandOutListeners
            | Self::JoinLink
            | Self::DropPrivileges
            | Self::Landlock
            | Self::Seccomp => Vec::new(),
        }
    }

    /// Returns what programs inside come to trust by the step.
    pub(crate) fn further_authorities(&self) -> Option<&FurtherAuthorities> {
        match self {
            Self::TrustAuthorities(_, further) => Some(further),
            _ => None,
        }
    }

    /// Returns the place inside at which the step shows something that the policy names.
    pub(crate) fn named_place(&self) -> Option<&Path> {
        match self {
            Self::ShowWorkspace(path, _)
            | Self::OverlayWorkspace { workspace: path, .. }
            | Self::Copy { target: path, .. }
            | Self::Show(Visible { target: path, .. }) => Some(path),
            _ => None,
        }
    }

    /// Returns the place inside that the step covers, if the user, or something they asked for, chose it.
    pub(crate) fn covers(&self) -> Option<&Path> {
        match self {
            Self::ShowWorkspace(path, _) | Self::OverlayWorkspace { workspace: path, .. } => Some(path),
            Self::Show(Visible { target, .. })
            | Self::ShowUnder { target, .. }
            | Self::Copy { target, .. } => Some(target),
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
            Self::Link { path, to } => write!(f, "link {} to {}", path.display(), to.display()),
            Self::Directory(path, mode) => write!(f, "make {} (mode {mode:o})", path.display()),
            Self::Volume(path) => write!(f, "give {} to the command", path.display()),
            Self::Home(path) => write!(f, "give {} to the command as its home", path.display()),
            Self::LetInto(path) => write!(f, "let the command into {}", path.display()),
            Self::Everybodys(path) => write!(f, "make {} (mode 1777)", path.display()),
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
            Self::TrustAuthorities(_, further) => write!(f, "trust {further}"),
            Self::WriteAuthorities { further, directory, .. } => {
                write!(f, "write {further} to {}", directory.display())
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
            Self::Show(Visible { source: path, target, mode }) => {
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
            Self::Copy { source, target } => write!(f, "copy {} to {}", source.display(), target.display()),
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
