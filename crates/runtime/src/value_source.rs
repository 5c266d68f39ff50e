//! Reads the value of a secret. It never comes from the command line, which others on the machine can read.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use credential::{Secret, Value};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcsetattr};

use crate::error::Error;
use crate::own_secrets::OWN_SECRETS;

/// The largest value that is read; the vault refuses shorter ones already.
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

/// The longest line of a terminal in octets, its end included.
const LONGEST_LINE: usize = 4096;

/// Prompts on the terminal without echo, and restores the terminal in any case.
fn prompt(what: &str) -> io::Result<Vec<u8>> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Err(io::Error::other(
            "there is no terminal to ask on; give --stdin, --from-file, --from-env or --from-command",
        ));
    }
    let before = tcgetattr(&stdin)?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    silent.local_modes.insert(LocalModes::ECHONL);
    // No key may end or stop this program while the terminal is silent, for it would stay silent. The keys that would end it are read
    // as line ends.
    silent.local_modes.remove(LocalModes::ISIG);
    let [interrupt, quit] =
        [SpecialCodeIndex::VINTR, SpecialCodeIndex::VQUIT].map(|key| before.special_codes[key]);
    silent.special_codes[SpecialCodeIndex::VEOL] = interrupt;
    silent.special_codes[SpecialCodeIndex::VEOL2] = quit;
    tcsetattr(&stdin, OptionalActions::Flush, &silent)?;
    let asked = write!(io::stderr(), "{what}: ").and_then(|()| io::stderr().flush());
    let read = asked.and_then(|()| typed(stdin.lock(), &[interrupt, quit]));
    tcsetattr(&stdin, OptionalActions::Flush, &before)?;
    let line = read?;
    if line.last() != Some(&b'\n') {
        // Ctrl-D leaves the cursor behind the question.
        let _ = writeln!(io::stderr());
    }
    if line.last().is_some_and(|last| is_end(*last, &[interrupt, quit])) {
        // Raises the signal that the key would have raised: a shell that waits for this program must see it.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::INT)?;
        return Err(io::ErrorKind::Interrupted.into());
    }
    // A terminal drops without a word what of a line it has no room for, termios(3).
    if line.len() >= LONGEST_LINE {
        return Err(io::Error::other(format!(
            "a terminal takes no more of one line than {LONGEST_LINE} octets, and may have dropped the rest: give it with --stdin or --from-file"
        )));
    }
    match line.iter().any(|octet| octet.is_ascii_control() && !matches!(octet, b'\n' | b'\r' | b'\t')) {
        true => Err(io::Error::other("a control key was typed with it; type it again, without")),
        false => Ok(line),
    }
}

/// Reads a line, with its end or the key that ends the program.
fn typed(mut from: impl BufRead, ends: &[u8]) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    loop {
        let piece = match from.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            piece => piece?,
        };
        let end = piece.iter().position(|octet| *octet == b'\n' || is_end(*octet, ends));
        let length = end.map_or(piece.len(), |at| at + 1);
        line.extend_from_slice(&piece[..length]);
        from.consume(length);
        if length == 0 || end.is_some() || line.len() as u64 >= LARGEST {
            return Ok(line);
        }
    }
}

/// Whether an octet is a key that ends the program; 0 means a disabled key (termios(3)).
fn is_end(octet: u8, ends: &[u8]) -> bool {
    octet != 0 && ends.contains(&octet)
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
