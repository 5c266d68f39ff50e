//! Runs commands under a deadline. Every program that xtask starts goes through here, so xtask never waits without end.
//!
//! It must never start a program without a limit, and never give one the terminal's input.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// The exit status of `timeout(1)` when the deadline has passed.
const TIMED_OUT: i32 = 124;

/// A program, its arguments and the time it may take.
pub(crate) struct Bounded {
    command: Command,
    shown: String,
    limit: Duration,
}

impl Bounded {
    /// Prepares `program` with `args`: SIGTERM after `limit`, SIGKILL ten seconds later.
    pub(crate) fn new(program: &str, args: &[&str], limit: Duration) -> Self {
        // `--foreground` keeps the program in our process group, so that Ctrl-C reaches it too: timeout(1).
        let mut command = Command::new("timeout");
        command.args(["--foreground", "--kill-after=10", &limit.as_secs().to_string(), program]).args(args);
        command.stdin(Stdio::null());
        let name = Path::new(program).file_name().unwrap_or(OsStr::new(program)).to_string_lossy();
        Self { command, shown: format!("{name} {}", args.join(" ")), limit }
    }

    /// Prepares the cargo that runs us, or the one on the `PATH`.
    pub(crate) fn cargo(args: &[&str], limit: Duration) -> Self {
        Self::cargo_behind(&[], args, limit)
    }

    /// As [`Bounded::cargo`], started by the command `before` that ends with it.
    pub(crate) fn cargo_behind(before: &[String], args: &[&str], limit: Duration) -> Self {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let words = before.iter().map(String::as_str).chain([cargo.as_str()]).chain(args.iter().copied());
        let words: Vec<&str> = words.collect();
        Self::new(words[0], &words[1..], limit)
    }

    /// Sets one variable of the program's environment.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Removes one variable from the program's environment.
    pub(crate) fn without_env(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    /// Starts the program in `directory`.
    pub(crate) fn within(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// Runs to the end with our own output streams. Anything but success is an error.
    pub(crate) fn run(mut self) -> Result<()> {
        let status = self.command.status().with_context(|| format!("failed to start `{}`", self.shown))?;
        self.judge(status)
    }

    /// Runs to the end and returns both streams, whatever the exit status is.
    pub(crate) fn output(mut self) -> Result<Output> {
        self.command.output().with_context(|| format!("failed to start `{}`", self.shown))
    }

    /// Runs to the end and returns stdout; stderr stays ours.
    pub(crate) fn stdout(mut self) -> Result<String> {
        self.command.stdout(Stdio::piped()).stderr(Stdio::inherit());
        let output = self.command.output().with_context(|| format!("failed to start `{}`", self.shown))?;
        self.judge(output.status)?;
        String::from_utf8(output.stdout)
            .with_context(|| format!("`{}` wrote something that is no UTF-8", self.shown))
    }

    /// Runs to the end, copies stderr to ours line by line, and passes each line to `watch` as well.
    pub(crate) fn watch_stderr(mut self, mut watch: impl FnMut(&str)) -> Result<()> {
        let mut child = self
            .command
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("failed to start `{}`", self.shown))?;
        if let Some(stderr) = child.stderr.take() {
            for line in BufReader::new(stderr).split(b'\n') {
                let line = line.with_context(|| format!("failed to read the output of `{}`", self.shown))?;
                let line = String::from_utf8_lossy(&line);
                eprintln!("{line}");
                watch(&line);
            }
        }
        let status = child.wait().with_context(|| format!("failed to wait for `{}`", self.shown))?;
        self.judge(status)
    }

    fn judge(&self, status: ExitStatus) -> Result<()> {
        match status.code() {
            Some(0) => Ok(()),
            Some(TIMED_OUT) => {
                bail!("`{}` was ended: it took longer than {} s", self.shown, self.limit.as_secs())
            }
            _ => bail!("`{}` ended with {status}", self.shown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_program_that_succeeds_hands_back_its_output() {
        assert_eq!(Bounded::new("echo", &["hello"], SECOND).stdout().unwrap(), "hello\n");
    }

    #[test]
    fn a_program_that_fails_is_named_with_its_status() {
        let error = Bounded::new("sh", &["-c", "exit 3"], SECOND).run().unwrap_err().to_string();
        assert_eq!(error, "`sh -c exit 3` ended with exit status: 3");
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let error = Bounded::new("sleep", &["30"], SECOND).run().unwrap_err().to_string();
        assert_eq!(error, "`sleep 30` was ended: it took longer than 1 s");
    }

    #[test]
    fn lines_of_stderr_are_seen() {
        let mut seen = Vec::new();
        let shell = Bounded::new("sh", &["-c", "echo one >&2; echo two >&2"], SECOND);
        shell.watch_stderr(|line| seen.push(line.to_owned())).unwrap();
        assert_eq!(seen, ["one", "two"]);
    }
}
