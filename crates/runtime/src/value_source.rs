//! Where a secret's value is read from. Never from the command line: others on the machine can read that.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use credential::{Secret, Value};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcsetattr};

use crate::error::Error;
use crate::own_secrets::OWN_SECRETS;

/// The largest value that is read; the vault refuses earlier.
const LARGEST: u64 = 1 << 20;

/// A place a value is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// The person, asked on the terminal without an echo.
    Prompt(String),
    /// Standard input, to its end.
    Stdin,
    /// A file.
    File(PathBuf),
    /// A variable of the environment.
    Variable(String),
    /// What a command prints.
    Command(Vec<String>),
}

impl ValueSource {
    /// What is read there, as a value that can be stored.
    ///
    /// # Errors
    /// When it cannot be read, or is none; the error says where it was to come from.
    pub fn value(&self) -> Result<Value, Error> {
        let from = || match self {
            Self::Variable(name) => format!("{name}: "),
            _ => String::new(),
        };
        Value::given(self.read()?).map_err(|error| Error::Value { why: format!("{}{error}", from()) })
    }

    /// Reads the value, without the line end after it.
    fn read(&self) -> Result<Secret, Error> {
        let fail = |source: io::Error| Error::ReadValue { from: self.to_string(), source };
        let mut value = match self {
            Self::Prompt(what) => prompt(what).map_err(fail)?,
            Self::Stdin => limited(io::stdin().lock()).map_err(fail)?,
            Self::File(path) => limited(File::open(path).map_err(fail)?).map_err(fail)?,
            Self::Variable(name) => {
                let value = std::env::var_os(name).ok_or_else(|| fail(io::Error::other("it is not set")))?;
                std::os::unix::ffi::OsStringExt::into_vec(value)
            }
            Self::Command(command) => run(command).map_err(fail)?,
        };
        if value.last() == Some(&b'\n') {
            value.pop();
        }
        if value.last() == Some(&b'\r') {
            value.pop();
        }
        Ok(Secret::new(value))
    }
}

impl std::fmt::Display for ValueSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Prompt(_) => f.write_str("the terminal"),
            Self::Stdin => f.write_str("standard input"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Variable(name) => write!(f, "the variable {name}"),
            Self::Command(command) => write!(f, "`{}`", command.first().map_or("", String::as_str)),
        }
    }
}

fn limited(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut value = Vec::new();
    reader.take(LARGEST).read_to_end(&mut value)?;
    Ok(value)
}

/// Asks on the terminal. What is typed is not shown, and the terminal is put back whatever happens.
fn prompt(what: &str) -> io::Result<Vec<u8>> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Err(io::Error::other(
            "there is no terminal to ask on; give --stdin, --from-file or --from-env",
        ));
    }
    let before = tcgetattr(&stdin)?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    silent.local_modes.insert(LocalModes::ECHONL);
    // Whoever stops this and goes on has the terminal of their shell by then, which shows what is typed.
    silent.special_codes[SpecialCodeIndex::VSUSP] = 0;
    tcsetattr(&stdin, OptionalActions::Flush, &silent)?;
    let asked = write!(io::stderr(), "{what}: ").and_then(|()| io::stderr().flush());
    let mut line = Vec::new();
    let read = asked.and_then(|()| stdin.lock().take(LARGEST).read_until(b'\n', &mut line));
    tcsetattr(&stdin, OptionalActions::Flush, &before)?;
    read?;
    match line.iter().any(|octet| octet.is_ascii_control() && !matches!(octet, b'\n' | b'\r' | b'\t')) {
        true => Err(io::Error::other("a control key was typed with it; type it again, without")),
        false => Ok(line),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the person names the command that prints a secret, as `pass show x`"
)]
fn run(command: &[String]) -> io::Result<Vec<u8>> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = std::process::Command::new(program);
    command.args(arguments).stdin(std::process::Stdio::inherit()).stderr(std::process::Stdio::inherit());
    command.stdout(std::process::Stdio::piped());
    // It has the person's environment, and not what only this program is told.
    for name in OWN_SECRETS {
        command.env_remove(OsStr::from_bytes(name.to_bytes()));
    }
    let mut child = command.spawn()?;
    let printed = child.stdout.take().map(limited).transpose()?.unwrap_or_default();
    if printed.len() as u64 == LARGEST {
        child.kill()?;
        child.wait()?;
        return Err(io::Error::other("it prints more than any credential has"));
    }
    let status = child.wait()?;
    if status.success() { Ok(printed) } else { Err(io::Error::other(format!("it ended with {status}"))) }
}
