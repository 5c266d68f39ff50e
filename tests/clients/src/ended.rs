//! The result of a program: its exit code, output and duration. Every wait has a limit; a program that exceeds it is killed, and the world
//! ends everything inside with it.

use std::fmt;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A program that has ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// The exit status as a shell reports it.
    pub code: i32,
    /// The program's stdout.
    pub stdout: String,
    /// The program's stderr, which the product writes to as well.
    pub stderr: String,
    /// The duration.
    pub took: Duration,
}

/// Runs a program with an empty stdin, and kills it after `limit`.
///
/// # Panics
/// When it cannot be started, or its output cannot be stored.
#[must_use]
pub fn run_to_end(command: &mut Command, limit: Duration) -> Ended {
    let folder = tempfile::tempdir().expect("room for its words");
    let (out, err) = (folder.path().join("out"), folder.path().join("err"));
    // Output goes to files, so that a grandchild that keeps a stream open makes nobody wait.
    command.stdin(Stdio::null());
    command.stdout(fs::File::create(&out).expect("a file")).stderr(fs::File::create(&err).expect("a file"));
    let begun = Instant::now();
    let mut child = command.spawn().expect("the program starts");
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child of ours") {
            break status;
        }
        if begun.elapsed() > limit {
            child.kill().expect("a child of ours");
            break child.wait().expect("a child of ours");
        }
        sleep(Duration::from_millis(2));
    };
    let took = begun.elapsed();
    let read = |path| String::from_utf8_lossy(&fs::read(path).expect("its words")).into_owned();
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1);
    Ended { code, stdout: read(&out), stderr: read(&err), took }
}

impl Ended {
    /// Takes exit code and duration from the last line of a measured attempt.
    ///
    /// # Panics
    /// When the line is missing: the attempt was never made.
    #[must_use]
    pub(crate) fn measured(mut self) -> Self {
        let mut lines: Vec<&str> = self.stdout.lines().collect();
        let last = lines.pop().unwrap_or_default().to_owned();
        let said = lines.join("\n");
        let number = |key: &str| -> Option<i64> {
            last.split(' ').find_map(|word| word.strip_prefix(key)).and_then(|number| number.parse().ok())
        };
        let (code, took) = (number("code="), number("ms="));
        let (Some(code), Some(took)) = (code, took) else { panic!("the attempt was not made: {self}") };
        self.code = i32::try_from(code).expect("an exit status");
        self.took = Duration::from_millis(took.unsigned_abs());
        self.stdout = said;
        self
    }

    /// Checks that it succeeded and printed `words`.
    ///
    /// # Panics
    /// When it did not.
    pub fn says(&self, words: &str) {
        assert!(self.code == 0 && self.stdout.contains(words), "not said: {words}: {self}");
    }

    /// Returns its output for `key`, from the first line `key=…`.
    ///
    /// # Panics
    /// When there is no such line.
    #[must_use]
    pub fn said(&self, key: &str) -> &str {
        let each = self.each_said(key);
        each.first().unwrap_or_else(|| panic!("nothing was said of {key}: {self}"))
    }

    /// Returns its output for `key`, from every line `key=…`.
    #[must_use]
    pub fn each_said(&self, key: &str) -> Vec<&str> {
        self.stdout.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
    }

    /// Checks that it failed within `limit`, with one of `words` in its output.
    ///
    /// # Panics
    /// When it did not.
    pub fn fails_within(&self, limit: Duration, words: &[&str]) {
        assert!(self.code != 0, "it worked: {self}");
        assert!(self.took < limit, "it took {:?}, more than {limit:?}: {self}", self.took);
        let all = format!("{}\n{}\n{}", self.stdout, self.stderr, self.in_its_own_words()).to_lowercase();
        assert!(words.iter().any(|word| all.contains(&word.to_lowercase())), "none of {words:?}: {self}");
    }

    /// Returns the command's own stderr, without the product's lines: they interrupt the words of a command that writes letter by letter.
    fn in_its_own_words(&self) -> String {
        let mut own = String::new();
        let mut rest = self.stderr.as_str();
        while let Some(at) = rest.find("lockgate: ") {
            // The product first ends a line that the command had begun.
            own.push_str(rest[..at].strip_suffix('\n').unwrap_or(&rest[..at]));
            rest = rest[at..].split_once('\n').map_or("", |(_, after)| after);
            while rest.starts_with("  ") {
                rest = rest.split_once('\n').map_or("", |(_, after)| after);
            }
        }
        own + rest
    }

    /// Checks that it failed within a second, with one of `words` in its output. [`Run::fastest`](crate::Run::fastest) makes such attempts.
    ///
    /// # Panics
    /// When it did not.
    pub fn fails_fast(&self, words: &[&str]) {
        self.fails_within(Duration::from_secs(1), words);
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, stdout, stderr, took } = self;
        write!(f, "code {code} after {took:?}\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
    }
}
