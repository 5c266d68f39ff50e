//! Replaces a credential that the run gave to its command by value (`--expose`) by its placeholder, where a key may stand and on a host
//! that the credential is bound to. The request then goes on like any other with a placeholder: it carries the current credential, and
//! its response is searched. Anywhere else the value is a key like any other.

use policy::{Provider, Target};

use super::agent_credentials::{self, KeyNames};
use super::draft::Sending;
use super::substitution;
use crate::gate::Gate;

/// Replaces the provider's exposed value by its placeholder where it stands as a key.
pub(super) fn read_as_placeholder(sending: &mut Sending, gate: &Gate, provider: &Provider, target: &Target) {
    if provider.exposed().is_empty() {
        return;
    }
    let credentials = gate.credentials();
    let Some(stand_in) = credentials.placeholder_of(provider.id()) else { return };
    let places = KeyNames::of(Some(provider), target);
    let is_it = |text: &[u8]| credentials.is_exposed(provider.id(), text);
    if let Some(origin_form) = with_parameters(&sending.origin_form, &places, &is_it, stand_in.as_str()) {
        sending.origin_form = origin_form;
    }
    let rewritten = sending.fields.rewrite(|name, value| {
        let key = places.is_header(name).then(|| with_key(name, value, &is_it, stand_in.as_str().as_bytes()));
        Ok::<_, std::convert::Infallible>(key.flatten())
    });
    let Ok(()) = rewritten;
}

/// Returns a header's value with `other` in place of its key, if `is_it` says that the key is the exposed one. The key is the part that
/// [`agent_credentials::refuse_own`] looks at.
fn with_key(name: &str, value: &[u8], is_it: &impl Fn(&[u8]) -> bool, other: &[u8]) -> Option<Vec<u8>> {
    if let Some(basic) = substitution::basic_of(name, value) {
        let (user, password) = agent_credentials::user_and_password(&basic);
        if is_it(password) {
            return Some(substitution::basic_value(&[user, b":", other].concat()));
        }
        return (agent_credentials::is_no_password(password) && is_it(user))
            .then(|| substitution::basic_value(&[other, b":", password].concat()));
    }
    let value = value.trim_ascii();
    if is_it(value) {
        return Some(other.to_vec());
    }
    let scheme = agent_credentials::scheme_of(value)?;
    is_it(&value[scheme.len()..]).then(|| [scheme, other].concat())
}

/// Returns the target with `other` in the parameters that hold the exposed value, plain or percent-encoded.
fn with_parameters(
    origin_form: &str,
    places: &KeyNames<'_>,
    is_it: &impl Fn(&[u8]) -> bool,
    other: &str,
) -> Option<String> {
    let (path, query) = origin_form.split_once('?')?;
    let mut out = format!("{path}?");
    let mut changed = false;
    for part in query.split_inclusive(['&', ';']) {
        let pair = part.strip_suffix(['&', ';']).unwrap_or(part);
        let meant = pair.split_once('=').filter(|(name, value)| {
            places.is_parameter(name)
                && (is_it(value.as_bytes()) || is_it(agent_credentials::decoded(value).as_bytes()))
        });
        match meant {
            Some((name, _)) => {
                changed = true;
                out.extend([name, "=", other, &part[pair.len()..]]);
            }
            None => out.push_str(part),
        }
    }
    changed.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: &str = "lgph_0123456789abcdefghijklmnopqrstuv";

    fn is_it(text: &[u8]) -> bool {
        text == b"s3cret/+"
    }

    fn basic(text: &str) -> Vec<u8> {
        substitution::basic_value(text.as_bytes())
    }

    #[test]
    fn a_key_is_read_as_a_placeholder_where_a_placeholder_may_be_one() {
        let rekeyed = |value: &[u8]| with_key("authorization", value, &is_it, OTHER.as_bytes());
        for (value, wanted) in [
            (b"s3cret/+".to_vec(), OTHER.as_bytes().to_vec()),
            (b"Bearer s3cret/+ ".to_vec(), format!("Bearer {OTHER}").into()),
            (b"token s3cret/+".to_vec(), format!("token {OTHER}").into()),
            (basic("x-access-token:s3cret/+"), basic(&format!("x-access-token:{OTHER}"))),
            (basic("s3cret/+:"), basic(&format!("{OTHER}:"))),
            (basic("s3cret/+:x-oauth-basic"), basic(&format!("{OTHER}:x-oauth-basic"))),
        ] {
            assert_eq!(rekeyed(&value), Some(wanted), "{}", String::from_utf8_lossy(&value));
        }
        for value in [
            b"Bearer own".to_vec(),
            b"Bearer s3cret/+x".to_vec(),
            b"Bearer s3cret/+, Bearer own".to_vec(),
            b"a b s3cret/+".to_vec(),
            basic("s3cret/+:own"),
            basic("me:own"),
            Vec::new(),
        ] {
            assert_eq!(rekeyed(&value), None, "{}", String::from_utf8_lossy(&value));
        }
        // Basic authentication is known in `Authorization` only.
        assert_eq!(with_key("x-api-key", &basic("me:s3cret/+"), &is_it, OTHER.as_bytes()), None);
    }

    #[test]
    fn so_is_a_parameter_by_which_services_are_told_who_asks() {
        let places = KeyNames::of(None, &Target::parse("https://api.example.com/").unwrap());
        let rewritten = |target: &str| with_parameters(target, &places, &is_it, OTHER);
        assert_eq!(
            rewritten("/v1?a=1&key=s3cret/+&b=2;token=s3cret%2F%2B&c"),
            Some(format!("/v1?a=1&key={OTHER}&b=2;token={OTHER}&c"))
        );
        assert_eq!(rewritten("/v1?%6Bey=s3cret%2F%2B"), Some(format!("/v1?%6Bey={OTHER}")));
        for target in ["/v1", "/v1?", "/s3cret/+?key=own", "/v1?q=s3cret/+", "/v1?key=s3cret/+x", "/v1?key"] {
            assert_eq!(rewritten(target), None, "{target}");
        }
    }
}
