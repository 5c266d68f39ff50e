//! What a command is started with, and what is run before it.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use policy::{OnFailure, Setup};
use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// Where the command's standard streams lead.
#[derive(Debug)]
pub enum Stdio {
    /// To a terminal of its own, whose master side comes with [`Event::Terminal`].
    Terminal,
    /// To these descriptors.
    Descriptors([OwnedFd; 3]),
}

/// What a command is started with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Launch {
    /// The command and its arguments.
    pub(crate) command: Vec<OsString>,
    /// Where it starts.
    pub(crate) directory: PathBuf,
    /// Its environment.
    pub(crate) environment: Vec<(String, String)>,
    /// The command that tells whether it is healthy, where there is one.
    #[serde(default)]
    pub(crate) probe: Vec<OsString>,
    /// What is run before it.
    #[serde(default)]
    pub(crate) setup: Vec<SetUp>,
}

impl Launch {
    /// The command, as a plan has it.
    pub(crate) fn of(plan: &Plan, command: &[OsString]) -> Self {
        Self {
            command: command.to_vec(),
            directory: plan.directory.clone(),
            environment: plan.environment.clone(),
            probe: plan.probe.iter().map(OsString::from).collect(),
            setup: plan.setup.iter().map(SetUp::of).collect(),
        }
    }
}

/// A set-up command, as init is told of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SetUp {
    pub(crate) name: String,
    pub(crate) command: Vec<OsString>,
    pub(crate) on_failure: OnFailure,
    pub(crate) patience: Duration,
}

impl SetUp {
    pub(crate) fn of(setup: &Setup) -> Self {
        Self {
            name: setup.name(),
            command: setup.command.iter().map(OsString::from).collect(),
            on_failure: setup.on_failure,
            patience: setup.timeout.duration(),
        }
    }
}
