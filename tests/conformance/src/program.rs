//! Runs a program with a time limit, and ends only what it started.
//! Threads read the output, so a pipe that another process holds open cannot block the test.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The time limit of any command of a test.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long a stream is read after its program has ended. A stream still open then is abandoned.
const DRAIN: Duration = Duration::from_secs(2);

/// How long a program that is no longer needed may take to end by itself.
const POLITE: Duration = Duration::from_secs(2);

/// How a program ended, and its output.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its exit status; 128 + n when signal n killed it.
    pub code: i32,
    /// Everything on stdout, lossily.
    pub stdout: String,
    /// Everything on stderr, lossily.
    pub stderr: String,
    /// From start to exit.
    pub took: Duration,
}

impl fmt::Display for Ended {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, stdout, stderr, took } = self;
        write!(out, "exit {code} after {took:?}\nstdout: {stdout}\nstderr: {stderr}")
    }
}

/// A program that is running. Dropping it kills and reaps it.
#[derive(Debug)]
pub struct Live {
    child: Child,
    streams: [Receiver<Vec<u8>>; 2],
    start: Instant,
}

impl Live {
    /// Starts `command` and collects stdout and stderr; stdin is empty unless it was set.
    ///
    /// # Panics
    /// When the program cannot be started.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let start = Instant::now();
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => panic!("failed to start {}: {error}", command.get_program().display()),
        };
        let streams = [collect(child.stdout.take()), collect(child.stderr.take())];
        Self { child, streams, start }
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends the signal `name` (`TERM`, `KILL`, `INT`, …) to the program.
    ///
    /// # Panics
    /// When the signal cannot be sent.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "failed to signal {}", self.child.id());
    }

    /// Waits for the program to end.
    ///
    /// # Panics
    /// When it takes longer than the limit of any command.
    #[must_use]
    pub fn wait(self) -> Ended {
        self.wait_within(PATIENCE)
    }

    /// Waits for the program to end, with another time limit.
    ///
    /// # Panics
    /// When it takes longer than that limit.
    #[must_use]
    pub fn wait_within(mut self, patience: Duration) -> Ended {
        let code = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break code(status),
                Ok(None) if self.start.elapsed() < patience => thread::sleep(Duration::from_millis(5)),
                Ok(None) => {
                    let id = self.child.id();
                    let said = self.text();
                    panic!("process {id} still runs after {patience:?}; it said: {said:?}");
                }
                Err(error) => panic!("failed to wait for process {}: {error}", self.child.id()),
            }
        };
        let took = self.start.elapsed();
        let [stdout, stderr] = self.text();
        Ended { code, stdout, stderr, took }
    }

    fn text(&self) -> [String; 2] {
        let deadline = Instant::now() + DRAIN;
        self.streams.each_ref().map(|stream| {
            let mut bytes = Vec::new();
            let left = || deadline.saturating_duration_since(Instant::now());
            while let Ok(piece) = stream.recv_timeout(left()) {
                bytes.extend(piece);
            }
            String::from_utf8_lossy(&bytes).into_owned()
        })
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return; // it has been waited for
        }
        // Ask it to end first: a killed run leaves its resources to the next start with the same state, and there is none.
        let id = self.child.id().to_string();
        let _ = Command::new("kill").args(["-s", "TERM", &id]).stderr(Stdio::null()).status();
        let deadline = Instant::now() + POLITE;
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `command` to its end.
#[must_use]
pub fn run(command: &mut Command) -> Ended {
    Live::start(command).wait()
}

/// Copies a program that will be executed, by another process. A file written by this process stays open for writing in any child that
/// another thread forks meanwhile, until that child executes, and cannot be executed until then ("text file busy").
///
/// # Panics
/// When the program cannot be copied.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("--").args([from, to]).status().expect("cp was started");
    assert!(copied.success(), "{} was not copied to {}: {copied}", from.display(), to.display());
}

fn code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn collect(stream: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    if let Some(mut stream) = stream {
        thread::spawn(move || {
            let mut buffer = [0; 16 * 1024];
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                if sender.send(buffer[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
    }
    receiver
}
