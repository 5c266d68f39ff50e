//! Refuses credentials of the agent's own on a host with a bound credential. Only the bound one may authenticate there; otherwise an
//! allowed host is a way out to the agent's own account on it.

use std::sync::Arc;

use credential::Placeholder;
use policy::{Denial, Guard, Placeholders, Provider, Target};

use super::draft::{Form, Sending};
use super::exposed::Found;
use super::key_names::{KeyNames, is_forwarded};
use super::marks::Marks;
use super::percent::decoded;
use super::{basic, cookies, subprotocol};
use crate::http::Fields;

/// The parameter by which MCP over HTTP with SSE names a session, as `Mcp-Session-Id` and `session_id` do elsewhere. Of itself it may be a
/// login too.
const SESSION: &str = "sessionId";

/// Where a request to this target may hold a key. `others` are the further providers that are good for it: their services look for keys in
/// their places too.
fn places<'a>(
    provider: Option<&'a Arc<Provider>>,
    others: &[&'a Arc<Provider>],
    target: &Target,
) -> Vec<KeyNames<'a>> {
    let all = others.iter().copied().map(Some).chain([provider]);
    all.map(|it| KeyNames::of(it.map(AsRef::as_ref), target)).collect()
}

/// Whether some service looks for a key in this header.
fn is_looked_at(name: &str, places: &[KeyNames<'_>]) -> bool {
    is_forwarded(name) || places.iter().any(|names| names.may_be_header(name))
}

/// Leaves out the headers of keys that bring none, as programs send them whose variable is not set: the provider's credential takes
/// their place.
pub(super) fn leave_out_empty(
    sending: &mut Sending,
    provider: Option<&Arc<Provider>>,
    others: &[&Arc<Provider>],
    target: &Target,
) {
    let places = places(provider, others, target);
    sending.fields.keep_each(|name, value| !(is_looked_at(name, &places) && brings_none(name, value)));
}

/// The schemes behind which programs put a key, which stand alone where they have none. Any other word may be a key.
const SCHEMES: [&[u8]; 3] = [b"bearer", b"basic", b"token"];

fn brings_none(name: &str, value: &[u8]) -> bool {
    let value = value.trim_ascii();
    let has_scheme = || name == "authorization" || is_forwarded(name);
    value.is_empty() || (has_scheme() && SCHEMES.iter().any(|scheme| value.eq_ignore_ascii_case(scheme)))
}

/// Refuses a request that brings a credential of the agent's own, in one of its [`places`] or in a cookie.
pub(super) fn refuse_own(
    sending: &Sending,
    provider: Option<&Arc<Provider>>,
    others: &[&Arc<Provider>],
    target: &Target,
    form: Form,
) -> Result<(), Denial> {
    let pinned = |what: &str, hint: String| {
        let reason =
            format!("{} has a bound credential, and the request brings its own {what}", sending.authority);
        Err(Denial::new(Guard::Pinned, reason).with_hint(hint))
    };
    let marks = Marks::of(provider.map(AsRef::as_ref), target, form);
    let places = places(provider, others, target);
    for (name, value) in sending.fields.iter() {
        let is_own = match name {
            "cookie" if form.marks(value) => !cookies::are_ours(value, marks, form),
            _ if is_looked_at(name, &places) => !marks.are_all_of_header(name, value),
            _ => subprotocol::is_own(name, value, form),
        };
        if is_own {
            return pinned(&format!("`{name}`"), what_to_send(provider.map(AsRef::as_ref)));
        }
    }
    for (written, value) in parameters(sending, &['&', ';']) {
        let name = decoded(written);
        let is_looked_at = places.iter().any(|names| names.may_be_parameter(&name));
        if !is_looked_at || value.is_empty() || marks.are_all_of_parameter(written, value.as_bytes()) {
            continue;
        }
        let is_session = name == SESSION && !places.iter().any(|names| names.is_own_parameter(SESSION));
        if is_session && provider.is_some_and(|provider| fills_own_place(sending, provider, target, form)) {
            continue;
        }
        let hint = match is_session {
            true => format!(
                "`{SESSION}` may stand where the provider's `inject` puts its credential into the request, or a placeholder \
                 stands just as it would; else only with `pinned = false`"
            ),
            false => what_to_send(provider.map(AsRef::as_ref)),
        };
        return pinned(&format!("query parameter `{}`", name.escape_default()), hint);
    }
    Ok(())
}

/// Says what a request may bring in place of a credential of its own.
fn what_to_send(provider: Option<&Provider>) -> String {
    let Some((provider, names)) = provider.map(|it| (it, it.environment())).filter(|(_, it)| !it.is_empty())
    else {
        return "send none: the credential is put in on the way".to_owned();
    };
    let names = names.join(" or ");
    let signs = match provider.exposed().is_empty() {
        true => "",
        false => "; a tool that signs with it needs `pinned = false`",
    };
    format!("send what {names} holds, or nothing: the credential is put in on the way{signs}")
}

/// Whether the provider's own place has its credential when the request goes out, as the service reads it there: by the provider's
/// injection, which a placeholder in any place of keys prevents, or from placeholders that stand as the injection would.
fn fills_own_place(sending: &Sending, provider: &Provider, target: &Target, form: Form) -> bool {
    let places = KeyNames::of(Some(provider), target);
    let marks = Marks::of(Some(provider), target, Form::Placeholders);
    let mut own = sending.fields.iter().filter(|(name, _)| places.is_own_header(name)).peekable();
    provider.injection(target).is_some()
        && (!authenticates(sending, provider, target, form)
            || (own.peek().is_some() && own.all(|(name, value)| marks.are_as_injected(name, value))))
}

/// Whether a placeholder stands in a header, or in its basic authentication.
fn is_marked(name: &str, value: &[u8], form: Form) -> bool {
    form.marks(value) || basic::basic_of(name, value).is_some_and(|basic| form.marks(&basic))
}

/// Refuses a placeholder in a place where this provider's credential does not go. A service keeps and shows what it is told in a path, a
/// parameter or a field, and so could publish the credential.
pub(super) fn refuse_elsewhere(
    sending: &Sending,
    provider: &Provider,
    target: &Target,
    form: Form,
    exposed: Found,
) -> Result<(), Denial> {
    let places = KeyNames::of(Some(provider), target);
    let elsewhere = |place: &str| Err(misplaced(provider, exposed.name(), place));
    if form.marks(sending.path().as_bytes()) {
        return elsewhere("the path");
    }
    // Some servers read `;` as a part of a value, others as its end: the place must be right under both readings.
    let is_elsewhere = |(name, value): (&str, &str)| {
        (form.marks(value.as_bytes()) && !places.is_parameter(name)) || form.marks(name.as_bytes())
    };
    if parameters(sending, &['&']).chain(parameters(sending, &['&', ';'])).any(is_elsewhere) {
        return elsewhere("the query");
    }
    let is_place = |name, value| places.is_header(name) || subprotocol::is_place(sending, name, value, form);
    match sending.fields.iter().find(|(name, value)| form.marks(value) && !is_place(name, value)) {
        Some((name, _)) => elsewhere(&format!("`{name}`")),
        None => Ok(()),
    }
}

/// Returns the denial of a placeholder in a place where this provider's credential does not go.
pub(crate) fn stands_elsewhere(provider: &Provider, place: &str) -> Denial {
    misplaced(provider, Found::Nothing.name(), place)
}

fn misplaced(provider: &Provider, what: &str, place: &str) -> Denial {
    let reason = format!("{what} stands in {place}, and `{}` says where its credential goes", provider.id());
    Denial::new(Guard::EndpointMismatch, reason)
        .with_hint("leave it out there; `placeholders = \"anywhere\"` lets the agent say where")
}

/// Whether a placeholder stands where the service is sure to look for a key: in the provider's own place, or in one that every service
/// knows. A placeholder elsewhere leaves the provider's place empty, for the provider's injection to fill.
pub(super) fn authenticates(sending: &Sending, provider: &Provider, target: &Target, form: Form) -> bool {
    let places = KeyNames::of(Some(provider), target);
    let header = |(name, value): (&str, &[u8])| {
        let is_place = name == "authorization"
            || places.is_own_header(name)
            || subprotocol::is_place(sending, name, value, form);
        is_place && is_marked(name, value, form)
    };
    (provider.placeholders() == Placeholders::Anywhere && form.marks(sending.path().as_bytes()))
        || sending.fields.iter().any(header)
        || parameters(sending, &['&'])
            .any(|(name, value)| places.is_parameter(name) && form.marks(value.as_bytes()))
}

/// Whether trailers hold a placeholder or a key. Neither has a place there (C08).
pub(crate) fn tells_who_asks(trailers: &Fields, provider: Option<&Provider>, target: &Target) -> bool {
    let places = KeyNames::of(provider, target);
    trailers.iter().any(|(name, value)| {
        places.may_be_header(name)
            || is_forwarded(name)
            || name == "cookie"
            || Placeholder::is_in(name.as_bytes())
            || Placeholder::is_in(value)
    })
}

/// Splits the query into parameters at any of `ends`, without decoding them.
fn parameters<'a>(sending: &'a Sending, ends: &'a [char]) -> impl Iterator<Item = (&'a str, &'a str)> {
    let query = sending.query();
    let pairs = query.into_iter().flat_map(move |query| query.split(ends));
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "lgph_0123456789abcdefghijklmnopqrstuvwxyz";

    fn provider(inject: &str) -> Arc<Provider> {
        provider_with(&format!("inject = {inject}\n"))
    }

    fn provider_with(more: &str) -> Arc<Provider> {
        let config = toml::from_str(&format!(
            "[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://api.example.com/*\"]\n{more}"
        ));
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Named("test".into()), config.unwrap());
        layers.compile().unwrap().policy.providers().next().unwrap().clone()
    }

    #[test]
    fn a_header_of_keys_that_brings_none_is_left_out_and_any_other_is_refused() {
        let one = provider("{ header = \"x-service-pass\", value = \"{{access_token}}\" }");
        let target = Target::parse("https://api.example.com/").unwrap();
        let left = |name: &str, value: &str| {
            let fields = Fields::from_iter([(name, value.as_bytes())]);
            let mut sending = Sending::new(policy::Method::parse("GET").unwrap(), &target, fields);
            leave_out_empty(&mut sending, Some(&one), &[], &target);
            refuse_own(&sending, Some(&one), &[], &target, Form::Placeholders).map(|()| sending.fields.len())
        };
        for (name, value) in [
            ("authorization", ""),
            ("authorization", " \t"),
            ("authorization", "Bearer"),
            ("authorization", "basic "),
            ("Authorization", "TOKEN"),
            ("x-forwarded-authorization", "Bearer"),
            ("x-api-key", ""),
            ("x.api_key", " "),
            ("x_service_pass", ""),
        ] {
            assert_eq!(left(name, value), Ok(0), "{name}: {value}");
        }
        for (name, value) in [
            ("authorization", "own"),
            ("authorization", "Bearer own"),
            ("authorization", "Bearer,"),
            ("authorization", "Bearer Bearer"),
            ("authorization", "Basic Og=="),
            ("authorization", "Bearer \u{a0}"),
            ("x-api-key", "Bearer"),
            ("x-service-pass", "token"),
        ] {
            assert_eq!(
                left(name, value).map_err(|denial| denial.guard),
                Err(Guard::Pinned),
                "{name}: {value}"
            );
        }
        // What is no place of keys is not looked at.
        assert_eq!(left("x-note", ""), Ok(1));
    }

    #[test]
    fn a_session_may_be_named_where_the_providers_own_place_has_its_credential() {
        let bearer = "{ header = \"authorization\", value = \"Bearer {{access_token}}\" }";
        let (header, query) = (provider(bearer), provider("{ query = \"sessionId\", value = \"{{a}}\" }"));
        let login = provider("{ basic = \"me:{{access_token}}\" }");
        let pair = provider("{ basic = \"{{client_id}}:{{client_secret}}\" }");
        let elsewhere = provider(&bearer.replace(" }", ", at = \"https://api.example.com/v1/*\" }"));
        let target = Target::parse("https://api.example.com/").unwrap();
        let refused_as = |form, provider: Option<&Arc<Provider>>, query: &str, authorization: &[&str]| {
            let fields = authorization.iter().map(|value| ("authorization", value.as_bytes())).collect();
            let mut sending = Sending::new(policy::Method::parse("POST").unwrap(), &target, fields);
            sending.origin_form = format!("/messages?{query}");
            refuse_own(&sending, provider, &[], &target, form).err()
        };
        let refused = |provider, query: &str, authorization: &[&str]| {
            refused_as(Form::Placeholders, provider, query, authorization)
        };
        let basic = |text: String| String::from_utf8(basic::basic_value(text.as_bytes())).unwrap();
        let ours = format!("Bearer {OURS}");
        let me = basic(format!("me:{OURS}"));
        assert_eq!(refused(Some(&header), "sessionId=own", &[]), None);
        assert_eq!(refused(Some(&header), "sessionId=own", &[&ours]), None);
        assert_eq!(refused(Some(&login), "sessionId=own", &[&me]), None);
        // What the service does not read there leaves the session alone to say who asks.
        let (foo, user, both) =
            (format!("Foo {OURS}"), basic(format!("{OURS}:")), basic(format!("{OURS}:{OURS}")));
        for (provider, authorization, form) in [
            (&header, &[&*user][..], Form::Placeholders),
            (&header, &[&foo], Form::Placeholders),
            (&header, &[OURS], Form::Placeholders),
            (&header, &[&foo, &ours], Form::Placeholders),
            (&login, &[&user], Form::Placeholders),
            (&login, &[&ours], Form::Placeholders),
            (&pair, &[&both], Form::Placeholders),
            (&header, &["Bearer {{client_id}}"], Form::Templates),
        ] {
            assert_eq!(refused_as(form, Some(provider), "a=b", authorization), None, "{authorization:?}");
            let denial = refused_as(form, Some(provider), "sessionId=own", authorization).unwrap();
            assert_eq!(denial.guard, Guard::Pinned, "{authorization:?}");
        }
        for (provider, query) in [
            (Some(&header), format!("key={OURS}&sessionId=own")),
            (Some(&header), format!("sessionId={OURS}&sessionId=own")),
            (Some(&header), "sessionId[]=own".to_owned()),
            (Some(&header), "session=own".to_owned()),
            (Some(&query), "sessionId=own".to_owned()),
            (Some(&elsewhere), "sessionId=own".to_owned()),
            (None, "sessionId=own".to_owned()),
        ] {
            let denial = refused(provider, &query, &[]).unwrap();
            assert_eq!(denial.guard, Guard::Pinned, "{query}");
        }
        let hint = refused(None, "sessionId=own", &[]).unwrap().hint.unwrap().to_string();
        assert!(hint.contains("`inject`") && hint.contains("`pinned = false`"), "{hint}");
    }

    #[test]
    fn who_has_the_value_itself_is_told_what_signing_needs() {
        let target = Target::parse("https://api.example.com/").unwrap();
        let fields =
            Fields::from_iter([("authorization", &b"AWS4-HMAC-SHA256 Credential=a, Signature=b"[..])]);
        let sending = Sending::new(policy::Method::parse("GET").unwrap(), &target, fields);
        for (more, is_told) in [("", false), ("\n[env.variable.ONE_KEY]\nexpose = true\n", true)] {
            let provider = provider_with(&format!("env = \"ONE_KEY\"\n{more}"));
            let refused = refuse_own(&sending, Some(&provider), &[], &target, Form::Placeholders);
            let hint = refused.unwrap_err().hint.unwrap().to_string();
            assert!(hint.starts_with("send what ONE_KEY holds"), "{hint}");
            assert_eq!(hint.contains("signs with it needs `pinned = false`"), is_told, "{hint}");
        }
    }

    #[test]
    fn a_trailer_has_no_key_where_the_provider_has_its_own() {
        let own = provider("{ header = \"X-Service-Pass\", value = \"{{access_token}}\" }");
        let target = Target::parse("https://api.example.com/").unwrap();
        let tells = |name: &str, provider| {
            tells_who_asks(&Fields::from_iter([(name, &b"own"[..])]), provider, &target)
        };
        for name in ["x-service-pass", "x_service_pass", "x.service.pass", "authorization", "x-api-key"] {
            assert!(tells(name, Some(&own)), "{name}");
        }
        assert!(!tells("x-checksum", Some(&own)) && !tells("x-service-pass", None));
    }

    #[test]
    fn a_placeholder_stands_only_in_a_name_that_is_a_place_of_keys_as_it_is_written() {
        let provider = provider("{ header = \"authorization\", value = \"Bearer {{access_token}}\" }");
        let target = Target::parse("https://api.example.com/").unwrap();
        let asked = |query: &str| {
            let fields = Fields::default();
            let mut sending = Sending::new(policy::Method::parse("GET").unwrap(), &target, fields);
            sending.origin_form = format!("/x?{query}");
            let refused =
                refuse_elsewhere(&sending, &provider, &target, Form::Placeholders, Found::Nothing).is_err();
            (refused, authenticates(&sending, &provider, &target, Form::Placeholders))
        };
        for query in [format!("key={OURS}"), format!("a=1&Access_Token={OURS}"), format!("%6Bey={OURS}&b")] {
            assert_eq!(asked(&query), (false, true), "{query}");
        }
        let mut cookie = Sending::new(policy::Method::parse("GET").unwrap(), &target, Fields::default());
        cookie.fields.push("cookie", format!("a={OURS}").as_bytes());
        let told =
            refuse_elsewhere(&cookie, &provider, &target, Form::Placeholders, Found::Exposed).unwrap_err();
        assert!(
            told.reason.starts_with("the exposed value, or a placeholder, stands in `cookie`"),
            "{told:?}"
        );
        for query in [
            format!("key[title]={OURS}"),
            format!("session%5Buser%5D[bio]={OURS}"),
            format!("key%00note={OURS}"),
            format!("access.token={OURS}"),
            format!("access[token={OURS}"),
            format!("%256Bey={OURS}"),
            format!("key%20={OURS}"),
            format!("title=a;key={OURS}"),
        ] {
            assert_eq!(asked(&query), (true, false), "{query}");
        }
        assert!(asked(&format!("key={OURS};title={OURS}")).0);
    }

    #[test]
    fn a_key_among_sub_protocols_authenticates_a_websocket_alone() {
        let provider = provider("{ header = \"authorization\", value = \"Bearer {{access_token}}\" }");
        let target = Target::parse("https://api.example.com/").unwrap();
        let protocol = format!("api-key.{OURS}");
        let asked = |more: &[(&str, &str)]| {
            let fields = [("sec-websocket-protocol", &*protocol)].into_iter().chain(more.iter().copied());
            let fields = fields.map(|(name, value)| (name, value.as_bytes())).collect();
            let sending = Sending::new(policy::Method::parse("GET").unwrap(), &target, fields);
            let refused =
                refuse_elsewhere(&sending, &provider, &target, Form::Placeholders, Found::Nothing).is_err();
            (refused, authenticates(&sending, &provider, &target, Form::Placeholders))
        };
        assert_eq!(asked(&[("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")]), (false, true));
        assert_eq!(asked(&[]), (true, false));
        assert_eq!(asked(&[("x-service-pass", "own")]), (true, false));
    }
}
