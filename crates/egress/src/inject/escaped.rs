//! Finds `{{field}}` where it is written in an escaped form, in which it is not replaced and which a service decodes. What would be filled
//! only in part is refused, and never sent on (C08).

use std::borrow::Cow;

use credential::{Credential, Position, count_fields};
use policy::{Denial, Guard};

use super::draft::Sending;
use super::percent;

/// Refuses an escaped `{{field}}` of the credential in the target and the headers.
pub(super) fn refuse_in_head(sending: &Sending, credential: &Credential) -> Result<(), Denial> {
    let is_in = |text: &[u8]| is_behind(text, credential, |text| Cow::Owned(percent_decoded(text)));
    if is_in(sending.origin_form.as_bytes()) {
        return Err(denial("URL"));
    }
    match sending.fields.iter().any(|(_, value)| is_in(value)) {
        true => Err(denial("header")),
        false => Ok(()),
    }
}

/// Refuses an escaped `{{field}}` of the credential in a body that is written as `position` says.
pub(crate) fn refuse_in_body(body: &[u8], credential: &Credential, position: Position) -> Result<(), Denial> {
    let is_in = is_behind(body, credential, |text| match position {
        Position::Json => Cow::Owned(json_unescaped(text)),
        Position::Form => Cow::Owned(percent_decoded(text)),
        _ => Cow::Borrowed(text),
    });
    if is_in { Err(denial("body")) } else { Ok(()) }
}

fn denial(place: &str) -> Denial {
    let reason = format!(
        "Unresolved placeholders in {place}: one is written in an escaped form, in which it is not replaced"
    );
    Denial::new(Guard::Unresolved, reason).with_hint("write its braces as they are: {{field}}")
}

/// Whether more of the credential's fields stand in a text once it is decoded.
fn is_behind<'a>(
    text: &'a [u8],
    credential: &Credential,
    decode: impl FnOnce(&'a [u8]) -> Cow<'a, [u8]>,
) -> bool {
    memchr::memchr2(b'%', b'\\', text).is_some()
        && count_fields(&decode(text), credential) > count_fields(text, credential)
}

fn percent_decoded(text: &[u8]) -> Vec<u8> {
    percent::decoded(&String::from_utf8_lossy(text)).into_owned().into_bytes()
}

/// Replaces the escapes of JSON that stand for ASCII (RFC 8259 §7).
fn json_unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let escape = after.split_first().filter(|_| *first == b'\\');
        let Some((kind, behind)) = escape else {
            out.push(*first);
            rest = after;
            continue;
        };
        let digits = behind.get(..4).filter(|_| *kind == b'u');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::try_from(u32::from_str_radix(digits, 16).ok()?).ok()) {
            Some(octet) if octet.is_ascii() => {
                out.push(octet);
                rest = &behind[4..];
            }
            _ => {
                // An escaped backslash must not be taken for the beginning of an escape.
                out.extend([*first, *kind]);
                rest = behind;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use credential::{Secret, Value};
    use policy::{Method, Target};

    use super::*;
    use crate::http::Fields;

    fn credential() -> Credential {
        let mut credential = Credential::default();
        let value = Value::new(Secret::from_text("sk-1".to_owned())).unwrap();
        credential.set("access_token".parse().unwrap(), value);
        credential
    }

    #[test]
    fn a_field_is_seen_in_its_escaped_forms() {
        let refused =
            |body: &str, position| refuse_in_body(body.as_bytes(), &credential(), position).is_err();
        for body in [
            r#"{"t":"\u007b{access_token}}","u":"{{access_token}}"}"#,
            r#"{"t":"{{access\u005Ftoken}}"}"#,
            r#"{"t":"\\\u007b\u007Baccess_token\u007d\u007d"}"#,
        ] {
            assert!(refused(body, Position::Json), "{body}");
            assert!(!refused(body, Position::Text), "{body}");
        }
        for body in [
            r#"{"t":"{{access_token}}\n\u00e9\ud83d\ude00\u"}"#,
            r#"{"t":"\\u007b{access_token}}"}"#,
            r#"{"t":"\u007b{another}}"}"#,
            r#"{"t":"{{access_token}}"}"#,
        ] {
            assert!(!refused(body, Position::Json), "{body}");
        }
        assert!(refused("a=%7B{access_token}}&b={{access_token}}", Position::Form));
        assert!(!refused("a=%7B%7Bother%7D%7D&b={{access_token}}%20", Position::Form));
    }

    #[test]
    fn so_it_is_in_the_head() {
        let refused = |target: &str, header: &str| {
            let at = Target::parse("https://api.example.com/").unwrap();
            let fields = Fields::from_iter([("x-key", header.as_bytes())]);
            let mut sending = Sending::new(Method::parse("GET").unwrap(), &at, fields);
            sending.origin_form = target.to_owned();
            refuse_in_head(&sending, &credential()).map_err(|denial| (denial.guard, denial.reason)).err()
        };
        for target in ["/%7B%7Baccess_token%7D%7D", "/?a=%257b%257baccess_token%257d%257d"] {
            let (guard, why) = refused(target, "x").unwrap();
            assert!(guard == Guard::Unresolved && why.contains("in URL"), "{target}: {why}");
        }
        assert!(refused("/", "%7B%7Baccess_token%7D%7D").unwrap().1.contains("in header"));
        for target in ["/{{access_token}}?a=%20", "/%7B%7Bother%7D%7D", "/%7Baccess_token%7D"] {
            assert_eq!(refused(target, "100% {{access_token}}"), None, "{target}");
        }
    }
}
