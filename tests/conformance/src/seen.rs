//! A probe's report as a value that a test can query. Output that is not exactly one report is a failure that shows all of the output.

use std::fmt;

use serde_json::Value;

use crate::program::Ended;

/// One probe's report, and the end of the command that carried it.
#[derive(Clone, Debug)]
pub struct Seen {
    report: Value,
    stderr: String,
}

impl Seen {
    /// Returns the only report in a command's output.
    ///
    /// # Panics
    /// When there is not exactly one report; the message contains the exit status and both streams.
    #[must_use]
    pub fn only(ended: &Ended) -> Self {
        let mut all = Self::all(ended);
        assert!(all.len() == 1, "expected one report, got {}: {ended}", all.len());
        all.remove(0)
    }

    /// Returns every report in a command's output, in order.
    #[must_use]
    pub fn all(ended: &Ended) -> Vec<Self> {
        let reports = ended.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line.trim()).ok());
        reports
            .filter(|report| report.get("probe").is_some())
            .map(|report| Self { report, stderr: ended.stderr.clone() })
            .collect()
    }

    /// Whether the attempt succeeded.
    #[must_use]
    pub fn done(&self) -> bool {
        self.report["outcome"] == "done"
    }

    /// Whether the attempt was refused.
    #[must_use]
    pub fn refused(&self) -> bool {
        self.report["outcome"] == "refused"
    }

    /// Whether the target was absent.
    #[must_use]
    pub fn absent(&self) -> bool {
        self.report["outcome"] == "absent"
    }

    /// The name of the errno, or an empty text.
    #[must_use]
    pub fn errno(&self) -> &str {
        self.report["errno"].as_str().unwrap_or_default()
    }

    /// The details of the report.
    #[must_use]
    pub fn detail(&self) -> &Value {
        &self.report["detail"]
    }

    /// A text in the details; empty if there is none.
    #[must_use]
    pub fn text(&self, key: &str) -> &str {
        self.report["detail"][key].as_str().unwrap_or_default()
    }

    /// A number in the details; zero if there is none.
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
