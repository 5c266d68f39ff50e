//! Basic authentication: `user:password` in base64 (RFC 7617).

use data_encoding::BASE64;

/// Returns the decoded `user:password` of basic authentication.
pub(super) fn basic_of(name: &str, value: &[u8]) -> Option<Vec<u8>> {
    let scheme = value.get(..6)?;
    let basic = name == "authorization" && scheme.eq_ignore_ascii_case(b"basic ");
    let encoded = value[6..].trim_ascii();
    basic.then(|| BASE64.decode(encoded).ok()).flatten()
}

/// Returns the value of `Authorization` for a `user:password`.
pub(super) fn basic_value(text: &[u8]) -> Vec<u8> {
    format!("Basic {}", BASE64.encode(text)).into_bytes()
}

/// Splits basic authentication into user and password.
pub(super) fn user_and_password(basic: &[u8]) -> (&[u8], &[u8]) {
    let mut parts = basic.splitn(2, |b| *b == b':');
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}

/// Whether a password is empty or a stand-in, so that the user's name is the key.
pub(super) fn is_no_password(password: &[u8]) -> bool {
    password.is_empty() || password == b"x-oauth-basic"
}
