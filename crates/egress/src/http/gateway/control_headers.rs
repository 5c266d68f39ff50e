//! Reads what a request to `/proxy` asks for from its control headers, as the existing sidecar reads them. S0.26, S1.19

use policy::ProviderId;

use crate::http::Fields;

/// How much of a response is returned unless the request says otherwise (S0.53).
const MAX_RESPONSE_SIZE: usize = 50_000;
/// The most that a request may ask for (S0.53).
const ABSOLUTE_MAX_RESPONSE_SIZE: usize = 1_000_000;

/// The control headers of one request.
pub(super) struct ControlHeaders {
    pub(super) provider: ProviderId,
    /// The target URL, which may hold `{{…}}` in its path and query.
    pub(super) target: String,
    pub(super) substitute_body: bool,
    /// The size in octets beyond which the response is truncated.
    pub(super) max_response_size: usize,
    /// The declared proxy to go through.
    pub(super) proxy: Option<String>,
}

impl ControlHeaders {
    /// Reads the control headers.
    ///
    /// # Errors
    /// `X-Provider` or `X-Target` is missing, empty, repeated or malformed. The text is the one that existing clients know.
    pub(super) fn read(fields: &Fields) -> Result<Self, &'static str> {
        let provider = one(fields, "x-provider", "Missing X-Provider header")?;
        let target = one(fields, "x-target", "Missing X-Target header")?;
        let provider = provider.parse().map_err(|_| "Invalid X-Provider format")?;
        // JavaScript's truth of a header's text.
        let substitute_body = fields.values("x-substitute-body").any(|value| !value.is_empty());
        let proxy = fields.text("x-proxy").filter(|name| !name.is_empty()).map(str::to_owned);
        let max_response_size = max_response_size(fields);
        Ok(Self { provider, target: target.to_owned(), substitute_body, max_response_size, proxy })
    }
}

/// Returns the only value of a required field. Repeated fields are refused, because two readers could each take another one.
fn one<'a>(fields: &'a Fields, name: &'static str, missing: &'static str) -> Result<&'a str, &'static str> {
    match fields.values(name).count() {
        0 | 1 => fields.text(name).filter(|value| !value.is_empty()).ok_or(missing),
        _ => Err("X-Provider and X-Target are given once each"),
    }
}

/// Returns the size that the first `X-Max-Response-Size` asks for, up to the ceiling. A value that is no positive number counts as none.
fn max_response_size(fields: &Fields) -> usize {
    match fields.values("x-max-response-size").next().map_or(0, leading_number) {
        0 => MAX_RESPONSE_SIZE,
        size => size.min(ABSOLUTE_MAX_RESPONSE_SIZE),
    }
}

/// Reads a number as JavaScript's `parseInt(value, 10)` does: white space, a sign, and digits up to the first other octet. Returns 0 where
/// the number is negative or there is none.
fn leading_number(value: &[u8]) -> usize {
    let value = value.trim_ascii_start();
    let digits = value.strip_prefix(b"+").unwrap_or(value).iter().take_while(|octet| octet.is_ascii_digit());
    digits.fold(0, |number: usize, digit| number.saturating_mul(10).saturating_add(usize::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(more: &[(&str, &[u8])]) -> ControlHeaders {
        let required: [(&str, &[u8]); 2] =
            [("x-provider", b"one"), ("x-target", b"https://api.example.com/")];
        ControlHeaders::read(&required.into_iter().chain(more.iter().copied()).collect())
            .expect("it is complete")
    }

    #[test]
    fn a_size_is_read_as_the_existing_sidecar_reads_it() {
        // S0.53
        let size = |value: &str| headers(&[("x-max-response-size", value.as_bytes())]).max_response_size;
        for (value, expected) in [
            ("1", 1),
            ("+99", 99),
            (" \t007", 7),
            ("12.9", 12),
            ("5e3", 5),
            ("100 octets", 100),
            ("60000, 7", 60_000),
            ("1000001", 1_000_000),
            ("99999999999999999999999999", 1_000_000),
        ] {
            assert_eq!(size(value), expected, "{value:?}");
        }
        for none in ["", "0", "0x10", "-5", "many", "+-5", "+ 5", "Infinity", "\u{e9}5"] {
            assert_eq!(size(none), 50_000, "{none:?}");
        }
        assert_eq!(headers(&[]).max_response_size, 50_000);
        let twice = headers(&[("x-max-response-size", b"7"), ("x-max-response-size", b"8")]);
        assert_eq!(twice.max_response_size, 7);
    }

    #[test]
    fn any_text_asks_for_the_body() {
        // S0.49
        let substitutes = |value: &[u8]| headers(&[("x-substitute-body", value)]).substitute_body;
        for value in ["true", "1", "false", "0"] {
            assert!(substitutes(value.as_bytes()), "{value}");
        }
        assert!(!substitutes(b"") && !headers(&[]).substitute_body);
    }

    #[test]
    fn an_empty_field_is_a_missing_one() {
        // S0.45, S0.46
        let refused = |provider: &str, target: &str| {
            let fields = [("x-provider", provider.as_bytes()), ("x-target", target.as_bytes())];
            ControlHeaders::read(&fields.into_iter().collect()).err()
        };
        assert_eq!(refused("", "https://api.example.com/"), Some("Missing X-Provider header"));
        assert_eq!(refused("one", ""), Some("Missing X-Target header"));
        assert_eq!(refused("One", "https://api.example.com/"), Some("Invalid X-Provider format"));
        assert_eq!(refused("one", "https://api.example.com/"), None);
    }
}
