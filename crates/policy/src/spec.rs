//! The run spec: the compiled configuration of a run. Every field has a value, and every value has been checked.

use std::path::PathBuf;

use crate::backend::{Backend, Wiring};
use crate::choice::Choice;
use crate::companion::Companion;
use crate::inbound::Inbound;
use crate::label::Label;
use crate::layer::Layers;
use crate::limits::{Limits, LimitsAsked};
use crate::llm::{Budget, Spending};
use crate::mounts::{CopyIn, MountPoint, WorkspaceMode};
use crate::name_network::NameNetwork;
use crate::organisation::OrganisationName;
use crate::quantity::Span;
use crate::rules::Policy;
use crate::setup::Setup;
use crate::timeout::TimeoutCeiling;
use crate::written::{
    BudgetConfig, EgressConfig, LimitsConfig, LlmConfig, Number, RunConfig, TerminalConfig, WorkspaceConfig,
    WorkspaceTable,
};

/// The environment of the command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvSpec {
    /// Variables and their values.
    pub set: Vec<(String, String)>,
    /// Variables that are passed from the caller's environment.
    pub pass: Vec<String>,
}

/// When the command gets a terminal of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminal {
    /// If standard input and output are a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The compiled configuration of a run.
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// The backend that makes the sandbox.
    pub backend: Backend,
    /// How the sandbox's network reaches the sidecar.
    pub wiring: Wiring,
    /// The network out of which allowed names get their addresses inside.
    pub name_addresses: NameNetwork,
    /// The image that provides the root file system, by its name in the store.
    pub image: Option<String>,
    /// The working directory inside; `None` is the workspace.
    pub directory: Option<PathBuf>,
    /// The workspace folder; `None` is the current directory.
    pub workspace: Option<PathBuf>,
    /// How the workspace may be used.
    pub workspace_mode: WorkspaceMode,
    /// Protected paths of the workspace that may be written in this run.
    pub open: Vec<PathBuf>,
    /// The time after which the run is ended.
    pub timeout: Span,
    /// What allows it no more time, if it has all that it may have.
    pub timeout_ceiling: Option<TimeoutCeiling>,
    /// Whether the command gets a terminal of its own.
    pub terminal: Terminal,
    /// Its resource limits.
    pub limits: Limits,
    /// The limits that a layer set explicitly: a host that cannot enforce one of them refuses the run.
    pub limits_asked: LimitsAsked,
    /// Whether a layer set the disk limit explicitly. It is always enforced, though not everywhere in full.
    pub disk_asked: bool,
    /// The environment of the command.
    pub env: EnvSpec,
    /// Host paths that are visible inside.
    pub mounts: Vec<MountPoint>,
    /// Host paths that are copied in.
    pub copies: Vec<CopyIn>,
    /// Toolchains from the caller's home, by name.
    pub tools: Vec<String>,
    /// Programs whose configuration and caches enter from the caller's home, by name.
    pub builtin_tools: Vec<String>,
    /// The organisation whose credentials the run uses, and no others; `None` is the user's own. S1.27
    pub organisation: Option<OrganisationName>,
    /// The user's own labels, for finding the run again.
    pub labels: Vec<Label>,
    /// Its budget and the prices of models.
    pub spending: Spending,
    /// The egress policy.
    pub policy: Policy,
    /// The set-up commands, in order.
    pub setup: Vec<Setup>,
    /// The companions, in the order in which they are started.
    pub companions: Vec<Companion>,
    /// Ports of the command that may be reached from outside.
    pub inbound: Vec<Inbound>,
    /// Sentences for the user about values that compilation changed.
    pub notices: Vec<String>,
    /// The layers that this was compiled from, for a sidecar that compiles them again elsewhere.
    pub layers: Layers,
}

impl RunSpec {
    /// Takes back the network out of which names get their addresses, for a sidecar that answers for no name: there its hosts are hosts.
    pub fn answer_for_no_name(&mut self) {
        self.name_addresses = NameNetwork::default();
        self.policy.stand_ins = self.name_addresses;
    }

    /// Returns the fields that have a value in every run, and the budget that a managed layer may hold, as a file would say them.
    pub(crate) fn written(&self) -> RunConfig {
        let Limits { memory, cpus, pids, disk, enforcement } = &self.limits;
        let mode = Some(self.workspace_mode.as_str().to_owned());
        let Budget { requests, tokens, usd } = &self.spending.budget;
        let usd = usd.map(|usd| Number::Text(usd.written()));
        RunConfig {
            backend: Some(self.backend.to_string()),
            wiring: Some(self.wiring.to_string()),
            name_addresses: Some(self.name_addresses.to_string()),
            workspace: Some(WorkspaceConfig::Table(WorkspaceTable { path: None, mode, open: Vec::new() })),
            timeout: Some(self.timeout.to_string()),
            terminal: Some(match self.terminal {
                Terminal::Auto => TerminalConfig::Auto,
                Terminal::Always => TerminalConfig::Always,
                Terminal::Never => TerminalConfig::Never,
            }),
            limits: LimitsConfig {
                memory: Some(memory.to_string()),
                cpus: Some(cpus.written()),
                pids: Some(*pids),
                // It has no private directories, and refuses the field.
                disk: (self.backend != Backend::Process).then(|| disk.to_string()),
                enforce: Some(enforcement.as_str().to_owned()),
            },
            llm: LlmConfig {
                budget: BudgetConfig { requests: *requests, tokens: *tokens, usd },
                price: Vec::new(),
            },
            egress: EgressConfig {
                default: Some(self.policy.default),
                denied_status: Some(self.policy.denied_status),
                scrub: Some(self.policy.scrub),
                ..EgressConfig::default()
            },
            ..RunConfig::default()
        }
    }
}
