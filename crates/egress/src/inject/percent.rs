//! Percent-decoding of names and texts, as often as some server may do it.

use std::borrow::Cow;

/// Percent-decodes until nothing changes any more, four times at most, with `+` as a space.
pub(super) fn decoded(name: &str) -> Cow<'_, str> {
    if memchr::memchr2(b'%', b'+', name.as_bytes()).is_none() {
        return Cow::Borrowed(name.trim());
    }
    let mut name = name.replace('+', " ");
    for _ in 0..4 {
        let next = decoded_once(&name);
        if next == name {
            break;
        }
        name = next;
    }
    Cow::Owned(name.trim().to_owned())
}

pub(super) fn decoded_once(name: &str) -> String {
    let mut octets = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let pair = after.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match pair.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(octet) => {
                octets.push(octet);
                rest = &after[2..];
            }
            None => {
                octets.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&octets).into_owned()
}
