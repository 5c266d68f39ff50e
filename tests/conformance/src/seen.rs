//! What a probe reported, as a value a test can ask. It never guesses: output that is not one report is a failure
//! that shows everything there was.

use std::fmt;

use serde_json::Value;

use crate::program::Ended;

/// One probe's report, and how the command that carried it ended.
#[derive(Clone, Debug)]
pub struct Seen {
    report: Value,
    stderr: String,
}

impl Seen {
    /// The only report in a command's output.
    ///
    /// # Panics
    /// When there is not exactly one report; the message holds the exit status and both streams.
    #[must_use]
    pub fn only(ended: &Ended) -> Self {
        let mut all = Self::all(ended);
        assert!(all.len() == 1, "expected one report, got {}: {ended}", all.len());
        all.remove(0)
    }

    /// Every report in a command's output, in order.
    #[must_use]
    pub fn all(ended: &Ended) -> Vec<Self> {
        let reports = ended.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line.trim()).ok());
        reports
            .filter(|report| report.get("probe").is_some())
            .map(|report| Self { report, stderr: ended.stderr.clone() })
            .collect()
    }

    /// Whether it worked.
    #[must_use]
    pub fn done(&self) -> bool {
        self.report["outcome"] == "done"
    }

    /// Whether somebody said no.
    #[must_use]
    pub fn refused(&self) -> bool {
        self.report["outcome"] == "refused"
    }

    /// Whether the thing was not there.
    #[must_use]
    pub fn absent(&self) -> bool {
        self.report["outcome"] == "absent"
    }

    /// The errno's name, or nothing.
    #[must_use]
    pub fn errno(&self) -> &str {
        self.report["errno"].as_str().unwrap_or_default()
    }

    /// What was seen.
    #[must_use]
    pub fn detail(&self) -> &Value {
        &self.report["detail"]
    }

    /// A text in the detail; empty where there is none.
    #[must_use]
    pub fn text(&self, key: &str) -> &str {
        self.report["detail"][key].as_str().unwrap_or_default()
    }

    /// A number in the detail; zero where there is none.
    #[must_use]
    pub fn number(&self, key: &str) -> u64 {
        self.report["detail"][key].as_u64().unwrap_or_default()
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}\nstderr: {}", self.report, self.stderr)
    }
}
