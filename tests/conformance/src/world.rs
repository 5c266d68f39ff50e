//! The small internet, as a prefix of a command, and its record of which servers were reached.
//! It starts the `world` program and reads its records; the tests interpret them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use lockgate_needs::program;
use serde_json::Value;

use crate::attempt::{Attempt, at_once};
use crate::bench::Bench;
use crate::program::{Ended, run};
use crate::seen::Seen;

/// A web server of the world's, at a port of proxies.
const WITHOUT_RULES: &str = "http://93.184.216.34:3128";

/// One small internet per test. Each wrapped command gets a fresh one, and the records add up.
#[derive(Debug)]
pub struct World {
    program: PathBuf,
    records: PathBuf,
    workspace: PathBuf,
}

impl World {
    /// Returns the world of a bench.
    ///
    /// # Panics
    /// When `world` is not built; `ready` tells beforehand.
    #[must_use]
    pub fn new(bench: &Bench) -> Self {
        let records = bench.file("outside/records.jsonl", "");
        Self {
            program: program("world").expect("`ready` was asked first"),
            records,
            workspace: bench.workspace(),
        }
    }

    pub(crate) fn wrapper(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec![self.program.clone().into(), "--records".into()];
        words.extend([self.records.clone().into(), "--".into()]);
        words
    }

    /// The positive control: runs the probe on the world's host, outside any sandbox.
    #[must_use]
    pub fn control(&self, arguments: &[&str]) -> Seen {
        let probe = self.workspace.join("probe");
        let words: Vec<OsString> =
            std::iter::once(probe.into()).chain(arguments.iter().map(OsString::from)).collect();
        Seen::only(&self.command(&words))
    }

    /// Checks that each attempt succeeds on the world's host, and empties the records of it.
    ///
    /// # Panics
    /// When an attempt fails; the message names it.
    pub fn controls(&self, attempts: &[&[&str]]) {
        for attempt in attempts {
            let seen = self.control(attempt);
            assert!(seen.done(), "the control {attempt:?} did not work: {seen}");
        }
        self.forget();
    }

    /// Makes several attempts on the world's host at the same time, outside any sandbox. A web server that answers whatever it is asked
    /// stands for the explicit proxy.
    ///
    /// # Panics
    /// When they do not print one report each.
    #[must_use]
    pub fn at_once(&self, attempts: &[Attempt]) -> Vec<Seen> {
        let probe = self.workspace.join("probe");
        let lines: Vec<_> = attempts.iter().map(|attempt| attempt.line(&probe)).collect();
        let line = format!("HTTP_PROXY={WITHOUT_RULES}; HTTPS_PROXY={WITHOUT_RULES}\n{}", at_once(&lines));
        let ended = self.command(&["/bin/sh", "-c", &line].map(OsString::from));
        let all = Seen::all(&ended);
        assert!(all.len() == attempts.len(), "expected {} reports: {ended}", attempts.len());
        all
    }

    /// Checks that requests to a proxy arrive as they are spelled where none with rules is, and empties the records of it.
    ///
    /// # Panics
    /// When a request did not arrive; the message names it.
    pub fn controls_by_proxy(&self, urls: &[&str], targets: &[&str]) {
        let seen = self.at_once(&Attempt::all(&[], urls, targets));
        let asked = urls.iter().map(|url| format!("GET {url} HTTP/1.1"));
        let asked = asked.chain(targets.iter().map(|target| format!("CONNECT {target} HTTP/1.1")));
        for (asked, seen) in asked.zip(seen) {
            assert!(!self.reached(&asked).is_empty(), "the control `{asked}` did not arrive: {seen}");
        }
        self.forget();
    }

    /// Checks that each of several attempts that send one datagram brings it to a server, which answers none, and empties the records.
    ///
    /// # Panics
    /// When a datagram did not arrive.
    pub fn controls_of_datagrams(&self, attempts: &[&[&str]]) {
        let seen = self.at_once(&Attempt::all(attempts, &[], &[]));
        let came = self.records().into_iter().filter(|record| record["event"] == "datagram").count();
        assert!(came == attempts.len(), "{came} of the datagrams of {attempts:?} arrived: {seen:?}");
        self.forget();
    }

    /// Returns a command on the world's host, outside any sandbox.
    #[must_use]
    pub fn command(&self, words: &[OsString]) -> Ended {
        let wrapper = self.wrapper();
        run(Command::new(&wrapper[0]).args(&wrapper[1..]).args(words).current_dir(&self.workspace))
    }

    /// Returns the prefix that runs a command on the world's host, for a caller that adds more to it.
    #[must_use]
    pub fn command_of(&self, words: &[OsString]) -> Vec<OsString> {
        self.wrapper().into_iter().chain(words.iter().cloned()).collect()
    }

    /// Returns everything the world's servers recorded since the last [`World::forget`].
    ///
    /// # Panics
    /// When the records cannot be read.
    #[must_use]
    pub fn records(&self) -> Vec<Value> {
        let text = read(&self.records);
        text.lines().map(|line| serde_json::from_str(line).expect("a record is a line of JSON")).collect()
    }

    /// Returns the records of one server: `web`, `lan`, `metadata`, `private`, `resolver`, `anywhere`, ….
    #[must_use]
    pub fn at(&self, server: &str) -> Vec<Value> {
        self.records().into_iter().filter(|record| record["server"] == server).collect()
    }

    /// Returns the records that contain `word`: an address, a name, a header.
    #[must_use]
    pub fn reached(&self, word: &str) -> Vec<Value> {
        self.records().into_iter().filter(|record| record.to_string().contains(word)).collect()
    }

    /// Empties the records, so that those of a control do not count.
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
