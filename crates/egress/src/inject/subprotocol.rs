//! The key in a WebSocket's sub-protocols: the only place that browsers have for one, as in `openai-insecure-api-key.KEY`.
//!
//! A placeholder is replaced there. A service may name the sub-protocol that it takes, with the key in it: the agent is told the one that
//! it offered itself, because a client ends a connection with any other (RFC 6455 §4.1).
//!
//! A key that is a sub-protocol by itself (`token, KEY`) is not known as one: it cannot be told from a name.

use super::draft::{Form, Sending};
use super::key_names::may_be_same;
use super::marks::{is_placeholder, is_token_octet};
use crate::http::Fields;

const FIELD: &str = "sec-websocket-protocol";
/// The texts before a key.
const BEFORE_KEYS: &[&str] = &["api-key.", "apikey.", "token.", "bearer.", "authorization."];

/// Whether sub-protocols hold a key that is no placeholder.
pub(super) fn is_own(name: &str, value: &[u8], form: Form) -> bool {
    let is_own = |key: &[u8]| !key.is_empty() && !is_placeholder(key, form);
    is_field(name) && protocols(value).flat_map(keys_of).any(is_own)
}

/// Whether a field has sub-protocols.
pub(super) fn is_field(name: &str) -> bool {
    may_be_same(name, FIELD)
}

/// Whether placeholders stand in sub-protocols as keys alone. No server looks for them where no WebSocket is asked for.
pub(super) fn is_place(sending: &Sending, name: &str, value: &[u8], form: Form) -> bool {
    name == FIELD && sending.fields.has("sec-websocket-key") && are_keys(value, form)
}

fn are_keys(value: &[u8], form: Form) -> bool {
    let is_key = |protocol: &[u8]| match keys_of(protocol).as_slice() {
        [before @ .., key] => before.iter().all(|it| it.is_empty()) && is_placeholder(key, form),
        [] => false,
    };
    protocols(value).all(|protocol| !form.marks(protocol) || is_key(protocol))
}

/// Whether a value that came of its placeholders still names as many sub-protocols, each of them a token.
pub(super) fn is_fit(name: &str, written: &[u8], filled: &[u8]) -> bool {
    let are_tokens = || protocols(filled).all(|one| one.iter().all(|octet| is_token_octet(*octet)));
    !is_field(name) || (protocols(written).count() == protocols(filled).count() && are_tokens())
}

/// Replaces the sub-protocol in an answer by the one from which it came, if a key was put into that.
pub(super) fn restore(offered: &Fields, sent: &Fields, answered: &mut Fields) {
    let Some(taken) = answered.values(FIELD).next().map(<[u8]>::trim_ascii) else { return };
    let pairs = offered.values(FIELD).zip(sent.values(FIELD));
    let mut pairs = pairs.flat_map(|(offered, sent)| protocols(offered).zip(protocols(sent)));
    if let Some((offered, _)) = pairs.find(|(offered, sent)| offered != sent && *sent == taken) {
        let offered = offered.to_vec();
        answered.set(FIELD, &offered);
    }
}

fn protocols(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|b| *b == b',').map(<[u8]>::trim_ascii)
}

/// Returns what stands behind each text before a key, up to the next such text: a server may look behind any of them.
fn keys_of(protocol: &[u8]) -> Vec<&[u8]> {
    let plain =
        protocol.to_ascii_lowercase().iter().map(|b| if *b == b'_' { b'-' } else { *b }).collect::<Vec<_>>();
    let places = |before: &'static &str| {
        memchr::memmem::find_iter(&plain, before.as_bytes()).map(|at| (at, at + before.len()))
    };
    let mut places: Vec<(usize, usize)> = BEFORE_KEYS.iter().flat_map(places).collect();
    places.sort_unstable();
    let ends = places.iter().skip(1).map(|(at, _)| *at).chain([protocol.len()]);
    places.iter().zip(ends).map(|((_, behind), end)| &protocol[*behind..end]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "lgph_0123456789abcdefghijklmnopqrstuvwxyz";

    #[test]
    fn a_key_is_seen_in_a_subprotocol() {
        let own = |value: &str| is_own(FIELD, value.as_bytes(), Form::Placeholders);
        for value in [
            "realtime, openai-insecure-api-key.sk-1",
            "x_api_key.sk-1",
            "Access-Token.a, chat",
            "base64url.bearer.authorization.k8s.io.YWJj",
            &format!("openai-insecure-api-key.{OURS}x"),
            &format!("token.a.token.{OURS}x"),
            &format!("token.sk-own.token.{OURS}"),
            "api-key.sk-own.token.",
            &format!("api-key.{OURS}.token.{OURS}"),
            &format!("api-key.{OURS}, api-key.sk-1"),
        ] {
            assert!(own(value), "{value}");
        }
        for value in [
            "realtime, openai-beta.realtime-v1",
            "graphql-ws",
            &format!("my-api-key.{OURS}"),
            "token.",
            &format!("bearer.authorization.{OURS}"),
        ] {
            assert!(!own(value), "{value}");
        }
        assert!(!is_own("x-note", b"api-key.sk-1", Form::Placeholders));
    }

    #[test]
    fn a_placeholder_stands_as_the_key_of_a_subprotocol() {
        let is_place = |value: &str| are_keys(value.as_bytes(), Form::Placeholders);
        assert!(is_place(&format!("realtime, openai-insecure-api-key.{OURS}, openai-beta.realtime-v1")));
        for value in [
            OURS.to_owned(),
            format!("chat.{OURS}"),
            format!("api-key.{OURS}x"),
            format!("token.sk-own.token.{OURS}"),
            format!("api-key.{OURS}.token."),
            format!("api-key.{OURS}, chat.{OURS}"),
        ] {
            assert!(!is_place(&value), "{value}");
        }
        assert!(is_fit(FIELD, b"a, api-key.x", b"a, api-key.sk-1"));
        for filled in ["a, api-key.sk/1", "a, api-key.sk, b", "a, api-key.s k", "a, api-key.\u{e9}"] {
            assert!(!is_fit(FIELD, b"a, api-key.x", filled.as_bytes()), "{filled}");
        }
        assert!(is_fit("x-note", b"x", b"a b/c"));
    }

    #[test]
    fn an_agent_is_told_the_subprotocol_that_it_offered() {
        let fields = |value: &str| Fields::from_iter([(FIELD, value.as_bytes())]);
        let told = |answered: &str| {
            let mut answered = fields(answered);
            restore(&fields("chat, api-key.PLACE"), &fields("chat, api-key.sk-1"), &mut answered);
            answered.text(FIELD).unwrap().to_owned()
        };
        assert_eq!(told("api-key.sk-1"), "api-key.PLACE");
        for other in ["chat", "api-key.sk-2", "api-key.sk-1, chat"] {
            assert_eq!(told(other), other);
        }
    }
}
