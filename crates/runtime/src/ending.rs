//! How a command ended: a variant for each kind, for programs, and a text for people.
//!
//! The exit code and the text follow from the kind. Nothing parses the text again.

use std::fmt;

use policy::{ByteSize, Span, TimeoutCeiling};
use rustix::process::Signal;

/// Exit codes beside the command's own. DESIGN §4
const TIMED_OUT: i32 = 124;
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;
pub(crate) const SIGKILL: i32 = Signal::KILL.as_raw();
pub(crate) const SIGSYS: i32 = Signal::SYS.as_raw();

/// Returns the exit code by which a shell tells that a signal ended a command.
#[must_use]
pub const fn exit_code_of(signal: i32) -> i32 {
    128 + signal
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It ended by itself.
    Exited {
        /// Its exit code.
        code: i32,
        /// What it ran short of meanwhile, if anything.
        shortage: Option<Shortage>,
    },
    /// A signal ended it.
    Signalled(i32),
    /// The sandbox's filter of system calls may have ended it, as it ends every program for 32 bits.
    ForeignCall,
    /// The kernel killed it because it used more memory than it may.
    OutOfMemory {
        /// The most it used, if that is known.
        peak: Option<ByteSize>,
        /// Its limit; `None` if what ran short is not the run.
        limit: Option<ByteSize>,
    },
    /// It took longer than its time.
    TimedOut {
        /// Its time.
        timeout: Span,
        /// What allows it no more, if something does.
        ceiling: Option<TimeoutCeiling>,
    },
    /// It was asked to end by this signal, did not, and was killed.
    Killed(i32),
    /// There is no such command in the sandbox.
    NotFound {
        /// Its name.
        command: String,
        /// A hint, if there is one.
        hint: Option<String>,
    },
    /// The kernel does not execute it.
    NotExecutable {
        /// Its name.
        command: String,
        /// The kernel's answer, errno(3).
        errno: i32,
    },
}

/// What a command that ended by itself ran short of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Memory: the kernel killed processes of it.
    Memory {
        /// How many.
        killed: u64,
        /// The limit of all of them together; `None` if what ran short is not the run.
        limit: Option<ByteSize>,
    },
    /// Processes: the kernel refused to make more.
    Processes {
        /// How many times.
        refused: u64,
    },
}

impl Ending {
    /// Returns the exit code of `lockgate run`.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        match *self {
            Self::Exited { code, .. } => code,
            Self::Signalled(signal) | Self::Killed(signal) => exit_code_of(signal),
            Self::ForeignCall => exit_code_of(SIGSYS),
            Self::OutOfMemory { .. } => exit_code_of(SIGKILL),
            Self::TimedOut { .. } => TIMED_OUT,
            Self::NotFound { .. } => NOT_FOUND,
            Self::NotExecutable { .. } => NOT_EXECUTABLE,
        }
    }
}

/// What ran short, if it was not the run.
const OUTSIDE: &str = "this machine, or the unit in which the run was started,";

/// What raises a limit that was reached.
const SETS_MEMORY: &str = "--memory, or `limits.memory` in the policy, sets it";
const SETS_PROCESSES: &str = "--pids, or `limits.pids` in the policy, sets it";

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited { code, shortage: None } => write!(f, "exited {code}"),
            Self::Exited { code, shortage: Some(shortage) } => write!(f, "exited {code}; {shortage}"),
            Self::Signalled(signal) => write!(f, "ended by signal {}", named(*signal)),
            Self::ForeignCall => {
                let signal = named(SIGSYS);
                write!(
                    f,
                    "ended by signal {signal}, as a 32-bit program always is in the sandbox: if it is one, use a 64-bit build"
                )
            }
            // A control group may report a little more than its limit.
            Self::OutOfMemory { peak: Some(peak), limit: Some(limit) } => {
                write!(f, "killed: out of memory (it used {peak} of {limit}); {SETS_MEMORY}")
            }
            Self::OutOfMemory { peak: None, limit: Some(limit) } => {
                write!(f, "killed: out of memory (limit {limit}); {SETS_MEMORY}")
            }
            Self::OutOfMemory { peak, limit: None } => {
                write!(f, "killed: {OUTSIDE} was out of memory")?;
                peak.map_or(Ok(()), |peak| write!(f, " (the run used {peak})"))
            }
            Self::TimedOut { timeout, ceiling: None } => {
                write!(f, "timed out after {timeout}; --timeout, or `timeout` in the policy, sets it")
            }
            Self::TimedOut { timeout, ceiling: Some(ceiling) } => {
                write!(f, "timed out after {timeout}; {ceiling}")
            }
            Self::Killed(signal) => write!(f, "killed after signal {}", named(*signal)),
            Self::NotFound { command, hint } => {
                write!(f, "`{}` was not found in the sandbox", command.escape_debug())?;
                hint.iter().try_for_each(|hint| write!(f, "; {hint}"))
            }
            Self::NotExecutable { command, errno } => {
                let why = std::io::Error::from_raw_os_error(*errno);
                write!(f, "`{}` cannot be executed: {why}", command.escape_debug())
            }
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { killed, limit: Some(limit) } => {
                write!(f, "{killed} of its processes ran out of memory (limit {limit}); {SETS_MEMORY}")
            }
            Self::Memory { killed, limit: None } => {
                write!(f, "{killed} of its processes were killed, because {OUTSIDE} was out of memory")
            }
            Self::Processes { refused: 1 } => {
                write!(f, "it reached its limit of processes once; {SETS_PROCESSES}")
            }
            Self::Processes { refused } => {
                write!(f, "it reached its limit of processes {refused} times; {SETS_PROCESSES}")
            }
        }
    }
}

/// Returns a signal's number, with its name if it is one that people know. signal(7)
pub(crate) fn named(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return signal.to_string(),
    };
    format!("{signal} ({name})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ending_has_its_words_and_its_exit_code() {
        let limit = ByteSize::from_mib(64);
        let exited = |code, shortage| Ending::Exited { code, shortage };
        let command = || "a\nb".to_owned();
        let timed_out = |secs, ceiling| Ending::TimedOut { timeout: Span::from_secs(secs), ceiling };
        let rows = [
            (exited(0, None), 0, "exited 0"),
            (
                exited(3, Some(Shortage::Memory { killed: 2, limit: Some(limit) })),
                3,
                "exited 3; 2 of its processes ran out of memory (limit 64MiB); --memory, or `limits.memory` in the policy, sets it",
            ),
            (
                exited(1, Some(Shortage::Processes { refused: 1 })),
                1,
                "exited 1; it reached its limit of processes once; --pids, or `limits.pids` in the policy, sets it",
            ),
            (
                exited(0, Some(Shortage::Processes { refused: 4 })),
                0,
                "exited 0; it reached its limit of processes 4 times; --pids, or `limits.pids` in the policy, sets it",
            ),
            (Ending::Signalled(13), 141, "ended by signal 13 (SIGPIPE)"),
            (Ending::Signalled(40), 168, "ended by signal 40"),
            (Ending::Signalled(31), 159, "ended by signal 31 (SIGSYS)"),
            (
                Ending::ForeignCall,
                159,
                "ended by signal 31 (SIGSYS), as a 32-bit program always is in the sandbox: if it is one, use a 64-bit build",
            ),
            (
                Ending::OutOfMemory { peak: Some(limit), limit: Some(limit) },
                137,
                "killed: out of memory (it used 64MiB of 64MiB); --memory, or `limits.memory` in the policy, sets it",
            ),
            (
                Ending::OutOfMemory { peak: Some(limit), limit: None },
                137,
                "killed: this machine, or the unit in which the run was started, was out of memory (the run used 64MiB)",
            ),
            (
                Ending::OutOfMemory { peak: None, limit: Some(limit) },
                137,
                "killed: out of memory (limit 64MiB); --memory, or `limits.memory` in the policy, sets it",
            ),
            (timed_out(60, None), 124, "timed out after 1m; --timeout, or `timeout` in the policy, sets it"),
            (
                timed_out(1800, Some(TimeoutCeiling::Default)),
                124,
                "timed out after 30m; no run takes longer, unless PLATFORM_RUN_LIMITS or `timeout` in /etc/lockgate/policy.toml allows it",
            ),
            (
                timed_out(2, Some(TimeoutCeiling::Variable("PLATFORM_RUN_LIMITS".into()))),
                124,
                "timed out after 2s; PLATFORM_RUN_LIMITS allows no more",
            ),
            (
                timed_out(2, Some(TimeoutCeiling::Managed("/etc/policy".into()))),
                124,
                "timed out after 2s; `timeout` in /etc/policy allows no more",
            ),
            (Ending::Killed(15), 143, "killed after signal 15 (SIGTERM)"),
            (
                Ending::NotFound { command: command(), hint: None },
                127,
                "`a\\nb` was not found in the sandbox",
            ),
            (
                Ending::NotFound { command: command(), hint: Some("here it is".into()) },
                127,
                "`a\\nb` was not found in the sandbox; here it is",
            ),
            (
                Ending::NotExecutable { command: command(), errno: 13 },
                126,
                "`a\\nb` cannot be executed: Permission denied (os error 13)",
            ),
        ];
        for (ending, exit_code, words) in rows {
            assert_eq!((ending.exit_code(), ending.to_string().as_str()), (exit_code, words));
        }
    }
}
