//! From what happened to an exit code and one message.

use std::process::ExitCode;

use crate::output;

/// We failed, and nobody's wish or verdict: the sandbox could not be made, or something of ours could not be read or written.
pub(crate) const FAILED: u8 = 125;
/// A signal ended it, whose number is added.
const SIGNALLED: i32 = 128;
/// The flags or the policy are wrong.
const USAGE: u8 = 2;

/// The answer is no, or there is nothing.
const NOTHING: u8 = 1;

/// What a command returns: its exit code, or why it could not be carried out.
pub(crate) type Done = Result<u8, anyhow::Error>;

/// The exit code of a process that is its own command.
pub(crate) fn status(status: i32) -> ExitCode {
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}

/// Prints the error, if there is one, and gives the exit code.
pub(crate) fn code(done: Done) -> ExitCode {
    ExitCode::from(number(done))
}

/// The same as a number, for a process that ends in another way.
pub(crate) fn number(done: Done) -> u8 {
    match done {
        Ok(code) => code,
        // Whoever read the output has seen enough.
        Err(error) if is_broken_pipe(&error) => 0,
        Err(error) => {
            let (code, remedy) = judge(&error);
            output::error(&error, remedy.as_deref());
            code
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// The exit code of an error, and what would help.
pub(crate) fn judge(error: &anyhow::Error) -> (u8, Option<String>) {
    if let Some(error) = error.downcast_ref::<runtime::Error>() {
        let code = match error {
            runtime::Error::ReadSettings { .. }
            | runtime::Error::NotAPolicy { .. }
            | runtime::Error::ParseSettings { .. }
            | runtime::Error::Settings(_)
            | runtime::Error::NoRun { .. }
            | runtime::Error::NoCredential { .. }
            | runtime::Error::Expose { .. }
            | runtime::Error::OrganisationBesidePlatform { .. }
            | runtime::Error::Value { .. }
            | runtime::Error::ReadValue { .. }
            | runtime::Error::Sandbox(sandbox::Error::Unknown { .. }) => USAGE,
            runtime::Error::Record { .. }
            | runtime::Error::GoesOn { .. }
            | runtime::Error::Stop { .. }
            | runtime::Error::TakeOver { .. }
            | runtime::Error::WrittenBy { .. }
            | runtime::Error::NothingKept { .. } => NOTHING,
            runtime::Error::Interrupted { signal } => u8::try_from(SIGNALLED + signal).unwrap_or(FAILED),
            _ => FAILED,
        };
        return (code, error.remedy());
    }
    if let Some(usage) = error.downcast_ref::<Usage>() {
        return (usage.code, usage.hint.clone());
    }
    (FAILED, None)
}

/// What was asked cannot be done as it was said.
#[derive(Debug)]
pub(crate) struct Usage {
    code: u8,
    what: String,
    hint: Option<String>,
}

impl Usage {
    pub(crate) fn error(what: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self { code: USAGE, what: what.into(), hint: Some(hint.into()) })
    }

    /// It was said as it should be, and there is nothing to do it with.
    pub(crate) fn nothing(what: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self { code: NOTHING, what: what.into(), hint: Some(hint.into()) })
    }

    /// The answer to what was asked is no.
    pub(crate) fn no(what: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self { code: NOTHING, what: what.into(), hint: None })
    }
}

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Usage {}
