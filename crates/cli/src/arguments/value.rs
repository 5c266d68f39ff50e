//! Values of flags whose own errors are a programmer's words, and what is told of them instead.

use std::net::SocketAddr;
use std::num::{IntErrorKind, ParseIntError};
use std::str::FromStr;
use std::time::Duration;

/// Parses where something listens. No name is resolved.
pub(super) fn place(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "write an address and a port, as 127.0.0.1:8081")
}

/// Parses a number of things.
pub(super) fn count<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, String> {
    whole(text, u64::MAX >> (64 - 8 * size_of::<T>()))
}

/// Parses a number of processes. One that can be held in itself is judged with those of files.
pub(super) fn pids(text: &str) -> Result<u32, String> {
    whole(text, ::policy::Limits::MOST_PIDS.into())
}

fn whole<T: FromStr<Err = ParseIntError>>(text: &str, largest: u64) -> Result<T, String> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => format!("the largest is {largest}"),
        _ => "write a whole number, as 20".to_owned(),
    })
}

/// Parses a duration; `0` is none.
pub(super) fn grace(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" => Ok(Duration::ZERO),
        text => {
            let span = text.parse::<::policy::Span>();
            span.map(::policy::Span::duration).map_err(|error| error.to_string())
        }
    }
}

/// Parses how old is old enough to be removed. Without a unit it would be seconds, and the default is days.
pub(super) fn age(text: &str) -> Result<::policy::Span, String> {
    if text.bytes().all(|octet| octet.is_ascii_digit()) {
        return Err("write its unit too, as 15d or 12h".into());
    }
    text.parse().map_err(|error: <::policy::Span as FromStr>::Err| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_its_unit() {
        assert_eq!(age("15d"), Ok(::policy::Span::from_secs(15 * 86_400)));
        for text in ["15", "0", ""] {
            assert!(age(text).unwrap_err().contains("unit"), "{text}");
        }
        assert!(age("1d12").unwrap_err().contains("`1d12` is not a time"));
    }

    #[test]
    fn a_number_that_is_too_large_is_told_the_largest() {
        assert_eq!(count::<u32>("4294967295"), Ok(u32::MAX));
        assert_eq!(count::<u32>("99999999999"), Err("the largest is 4294967295".into()));
        assert_eq!(pids("4294967296"), Err("the largest is 4194303".into()));
        for text in ["", "-1", "1.5", "many"] {
            assert_eq!(count::<u32>(text), Err("write a whole number, as 20".into()), "{text}");
        }
    }
}
