//! Formats the time of records: RFC 3339 UTC with microseconds. The text of a second is cached, for the other records in it.

use std::fmt::Write;

use jiff::Timestamp;

/// Formats the current time.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// The cached second, since 1970, and its text up to the decimal point.
    second: i64,
    text: String,
}

impl Clock {
    /// Returns the current time, as in `2026-01-02T03:04:05.000006Z`.
    pub(super) fn now(&mut self) -> String {
        self.tell(Timestamp::now())
    }

    fn tell(&mut self, at: Timestamp) -> String {
        let microseconds = at.as_microsecond();
        let second = microseconds.div_euclid(1_000_000);
        if second != self.second || self.text.is_empty() {
            self.second = second;
            self.text = at.strftime("%Y-%m-%dT%H:%M:%S.").to_string();
        }
        let mut out = String::with_capacity(self.text.len() + 7);
        out.push_str(&self.text);
        let _ = write!(out, "{:06}Z", microseconds.rem_euclid(1_000_000));
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_what_the_library_writes(
            times in proptest::collection::vec(0_i64..4_000_000_000_000_000, 1..8),
            step in 0_i64..3_000_000,
        ) {
            let mut clock = Clock::default();
            for time in times.into_iter().flat_map(|time| [time, time + step]) {
                let at = Timestamp::from_microsecond(time).unwrap();
                prop_assert_eq!(clock.tell(at), at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string());
            }
        }
    }
}
