//! The small internet, as a command to put before another one, and the record of who reached what in it.
//! It only starts the `world` program and reads its records; what they mean is for a test to say.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::bench::Bench;
use crate::host::binary;
use crate::program::{Ended, run};
use crate::seen::Seen;

/// One small internet a test; each command behind it gets a fresh one, and the records add up.
#[derive(Debug)]
pub struct World {
    program: PathBuf,
    records: PathBuf,
    workspace: PathBuf,
}

impl World {
    /// The world of this bench.
    ///
    /// # Panics
    /// When `world` is not built; `ready` says so first.
    #[must_use]
    pub fn new(bench: &Bench) -> Self {
        let records = bench.file("outside/records.jsonl", "");
        Self {
            program: binary("world").expect("`ready` was asked first"),
            records,
            workspace: bench.workspace(),
        }
    }

    pub(crate) fn wrapper(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec![self.program.clone().into(), "--records".into()];
        words.extend([self.records.clone().into(), "--".into()]);
        words
    }

    /// The positive control: a probe on the world's host, outside any sandbox.
    #[must_use]
    pub fn control(&self, arguments: &[&str]) -> Seen {
        let probe = self.workspace.join("probe");
        let words: Vec<OsString> =
            std::iter::once(probe.into()).chain(arguments.iter().map(OsString::from)).collect();
        Seen::only(&self.command(&words))
    }

    /// Checks that each attempt works on the world's host, and forgets what they left in the records.
    ///
    /// # Panics
    /// When one does not; the message names it.
    pub fn controls(&self, attempts: &[&[&str]]) {
        for attempt in attempts {
            let seen = self.control(attempt);
            assert!(seen.done(), "the control {attempt:?} did not work: {seen}");
        }
        self.forget();
    }

    /// Any command on the world's host, outside any sandbox.
    #[must_use]
    pub fn command(&self, words: &[OsString]) -> Ended {
        let wrapper = self.wrapper();
        run(Command::new(&wrapper[0]).args(&wrapper[1..]).args(words).current_dir(&self.workspace))
    }

    /// The words by which a command is run on the world's host, for one that needs more than that.
    #[must_use]
    pub fn command_of(&self, words: &[OsString]) -> Vec<OsString> {
        self.wrapper().into_iter().chain(words.iter().cloned()).collect()
    }

    /// Everything the world's servers saw since the last [`World::forget`].
    ///
    /// # Panics
    /// When the records cannot be read.
    #[must_use]
    pub fn records(&self) -> Vec<Value> {
        let text = read(&self.records);
        text.lines().map(|line| serde_json::from_str(line).expect("a record is a line of JSON")).collect()
    }

    /// What the server called `server` saw: `web`, `lan`, `metadata`, `private`, `resolver`, `anywhere`, ….
    #[must_use]
    pub fn at(&self, server: &str) -> Vec<Value> {
        self.records().into_iter().filter(|record| record["server"] == server).collect()
    }

    /// The records whose text holds `word`: an address, a name, a header.
    #[must_use]
    pub fn reached(&self, word: &str) -> Vec<Value> {
        self.records().into_iter().filter(|record| record.to_string().contains(word)).collect()
    }

    /// Empties the records: what came before was a control.
    ///
    /// # Panics
    /// When they cannot be emptied.
    pub fn forget(&self) {
        std::fs::write(&self.records, "").expect("records to empty");
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("records to read")
}
