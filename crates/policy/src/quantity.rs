//! Quantities as people write them: `1536MiB`, `30m`, `2` or `0.5` processors.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::written::Number;

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It is written otherwise.
    #[error("`{}` is not {wanted}", text.escape_debug())]
    Form {
        /// The text.
        text: String,
        /// What is written there.
        wanted: &'static str,
    },
    /// It is written well, and too large to count with.
    #[error("`{}` is too large: {most} is the most that can be said", text.escape_debug())]
    TooLarge {
        /// The text.
        text: String,
        /// The largest there is.
        most: &'static str,
    },
}

/// A number of octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

const SIZE_UNITS: &[(&str, u64)] = &[
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("k", 1 << 10),
    ("K", 1 << 10),
    ("m", 1 << 20),
    ("M", 1 << 20),
    ("g", 1 << 30),
    ("G", 1 << 30),
    ("B", 1),
    ("", 1),
];

impl ByteSize {
    /// Creates a size from octets.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Creates a size from MiB.
    #[must_use]
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib << 20)
    }

    /// Returns the number of octets.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for ByteSize {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let error = || QuantityError::Form {
            text: text.into(),
            wanted: "a size in whole numbers such as 1536MiB, 4GiB or 500MB",
        };
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let factor = SIZE_UNITS.iter().find(|(name, _)| *name == unit.trim_start()).ok_or_else(error)?.1;
        if number.is_empty() {
            return Err(error());
        }
        // Digits alone: only their number can be wrong.
        let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
        bytes.map(Self).ok_or_else(|| QuantityError::TooLarge { text: text.into(), most: "16777215TiB" })
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            b if b != 0 && b % (1 << 30) == 0 => write!(f, "{}GiB", b >> 30),
            b if b >= 1 << 20 => write!(f, "{}MiB", b >> 20),
            b if b >= 1 << 10 => write!(f, "{}KiB", b >> 10),
            b => write!(f, "{b}B"),
        }
    }
}

/// A length of time, written `90`, `90s`, `30m`, `2h` or `1h30m`: the longest unit first. Only a number alone is without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(Duration);

impl Span {
    /// Creates a span from seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Returns the span as a [`Duration`].
    #[must_use]
    pub const fn duration(self) -> Duration {
        self.0
    }
}

impl FromStr for Span {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let error = || QuantityError::Form {
            text: text.into(),
            wanted: "a time such as 90s, 30m or 1h30m, of at most 4294967295s",
        };
        let mut total: u64 = 0;
        let mut longest = u64::MAX;
        let mut rest = text;
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let number: u64 = rest[..digits].parse().map_err(|_| error())?;
            let unit = rest[digits..].bytes().take_while(u8::is_ascii_alphabetic).count();
            let factor = match &rest[digits..digits + unit] {
                "" if digits == text.len() => 1,
                "s" => 1,
                "m" => 60,
                "h" => 3600,
                "d" => 86_400,
                _ => return Err(error()),
            };
            if factor >= longest {
                return Err(error());
            }
            longest = factor;
            total = number.checked_mul(factor).and_then(|n| total.checked_add(n)).ok_or_else(error)?;
            rest = &rest[digits + unit..];
        }
        // A moment this far ahead can still be reckoned with, and `PLATFORM_RUN_LIMITS` takes as much.
        if total == 0 || total > u64::from(u32::MAX) { Err(error()) } else { Ok(Self::from_secs(total)) }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            s if s % 3600 == 0 && s != 0 => write!(f, "{}h", s / 3600),
            s if s % 60 == 0 && s != 0 => write!(f, "{}m", s / 60),
            s => write!(f, "{s}s"),
        }
    }
}

/// A share of processors, in thousandths of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuCount(u32);

impl CpuCount {
    /// Creates a share from whole processors.
    #[must_use]
    pub const fn whole(count: u32) -> Self {
        Self(count * 1000)
    }

    /// Creates a share from thousandths of a processor.
    #[must_use]
    pub const fn from_milli(milli: u32) -> Self {
        Self(milli)
    }

    /// Returns the share in thousandths of a processor.
    #[must_use]
    pub const fn milli(self) -> u32 {
        self.0
    }
}

impl FromStr for CpuCount {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let error = || QuantityError::Form {
            text: text.into(),
            wanted: "a number of processors such as 2 or 0.5, from 0.01 to 9999.999",
        };
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let plain =
            |t: &str, most: usize| (1..=most).contains(&t.len()) && t.bytes().all(|b| b.is_ascii_digit());
        if !plain(whole, 4) || !plain(part, 3) {
            return Err(error());
        }
        let whole: u32 = whole.parse().map_err(|_| error())?;
        let milli: u32 = format!("{part:0<3}").parse().map_err(|_| error())?;
        let total = whole * 1000 + milli;
        if total < 10 { Err(error()) } else { Ok(Self(total)) }
    }
}

impl CpuCount {
    /// Returns it as a file says it.
    pub(crate) fn written(self) -> Number {
        match self.0.is_multiple_of(1000) {
            true => Number::Whole(self.0 / 1000),
            false => Number::Part(f64::from(self.0) / 1000.0),
        }
    }
}

impl fmt::Display for CpuCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written().text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_read_as_people_write_them() {
        assert_eq!("1536MiB".parse::<ByteSize>().unwrap().bytes(), 1536 << 20);
        assert_eq!("2g".parse::<ByteSize>().unwrap().to_string(), "2GiB");
        assert_eq!("1h30m".parse::<Span>().unwrap().duration().as_secs(), 5400);
        assert_eq!("0.5".parse::<CpuCount>().unwrap().milli(), 500);
        for text in ["", "MiB", "-1", "1.5GiB", "99999999999999TiB", "1 fortnight"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
        for (text, is_too_large) in
            [("16777216TiB", true), ("18446744073709551616", true), ("16777215TiB", false), ("9TiBs", false)]
        {
            let error = text.parse::<ByteSize>().err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(error.contains("too large"), is_too_large, "{text}: {error}");
        }
        assert_eq!("4294967295s".parse::<Span>().unwrap().duration().as_secs(), u64::from(u32::MAX));
        assert_eq!("90".parse::<Span>(), "1m30s".parse());
        for text in [
            "",
            "0",
            "m",
            "-3s",
            "1x",
            "4294967296",
            "49711d",
            "18446744073709551615s",
            "1h30",
            "1s1h",
            "1m1m",
        ] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
        for error in ["\u{1b}[2J".parse::<Span>().unwrap_err(), "9\u{1b}[2J".parse::<ByteSize>().unwrap_err()]
        {
            assert!(
                error.to_string().contains("\\u{1b}[2J") && !error.to_string().contains('\u{1b}'),
                "{error}"
            );
        }
        for text in ["", "0", "0.001", "a", "1.", ".5", "99999"] {
            assert!(text.parse::<CpuCount>().is_err(), "{text}");
        }
    }
}
