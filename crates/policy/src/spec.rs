//! The run spec: what a run is, compiled. Every field has a value, and every value has been checked.

use std::path::PathBuf;

use crate::backend::{Backend, Wiring};
use crate::companion::Companion;
use crate::inbound::Inbound;
use crate::label::Label;
use crate::layer::Layers;
use crate::limits::{Limits, LimitsAsked};
use crate::llm::Spending;
use crate::organisation::OrganisationName;
use crate::place::{CopyIn, MountPoint, WorkspaceMode};
use crate::quantity::Span;
use crate::rules::Policy;
use crate::setup::Setup;

/// The longest a run may take unless a managed policy says otherwise. S1.34.
pub const TIMEOUT_CEILING: Span = Span::from_secs(1800);

/// The environment of the command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvSpec {
    /// Variables and their values.
    pub set: Vec<(String, String)>,
    /// Variables the caller's environment gives.
    pub pass: Vec<String>,
}

/// Whether the command gets a terminal of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminal {
    /// When standard input and output are one.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What a run is and what it may do.
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// What makes the sandbox.
    pub backend: Backend,
    /// How its network reaches the sidecar.
    pub wiring: Wiring,
    /// The image whose files are the root, by its name in the store.
    pub image: Option<String>,
    /// Where the command starts, inside; the workspace if not said.
    pub directory: Option<PathBuf>,
    /// The folder the command works in; the current one if not said.
    pub workspace: Option<PathBuf>,
    /// How that folder may be used.
    pub workspace_mode: WorkspaceMode,
    /// Protected paths of it that may be written after all.
    pub open: Vec<PathBuf>,
    /// When the run is ended.
    pub timeout: Span,
    /// Whether the command gets a terminal of its own.
    pub terminal: Terminal,
    /// What it may use up.
    pub limits: Limits,
    /// Which of them some layer asked for, so that a host that cannot hold one refuses the run.
    pub limits_asked: LimitsAsked,
    /// Whether some layer asked for room outside the workspace, which is always held, if not always in full.
    pub disk_asked: bool,
    /// Its environment.
    pub env: EnvSpec,
    /// What of the host is visible inside.
    pub mounts: Vec<MountPoint>,
    /// What of the host is copied in.
    pub copies: Vec<CopyIn>,
    /// Toolchains of the caller's home, by name.
    pub tools: Vec<String>,
    /// Programs whose configuration and caches enter from the caller's home, by name.
    pub builtin_tools: Vec<String>,
    /// The organisation whose credentials it uses, and no others; those of the person if not said. S1.27
    pub organisation: Option<OrganisationName>,
    /// Words of the person's own by which it is found again.
    pub labels: Vec<Label>,
    /// What it may spend on models.
    pub spending: Spending,
    /// Where requests may go.
    pub policy: Policy,
    /// What is run in the sandbox before the command, in order.
    pub setup: Vec<Setup>,
    /// Services beside the command, in the order in which they are started.
    pub companions: Vec<Companion>,
    /// Ports of the command's that may be reached from outside.
    pub inbound: Vec<Inbound>,
    /// What was changed on the way from the wish to the spec, each a sentence for the person.
    pub notices: Vec<String>,
    /// What all of this was compiled from, for a sidecar that compiles it anew elsewhere.
    pub layers: Layers,
}
