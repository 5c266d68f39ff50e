//! Exit codes, and the one message of a failed command.

use std::io::IsTerminal;
use std::process::ExitCode;

use runtime::ErrorKind;

use crate::output;

/// Lockgate itself failed: it could not make the sandbox, or read or write its own files.
pub(crate) const FAILED: u8 = 125;
/// The flags or the policy are wrong.
const USAGE: u8 = 2;

/// The answer is no, or nothing was found.
const NOTHING: u8 = 1;

/// The least stack, in octets. What needs more ends by a signal, and says nothing of why.
const LEAST_STACK: u64 = 256 << 10;

/// Refuses to begin on a stack that would not do.
pub(crate) fn refuse_small_stack() -> Result<(), anyhow::Error> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    match limit.filter(|limit| *limit < LEAST_STACK) {
        None => Ok(()),
        Some(limit) => Err(Usage::lacking(
            format!("the limit of the stack is {limit} octets, and this takes more"),
            "raise it: `ulimit -s 8192`; the hard limit may have to be raised first",
        )),
    }
}

/// The result of a command: its exit code, or why it failed.
pub(crate) type Done = Result<u8, anyhow::Error>;

/// Converts a result into the exit code of this process.
pub(crate) fn status(status: i32) -> ExitCode {
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}

/// Prints the error, if any, and returns the exit code.
pub(crate) fn code(done: Done) -> ExitCode {
    ExitCode::from(number(done))
}

/// Returns the exit code as a number, for a process that ends in another way.
pub(crate) fn number(done: Done) -> u8 {
    match done {
        Ok(code) => code,
        // The reader of the output closed it early. What has a verdict prints by `output::answer` and gets no further than that.
        Err(error) if is_broken_pipe(&error) => 0,
        Err(error) => {
            let (code, remedy) = code_and_remedy(&error);
            output::last_error(&error, remedy.as_deref());
            code
        }
    }
}

/// Prints a usage error, or the help or version that was asked for, and ends this process.
pub(crate) fn end(error: &clap::Error) -> ! {
    if error.use_stderr() {
        error.exit()
    }
    let styled = error.render();
    let text = if shows_styles() { styled.ansi().to_string() } else { styled.to_string() };
    let done = output::text(text.as_bytes()).map(|()| 0).map_err(anyhow::Error::from);
    std::process::exit(number(done).into())
}

/// Whether standard output is a terminal that shows styles, and nobody wants them left out (no-color.org).
fn shows_styles() -> bool {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    std::io::stdout().is_terminal()
        && variable("NO_COLOR").is_none()
        && variable("TERM").is_some_and(|term| term != "dumb")
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Returns the exit code of an error, and its remedy.
pub(crate) fn code_and_remedy(error: &anyhow::Error) -> (u8, Option<String>) {
    if let Some(error) = error.downcast_ref::<runtime::Error>() {
        let code = match error.kind() {
            ErrorKind::Usage => USAGE,
            ErrorKind::Nothing => NOTHING,
            ErrorKind::Interrupted(signal) => u8::try_from(runtime::exit_code_of(signal)).unwrap_or(FAILED),
            ErrorKind::Failed => FAILED,
        };
        return (code, error.remedy());
    }
    if let Some(usage) = error.downcast_ref::<Usage>() {
        return (usage.code, usage.hint.clone());
    }
    (FAILED, None)
}

/// The command line asks for something that cannot be done.
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

    /// The command line is right, and what it names does not exist.
    pub(crate) fn nothing(what: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self { code: NOTHING, what: what.into(), hint: Some(hint.into()) })
    }

    /// The command line is right, and this machine lacks what every command needs.
    pub(crate) fn lacking(what: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self { code: FAILED, what: what.into(), hint: Some(hint.into()) })
    }

    /// The answer is no.
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
