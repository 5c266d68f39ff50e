//! What init starts: a command with its environment, and the set-up commands before it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use policy::{OnFailure, Setup};
use rustix::termios::Winsize;
use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// The standard streams of a command.
#[derive(Debug)]
pub enum Stdio {
    /// A terminal of its own, whose master side comes with [`Event::Terminal`].
    Terminal {
        /// The size that it has at first.
        size: TerminalSize,
        /// The standard error, if it is not the terminal as well.
        errors: Option<OwnedFd>,
    },
    /// These descriptors.
    Descriptors([OwnedFd; 3]),
}

impl Stdio {
    /// Returns the descriptors that the command gets.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let all = match self {
            Self::Terminal { errors, .. } => errors.as_slice(),
            Self::Descriptors(all) => all.as_slice(),
        };
        all.iter().map(AsFd::as_fd)
    }
}

/// The size of a terminal in characters; 0 is unknown.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct TerminalSize {
    /// How many lines it has.
    pub rows: u16,
    /// How many characters a line has.
    pub columns: u16,
}

impl TerminalSize {
    /// Gives this size to a terminal.
    pub(crate) fn set(self, terminal: impl AsFd) -> io::Result<()> {
        let size = Winsize { ws_row: self.rows, ws_col: self.columns, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(rustix::termios::tcsetwinsize(terminal, size)?)
    }
}

/// A command to start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Launch {
    /// The command and its arguments.
    pub(crate) command: Vec<OsString>,
    /// The directory that it starts in.
    pub(crate) directory: PathBuf,
    /// Its environment.
    pub(crate) environment: Vec<(String, String)>,
    /// The health command; empty if there is none.
    #[serde(default)]
    pub(crate) probe: Vec<OsString>,
    /// The set-up commands.
    #[serde(default)]
    pub(crate) setup: Vec<SetUp>,
}

impl Launch {
    /// Takes the command's environment, directory and set-up from a plan.
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

/// A set-up command.
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
