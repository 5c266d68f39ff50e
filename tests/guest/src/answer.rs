//! The result of a scenario, which the guest prints in one line of its console:
//! `RESULT NUMBER CODE out:BASE64 err:BASE64`.

use std::fmt;

use data_encoding::BASE64;

/// How one scenario ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The exit status as a shell reports it.
    pub code: i32,
    /// The scenario's stdout.
    pub stdout: String,
    /// The scenario's stderr, which the product writes to as well.
    pub stderr: String,
}

impl Answer {
    /// Parses a line of the console: the number of a scenario, and how it ended.
    pub(crate) fn parse(line: &str) -> Option<(usize, Self)> {
        let mut words = line.trim().strip_prefix("RESULT ")?.split(' ');
        let number = words.next()?.parse().ok()?;
        let code = words.next()?.parse().ok()?;
        let mut text = |prefix: &str| {
            let octets = BASE64.decode(words.next()?.strip_prefix(prefix)?.as_bytes()).ok()?;
            Some(String::from_utf8_lossy(&octets).into_owned())
        };
        Some((number, Self { code, stdout: text("out:")?, stderr: text("err:")? }))
    }

    /// Returns the output for `key`, from a line `key=…`.
    ///
    /// # Panics
    /// When there is no such line.
    #[must_use]
    pub fn said(&self, key: &str) -> &str {
        let found = self.stdout.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("nothing was said of {key}: {self}"))
    }

    /// Returns the JSON objects among the lines of the output: reports of the probe, and the output of `--json`.
    #[must_use]
    pub fn objects(&self) -> Vec<serde_json::Value> {
        self.stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, stdout, stderr } = self;
        write!(f, "code {code}\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_are_answers() {
        let (number, answer) = Answer::parse("RESULT 7 137 out:YT0xCg== err:\r\n").unwrap();
        assert_eq!((number, answer.code, answer.said("a"), &*answer.stderr), (7, 137, "1", ""));
        for line in ["RESULT 7 137 out:YT0x", "RESULT x 0 out: err:", "[ 1.2] RESULT 1 0 out: err:"] {
            assert_eq!(Answer::parse(line), None, "{line}");
        }
    }
}
