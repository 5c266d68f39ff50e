//! The brief: what the shim tells the agent's container to do, sent as JSON in its first frames.

use std::path::PathBuf;

use policy::{MountMode, WorkspaceMode};
use serde::{Deserialize, Serialize};

use super::tool_files::ToolFiles;
use super::{limit_check, overlay, overlay_check};
use crate::launch::{Launch, TerminalSize};
use crate::plan::Plan;
use crate::step::{Step, Visible};

/// What the agent's container is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Brief {
    pub(super) launch: Launch,
    /// The size of the command's terminal, if it gets one of its own.
    pub(super) terminal: Option<TerminalSize>,
    /// The bind mounts the engine was asked for, and the files they must be: the engine looks a path up later than the
    /// shim's parent did.
    pub(super) shown: Vec<Shown>,
    /// Copies: the place where the engine mounts the source, and the target.
    pub(super) copies: Vec<(PathBuf, PathBuf)>,
    /// The run's private directories, and their modes.
    pub(super) directories: Vec<(PathBuf, u32)>,
    /// The overlays that keep what is written apart.
    pub(super) overlays: Vec<overlay_check::OverlayRequest>,
    /// Files and links of the home.
    pub(super) brought: ToolFiles,
    /// The trees the command may write.
    pub(super) writable: Vec<PathBuf>,
    /// The certificate of the run's authority, if the sidecar terminates TLS.
    pub(super) authority: Option<String>,
    /// Whether the container, once it has reported its end, waits until the shim lets it go.
    pub(super) lingers: bool,
    /// The limits the engine was asked for.
    pub(super) limits: Option<limit_check::LimitRequest>,
    /// Notices about what is weaker than planned.
    pub(super) notices: Vec<String>,
}

/// A path in the container, and the file it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shown {
    pub(super) target: PathBuf,
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// Returns the private directories of a plan, and their modes.
pub(super) fn directories(plan: &Plan) -> Vec<(PathBuf, u32)> {
    let directory = |step: &Step| match step {
        Step::PrivateDirectory { path, mode, .. } => Some((path.clone(), *mode)),
        _ => None,
    };
    plan.steps.iter().filter_map(directory).collect()
}

/// Returns the trees in which the command of a plan may write.
pub(super) fn writable(plan: &Plan) -> Vec<PathBuf> {
    let places = plan.steps.iter().filter_map(|step| match step {
        Step::PrivateDirectory { path, .. } | Step::ShowWorkspace(path, WorkspaceMode::ReadWrite) => {
            Some(path)
        }
        Step::Show(Visible { target, mode: MountMode::ReadWrite, .. }) | Step::Copy { target, .. } => {
            Some(target)
        }
        _ => None,
    });
    places.cloned().chain(overlay::overlays(plan).map(|overlay| overlay.place())).collect()
}
