//! Reads the value of a secret. It never comes from the command line, which others on the machine can read.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use credential::{Secret, Value};

use crate::error::Error;
use crate::own_secrets::OWN_SECRETS;
use crate::patient::Patient;
use crate::prompt::prompt;

/// How much is read at most; the vault refuses shorter ones already.
const LARGEST: u64 = 1 << 20;

/// A source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// The person, prompted on the terminal without echo.
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
    /// Reads a value that can be stored.
    ///
    /// # Errors
    /// When it cannot be read or is unfit; the error names the source.
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
            Self::Stdin => limited(Patient::of(io::stdin())).map_err(fail)?,
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

#[expect(
    clippy::disallowed_methods,
    reason = "the person names the command that prints a secret, as `pass show x`"
)]
fn run(command: &[String]) -> io::Result<Vec<u8>> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = std::process::Command::new(program);
    command.args(arguments).stdin(std::process::Stdio::inherit()).stderr(std::process::Stdio::inherit());
    command.stdout(std::process::Stdio::piped());
    // The command gets the person's environment without the secrets of this program alone.
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
