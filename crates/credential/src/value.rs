//! The value of a credential's field. It is checked once, on input, so that later stages can rely on it.
//!
//! Checks that depend on the position in a request are in [`Position`](crate::Position).

use crate::placeholder::Placeholder;
use crate::secret::Secret;

/// The most octets of a value. Every server refuses header sections of this size.
const MOST: usize = 64 << 10;

/// A checked secret: 1 octet to 64 KiB, without CR, LF or NUL, so it cannot end a header line or a C string.
#[derive(Clone, Debug)]
pub struct Value(Secret);

/// The reason why a secret cannot be a credential's value. Offsets are in octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// It is empty.
    #[error("the value is empty")]
    Empty,
    /// It is longer than 64 KiB.
    #[error("the value has more than {MOST} octets")]
    TooLong,
    /// It holds a carriage return.
    #[error(
        "the value holds a carriage return (CR) at octet {at}; give it on one line, without the line's end"
    )]
    CarriageReturn {
        /// Its offset.
        at: usize,
    },
    /// It holds a line feed.
    #[error("the value holds a line feed (LF) at octet {at}; give it on one line, without the line's end")]
    LineFeed {
        /// Its offset.
        at: usize,
    },
    /// It is not UTF-8.
    #[error("the value is no UTF-8 from octet {at} on; give octets as text, for instance in base64")]
    NoText {
        /// Its offset.
        at: usize,
    },
    /// It begins or ends with a space or a tab.
    #[error("the value has a blank at its {end}; give it without")]
    Blank {
        /// `beginning` or `end`.
        end: &'static str,
    },
    /// It holds a control character.
    #[error(
        "the value holds a control character (0x{octet:02x}) at octet {at}, which no header takes; give it as text"
    )]
    Control {
        /// The character.
        octet: u8,
        /// Its offset.
        at: usize,
    },
    /// It holds a placeholder.
    #[error("the value is a placeholder, which stands for a credential in a run and is none")]
    Placeholder,
    /// It holds a NUL.
    #[error("the value holds a NUL at octet {at}; give it as text")]
    Nul {
        /// Its offset.
        at: usize,
    },
}

impl Value {
    /// Checks a secret.
    ///
    /// # Errors
    /// If it is empty, longer than 64 KiB, or holds CR, LF or NUL, of which the error names the first.
    pub fn new(secret: Secret) -> Result<Self, ValueError> {
        let octets = secret.expose();
        if octets.is_empty() {
            return Err(ValueError::Empty);
        }
        if octets.len() > MOST {
            return Err(ValueError::TooLong);
        }
        let refused = octets.iter().enumerate().find_map(|(at, octet)| match octet {
            b'\r' => Some(ValueError::CarriageReturn { at }),
            b'\n' => Some(ValueError::LineFeed { at }),
            0 => Some(ValueError::Nul { at }),
            _ => None,
        });
        refused.map_or(Ok(Self(secret)), Err)
    }

    /// Checks a secret that a user stores. It must also be usable unchanged in a header.
    ///
    /// # Errors
    /// As [`new`](Self::new), and if it is not UTF-8, has a blank at an end, which servers remove, or holds a control character,
    /// which no header may (RFC 9110 §5.5). A placeholder is none: sent on, it would be taken for what it stands for.
    pub fn given(secret: Secret) -> Result<Self, ValueError> {
        let value = Self::new(secret)?;
        let octets = value.0.expose();
        let blank = |octet: Option<&u8>| matches!(octet, Some(b' ' | b'\t'));
        if let Err(error) = std::str::from_utf8(octets) {
            return Err(ValueError::NoText { at: error.valid_up_to() });
        }
        match (blank(octets.first()), blank(octets.last())) {
            (true, _) => Err(ValueError::Blank { end: "beginning" }),
            (_, true) => Err(ValueError::Blank { end: "end" }),
            _ if Placeholder::is_in(octets) => Err(ValueError::Placeholder),
            _ => match octets.iter().position(u8::is_ascii_control) {
                Some(at) => Err(ValueError::Control { octet: octets[at], at }),
                None => Ok(value),
            },
        }
    }

    /// Returns the secret.
    #[must_use]
    pub const fn secret(&self) -> &Secret {
        &self.0
    }

    pub(crate) fn into_secret(self) -> Secret {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(octets: &[u8]) -> Option<ValueError> {
        Value::new(Secret::new(octets.to_vec())).err()
    }

    #[test]
    fn what_no_position_can_hold_is_named() {
        assert_eq!(refusal(b""), Some(ValueError::Empty));
        assert_eq!(refusal(b"key\n"), Some(ValueError::LineFeed { at: 3 }));
        assert_eq!(refusal(b"key\r\n"), Some(ValueError::CarriageReturn { at: 3 }));
        assert_eq!(refusal(b"\0"), Some(ValueError::Nul { at: 0 }));
        assert_eq!(refusal(&vec![b'a'; MOST + 1]), Some(ValueError::TooLong));
    }

    #[test]
    fn what_is_given_can_be_used_as_it_is() {
        let given = |octets: &[u8]| Value::given(Secret::new(octets.to_vec())).err();
        assert_eq!(given(b"key "), Some(ValueError::Blank { end: "end" }));
        assert_eq!(given(b"\tkey"), Some(ValueError::Blank { end: "beginning" }));
        assert_eq!(given(b"ke\xffy"), Some(ValueError::NoText { at: 2 }));
        assert_eq!(given(b"\n"), Some(ValueError::LineFeed { at: 0 }));
        for octet in (0x01..=0x1f).chain([0x7f]).filter(|octet| !b"\r\n".contains(octet)) {
            assert_eq!(given(&[b'a', octet, b'b']), Some(ValueError::Control { octet, at: 1 }));
        }
        let placeholder = Placeholder::mint([7; 27]);
        assert_eq!(given(format!("Bearer {placeholder}").as_bytes()), Some(ValueError::Placeholder));
        assert_eq!(given("a bé".as_bytes()), None);
    }

    #[test]
    fn the_rest_is_taken_as_it_is() {
        for octets in [b"a".as_slice(), b"a b\tc", b"{{other}}", &[0xff, 0xfe], &vec![b'a'; MOST]] {
            assert_eq!(Value::new(Secret::new(octets.to_vec())).unwrap().secret().expose(), octets);
        }
    }

    #[test]
    fn no_refusal_shows_the_value() {
        let shown = format!("{}", refusal(b"hunter2\n").unwrap());
        assert!(shown.contains("line feed") && !shown.contains("hunter2"), "{shown}");
        assert_eq!(
            format!("{:?}", Value::new(Secret::new(b"hunter2".to_vec())).unwrap()),
            "Value(Secret(…))"
        );
    }
}
