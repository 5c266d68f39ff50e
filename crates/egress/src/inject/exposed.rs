//! Replaces a credential that the run gave to its command by value (`--expose`) by its placeholder, where a key may stand and on a host
//! that the credential is bound to. The request then goes on like any other with a placeholder: it carries the current credential, and
//! its response is searched. Anywhere else the value is a key like any other.

use policy::{Provider, Target};

use super::draft::Sending;
use super::key_names::KeyNames;
use super::{basic, percent, subprotocol};
use crate::gate::Gate;

/// Whether the provider's exposed value stands in a request as a key.
pub(super) fn is_in(sending: &Sending, gate: &Gate, provider: &Provider, target: &Target) -> bool {
    !provider.exposed().is_empty()
        && read_as_placeholder(&mut sending.clone(), gate, provider, target) == Found::Exposed
}

/// Whether an exposed value stood in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Exposed,
    Nothing,
}

impl Found {
    /// What a denial calls a placeholder in a wrong place: the program may have sent none.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Exposed => "the exposed value, or a placeholder,",
            Self::Nothing => "a placeholder",
        }
    }
}

/// Replaces the provider's exposed value by its placeholder where it stands as a key.
pub(super) fn read_as_placeholder(
    sending: &mut Sending,
    gate: &Gate,
    provider: &Provider,
    target: &Target,
) -> Found {
    let mut found = Found::Nothing;
    if provider.exposed().is_empty() {
        return found;
    }
    let credentials = gate.credentials();
    let Some(stand_in) = credentials.placeholder_of(provider.id()) else { return found };
    let places = KeyNames::of(Some(provider), target);
    let is_it = |text: &[u8]| credentials.is_exposed(provider.id(), text);
    if let Some(origin_form) = with_parameters(&sending.origin_form, &places, &is_it, stand_in.as_str()) {
        sending.origin_form = origin_form;
        found = Found::Exposed;
    }
    let stand_in = stand_in.as_str().as_bytes();
    let replaced = |text: &[u8]| credentials.without_exposed(provider.id(), text, stand_in);
    let rewritten = sending.fields.rewrite(|name, value| {
        // What stands beside it there, and whether it may stand there, is judged as with any placeholder.
        let is_place = places.is_header(name) || name == "cookie" || subprotocol::is_field(name);
        let key = is_place.then(|| with_key(name, value, &is_it, &replaced, stand_in)).flatten();
        if key.is_some() {
            found = Found::Exposed;
        }
        Ok::<_, std::convert::Infallible>(key)
    });
    let Ok(()) = rewritten;
    found
}

/// Returns a header's value as `replaced` makes it, or in basic authentication with `other` in place of its key, if `is_it` says that the
/// key is the exposed one. That key is the part that [`super::agent_credentials::refuse_own`] looks at.
fn with_key(
    name: &str,
    value: &[u8],
    is_it: &impl Fn(&[u8]) -> bool,
    replaced: &impl Fn(&[u8]) -> Option<Vec<u8>>,
    other: &[u8],
) -> Option<Vec<u8>> {
    if let Some(basic) = basic::basic_of(name, value) {
        let (user, password) = basic::user_and_password(&basic);
        if is_it(password) {
            return Some(basic::basic_value(&[user, b":", other].concat()));
        }
        return (basic::is_no_password(password) && is_it(user))
            .then(|| basic::basic_value(&[other, b":", password].concat()));
    }
    replaced(value.trim_ascii())
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
                && (is_it(value.as_bytes()) || is_it(percent::decoded(value).as_bytes()))
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

    const OTHER: &str = "lgph_0123456789abcdefghijklmnopqrstuvwxyz";

    fn is_it(text: &[u8]) -> bool {
        text == b"s3cret/+"
    }

    fn replaced(text: &[u8]) -> Option<Vec<u8>> {
        crate::credentials::replaced_alone(text, b"s3cret/+", OTHER.as_bytes())
    }

    fn basic(text: &str) -> Vec<u8> {
        basic::basic_value(text.as_bytes())
    }

    #[test]
    fn a_key_is_read_as_a_placeholder_where_a_placeholder_may_be_one() {
        let rekeyed = |value: &[u8]| with_key("authorization", value, &is_it, &replaced, OTHER.as_bytes());
        for (value, wanted) in [
            (b"s3cret/+".to_vec(), OTHER.as_bytes().to_vec()),
            (b"Bearer s3cret/+ ".to_vec(), format!("Bearer {OTHER}").into()),
            (b"token s3cret/+".to_vec(), format!("token {OTHER}").into()),
            (b"Token token=\"s3cret/+\"".to_vec(), format!("Token token=\"{OTHER}\"").into()),
            (b"chat, api-key.s3cret/+".to_vec(), format!("chat, api-key.{OTHER}").into()),
            (b"a=s3cret/+; b=s3cret/+".to_vec(), format!("a={OTHER}; b={OTHER}").into()),
            // What stands beside it is judged afterwards.
            (b"Bearer s3cret/+, Bearer own".to_vec(), format!("Bearer {OTHER}, Bearer own").into()),
            (basic("x-access-token:s3cret/+"), basic(&format!("x-access-token:{OTHER}"))),
            (basic("s3cret/+:"), basic(&format!("{OTHER}:"))),
            (basic("s3cret/+:x-oauth-basic"), basic(&format!("{OTHER}:x-oauth-basic"))),
        ] {
            assert_eq!(rekeyed(&value), Some(wanted), "{}", String::from_utf8_lossy(&value));
        }
        for value in [
            b"Bearer own".to_vec(),
            b"Bearer s3cret/+x".to_vec(),
            b"Bearer xs3cret/+".to_vec(),
            basic("s3cret/+:own"),
            basic("me:own"),
            Vec::new(),
        ] {
            assert_eq!(rekeyed(&value), None, "{}", String::from_utf8_lossy(&value));
        }
        // Basic authentication is known in `Authorization` only.
        assert_eq!(with_key("x-api-key", &basic("me:s3cret/+"), &is_it, &replaced, OTHER.as_bytes()), None);
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
