//! Counts the results of a load, in the form that is printed.

use std::time::{Duration, Instant};

use serde::Serialize;

/// The counts of one load. Latencies are of whole requests; with new connections they include the connection.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Tally {
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) octets: u64,
    /// How many TLS handshakes resumed an earlier session.
    pub(crate) resumed: u64,
    pub(crate) seconds: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// The message of the first failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_failure: Option<String>,
    #[serde(skip)]
    latencies: Vec<Duration>,
}

impl Tally {
    /// Counts a request that came back whole.
    pub(crate) fn succeed(&mut self, octets: u64, began: Instant) {
        self.done += 1;
        self.octets += octets;
        self.latencies.push(began.elapsed());
    }

    /// Counts a request that failed.
    pub(crate) fn fail(&mut self, why: &anyhow::Error) {
        self.failed += 1;
        self.first_failure.get_or_insert_with(|| format!("{why:#}"));
    }

    /// Adds another worker's counts.
    pub(crate) fn add(&mut self, other: Self) {
        self.done += other.done;
        self.failed += other.failed;
        self.octets += other.octets;
        self.resumed += other.resumed;
        self.latencies.extend(other.latencies);
        if self.first_failure.is_none() {
            self.first_failure = other.first_failure;
        }
    }

    /// Closes the count: sets how long it took, and the quantiles of the latencies.
    pub(crate) fn close(mut self, took: Duration) -> Self {
        self.seconds = took.as_secs_f64();
        self.latencies.sort_unstable();
        self.p50_us = self.latency(0.50);
        self.p99_us = self.latency(0.99);
        self
    }

    fn latency(&self, part: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an index below the length"
        )]
        let at = (last as f64 * part).round() as usize;
        self.latencies.get(at).map_or(0.0, |l| l.as_secs_f64() * 1e6)
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| std::fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_of_all_workers() {
        let now = Instant::now();
        let mut all = Tally::default();
        for millis in [30, 10, 20] {
            let mut one = Tally::default();
            one.succeed(5, now.checked_sub(Duration::from_millis(millis)).unwrap());
            all.add(one);
        }
        all.fail(&anyhow::anyhow!("cut"));
        let all = all.close(Duration::from_secs(2));
        assert_eq!((all.done, all.failed, all.octets), (3, 1, 15));
        assert!((20_000.0..30_000.0).contains(&all.p50_us), "{}", all.p50_us);
        assert!(all.to_string().contains("\"first_failure\":\"cut\""));
    }
}
