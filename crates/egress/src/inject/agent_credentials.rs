//! Refuses credentials of the agent's own on a host with a bound credential. Only the bound one may authenticate there; otherwise an
//! allowed host is a way out to the agent's own account on it.
//!
//! Names are compared as servers read them: without case, `_` as `-`, parameters decoded.

use std::borrow::Cow;

use credential::{Placeholder, is_template};
use policy::{Denial, Guard, Injection, InjectionSite, Placeholders, Provider, Target};

use super::draft::{Form, Sending};
use super::substitution;
use crate::http::Fields;

/// Header fields by which services authenticate clients.
pub(crate) const AUTHENTICATION: &[&str] = &[
    "authorization",
    "x-api-key",
    "api-key",
    "apikey",
    "x-apikey",
    "x-goog-api-key",
    "private-token",
    "job-token",
    "deploy-token",
    "token",
    "x-token",
    "x-auth",
    "x-auth-key",
    "x-auth-token",
    "x-access-token",
    "x-session-token",
    "x-subscription-token",
    "x-vault-token",
    "x-gitlab-token",
    "x-amz-security-token",
];
/// Query parameters by which services authenticate clients.
const PARAMETERS: &[&str] = &[
    "key",
    "api-key",
    "apikey",
    "token",
    "access-token",
    "auth",
    "auth-token",
    "oauth-token",
    "private-token",
    "job-token",
    "client-secret",
    "secret",
    "sig",
    "signature",
    "session",
    "sessionid",
    "x-amz-signature",
    "x-amz-credential",
    "x-amz-security-token",
    "x-goog-signature",
    "x-goog-credential",
];

/// The end of further headers by which a service behind a proxy authenticates clients: `x-forwarded-authorization`.
const FORWARDED: &str = "-authorization";
/// The texts before a key in a WebSocket's sub-protocol, the only place that browsers have for one: `openai-insecure-api-key.KEY`.
const SUBPROTOCOLS: &[&str] = &["api-key.", "apikey.", "token.", "bearer.", "authorization."];

/// Refuses a request that brings a credential of the agent's own.
pub(super) fn refuse_own(
    sending: &Sending,
    provider: Option<&std::sync::Arc<Provider>>,
    target: &Target,
    form: Form,
) -> Result<(), Denial> {
    let pinned = |what: &str| {
        let names = provider.map(|p| p.environment().join(" or ")).filter(|names| !names.is_empty());
        let denial = Denial::new(
            Guard::Pinned,
            format!("{} has a bound credential, and the request brings its own {what}", sending.authority),
        );
        Err(denial.with_hint(match names {
            Some(names) => {
                format!("send what {names} holds, or nothing: the credential is put in on the way")
            }
            None => "send none: the credential is put in on the way".to_owned(),
        }))
    };
    let places = KeyNames::of(provider.map(AsRef::as_ref), target);
    let key = basic_key(provider.and_then(|provider| provider.injection(target)));
    for (name, value) in sending.fields.iter() {
        let is_looked_at = places.is_header(name) || is_forwarded(name);
        if (is_looked_at && !is_only_ours(name, value, form, key)) || is_own_subprotocol(name, value, form) {
            return pinned(&format!("`{name}`"));
        }
    }
    for (name, value) in parameters(sending, &['&', ';']) {
        let name = decoded(name);
        if places.may_be_parameter(&name) && !value.is_empty() && !is_placeholder(value.as_bytes(), form) {
            return pinned(&format!("query parameter `{}`", name.escape_default()));
        }
    }
    Ok(())
}

/// Refuses a placeholder in a place where this provider's credential does not go. A service keeps and shows what it is told in a path, a
/// parameter or a field, and so could publish the credential.
pub(super) fn refuse_elsewhere(
    sending: &Sending,
    provider: &Provider,
    target: &Target,
    form: Form,
) -> Result<(), Denial> {
    let places = KeyNames::of(Some(provider), target);
    let elsewhere = |what: &str| Err(stands_elsewhere(provider, what));
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
    match sending.fields.iter().find(|(name, value)| form.marks(value) && !places.is_header(name)) {
        Some((name, _)) => elsewhere(&format!("`{name}`")),
        None => Ok(()),
    }
}

/// Returns the denial of a placeholder in `what`, where this provider's credential does not go.
pub(crate) fn stands_elsewhere(provider: &Provider, what: &str) -> Denial {
    let reason =
        format!("a placeholder stands in {what}, and `{}` says where its credential goes", provider.id());
    Denial::new(Guard::EndpointMismatch, reason)
        .with_hint("leave it out there; `placeholders = \"anywhere\"` lets the agent say where")
}

/// Whether a placeholder stands where the service is sure to look for a key: in the provider's own place, or in one that every service
/// knows. A placeholder elsewhere leaves the provider's place empty, for the provider's injection to fill.
pub(super) fn authenticates(sending: &Sending, provider: &Provider, target: &Target, form: Form) -> bool {
    let places = KeyNames::of(Some(provider), target);
    let header = |(name, value): (&str, &[u8])| {
        (name == "authorization" || places.is_own_header(name))
            && (form.marks(value)
                || substitution::basic_of(name, value).is_some_and(|basic| form.marks(&basic)))
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
        places.is_header(name)
            || is_forwarded(name)
            || name == "cookie"
            || Placeholder::is_in(name.as_bytes())
            || Placeholder::is_in(value)
    })
}

/// The names under which a request may hold a key: the usual ones, and the one under which the provider injects its own.
pub(super) struct KeyNames<'a>(Option<&'a InjectionSite>);

impl<'a> KeyNames<'a> {
    pub(super) fn of(provider: Option<&'a Provider>, target: &Target) -> Self {
        Self(provider.and_then(|p| p.injection(target)).map(|injection| injection.place()))
    }

    pub(super) fn is_header(&self, name: &str) -> bool {
        is_among(name, AUTHENTICATION) || self.is_own_header(name)
    }

    fn is_own_header(&self, name: &str) -> bool {
        matches!(self.0, Some(InjectionSite::Header(header)) if is_same(header, name))
    }

    /// Whether a parameter's name, as written, is one of these to every server: a placeholder may stand there.
    pub(super) fn is_parameter(&self, written: &str) -> bool {
        let name = decoded_once(&written.replace('+', " "));
        self.parameters().any(|known| is_same(known, &name))
    }

    /// Whether some server reads a parameter's decoded name as one of these: no key of the agent's own may stand there.
    fn may_be_parameter(&self, name: &str) -> bool {
        // Some servers read a name up to a NUL, and `name[x]` as a part of `name`. PHP reads a space, a dot and `[` as `_`.
        let name = name.split('\0').next().unwrap_or_default().trim_end();
        let list = name.split('[').next().unwrap_or_default().trim_end();
        [name, list].iter().any(|name| {
            let name = name.replace([' ', '.', '['], "_");
            self.parameters().any(|known| is_same(&known.replace('.', "_"), &name))
        })
    }

    fn parameters(&self) -> impl Iterator<Item = &str> {
        let own = match self.0 {
            Some(InjectionSite::Query(parameter)) => Some(parameter.as_ref()),
            _ => None,
        };
        PARAMETERS.iter().copied().chain(own)
    }
}

fn is_among(name: &str, names: &[&str]) -> bool {
    names.iter().any(|known| is_same(known, name))
}

fn is_forwarded(name: &str) -> bool {
    name.len()
        .checked_sub(FORWARDED.len())
        .and_then(|at| name.get(at..))
        .is_some_and(|end| is_same(end, FORWARDED))
}

/// Whether a WebSocket's sub-protocols hold a key that is no placeholder.
fn is_own_subprotocol(name: &str, value: &[u8], form: Form) -> bool {
    let is_own = |protocol: &[u8]| {
        let plain: Vec<u8> = protocol.iter().copied().map(folded).collect();
        let behind =
            |before: &&str| memchr::memmem::rfind(&plain, before.as_bytes()).map(|at| at + before.len());
        let key = SUBPROTOCOLS.iter().filter_map(behind).max().map(|at| &protocol[at..]);
        key.is_some_and(|key| !key.is_empty() && !is_placeholder(key, form))
    };
    is_same(name, "sec-websocket-protocol") && value.split(|b| *b == b',').any(|one| is_own(one.trim_ascii()))
}

/// Whether servers may take two names for one: in CGI variables case is lost, and `-` becomes `_`.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    one.len() == other.len() && one.bytes().map(folded).eq(other.bytes().map(folded))
}

fn folded(octet: u8) -> u8 {
    if octet == b'_' { b'-' } else { octet.to_ascii_lowercase() }
}

/// Where a service looks for the key in basic authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BasicKey {
    /// In the user's name. A password is not looked at.
    User,
    /// In the password, or in the user's name if there is no real password.
    Password,
}

/// Returns where this provider's own injection puts the key.
fn basic_key(injection: Option<&Injection>) -> BasicKey {
    // If both are fields, the user's name only says whose key it is.
    let is_user = |it: &Injection| {
        let (user, password) = user_and_password(it.value().as_bytes());
        matches!(it.place(), InjectionSite::Basic) && is_template(user) && !is_template(password)
    };
    if injection.is_some_and(is_user) { BasicKey::User } else { BasicKey::Password }
}

/// Whether a value is a placeholder alone, or behind a scheme such as `Bearer` or `token`. In basic authentication, whether the key is
/// a placeholder.
fn is_only_ours(name: &str, value: &[u8], form: Form, key: BasicKey) -> bool {
    if let Some(basic) = substitution::basic_of(name, value) {
        let (user, password) = user_and_password(&basic);
        // Templates are not filled inside base64, so none may stand there.
        let is_ours = |part: &[u8]| is_placeholder(part, Form::Placeholders);
        return match key {
            BasicKey::User => is_ours(user) && (is_no_password(password) || is_ours(password)),
            BasicKey::Password => is_ours(password) || (is_no_password(password) && is_ours(user)),
        };
    }
    let value = value.trim_ascii();
    is_placeholder(value, form)
        || scheme_of(value).is_some_and(|scheme| is_placeholder(&value[scheme.len()..], form))
}

/// Returns the authentication scheme before a key, with the space after it: `Bearer `.
pub(super) fn scheme_of(value: &[u8]) -> Option<&[u8]> {
    let at = value.iter().position(|b| *b == b' ')?;
    value[..at].iter().all(u8::is_ascii_alphabetic).then(|| &value[..=at])
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

/// Whether a text is one placeholder from end to end, or one `{{field}}` in a form that has them.
fn is_placeholder(text: &[u8], form: Form) -> bool {
    let whole = Placeholder::find_all(text).next().is_some_and(|(range, _)| range == (0..text.len()));
    let field = text.strip_prefix(b"{{").and_then(|rest| rest.strip_suffix(b"}}"));
    let field = field
        .is_some_and(|name| !name.is_empty() && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_'));
    whole || (form == Form::Templates && field)
}

/// Splits the query into parameters at any of `ends`, without decoding them.
fn parameters<'a>(sending: &'a Sending, ends: &'a [char]) -> impl Iterator<Item = (&'a str, &'a str)> {
    let query = sending.query();
    let pairs = query.into_iter().flat_map(move |query| query.split(ends));
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

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

fn decoded_once(name: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "lgph_0123456789abcdefghijklmnopqrstuv";

    fn basic(text: &str) -> Vec<u8> {
        format!("Basic {}", data_encoding::BASE64.encode(text.as_bytes())).into_bytes()
    }

    fn provider(inject: &str) -> std::sync::Arc<Provider> {
        let config = toml::from_str(&format!(
            "[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://api.example.com/*\"]\ninject = {inject}\n"
        ));
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Named("test".into()), config.unwrap());
        layers.compile().unwrap().policy.providers().next().unwrap().clone()
    }

    #[test]
    fn only_a_placeholder_authenticates() {
        let ours =
            |value: &[u8]| is_only_ours("authorization", value, Form::Placeholders, BasicKey::Password);
        assert!(
            ours(OURS.as_bytes())
                && ours(format!("Bearer {OURS}").as_bytes())
                && ours(format!("token {OURS}").as_bytes())
        );
        assert!(ours(&basic(&format!("x-access-token:{OURS}"))) && ours(&basic(&format!("{OURS}:"))));
        assert!(ours(&basic(&format!("{OURS}:x-oauth-basic"))));
        for own in [
            b"Bearer own".to_vec(),
            format!("Bearer own, Bearer {OURS}").into_bytes(),
            format!("Bearer {OURS}x").into_bytes(),
            basic(&format!("{OURS}:own")),
            basic(&format!("own:{OURS}x")),
            basic("{{x}}:own"),
            b"Bearer {{access_token}}".to_vec(),
        ] {
            assert!(!ours(&own), "{}", String::from_utf8_lossy(&own));
        }
        let filled = |value: &[u8]| is_only_ours("authorization", value, Form::Templates, BasicKey::Password);
        assert!(filled(b"Bearer {{access_token}}") && !filled(b"Bearer own {{access_token}}"));
    }

    #[test]
    fn a_key_that_is_the_user_is_not_somebody_elses() {
        for (text, as_user, as_password) in [
            (format!("own:{OURS}"), false, true),
            (format!("{OURS}:"), true, true),
            (format!("{OURS}:x-oauth-basic"), true, true),
            (format!("{OURS}:{OURS}"), true, true),
            (format!("{OURS}:own"), false, false),
            ("own:".to_owned(), false, false),
        ] {
            let ours = |key| is_only_ours("authorization", &basic(&text), Form::Placeholders, key);
            assert_eq!((ours(BasicKey::User), ours(BasicKey::Password)), (as_user, as_password), "{text}");
        }
    }

    #[test]
    fn a_trailer_has_no_key_where_the_provider_has_its_own() {
        let own = provider("{ header = \"X-Service-Pass\", value = \"{{access_token}}\" }");
        let target = Target::parse("https://api.example.com/").unwrap();
        let tells = |name: &str, provider| {
            tells_who_asks(&Fields::from_iter([(name, &b"own"[..])]), provider, &target)
        };
        for name in ["x-service-pass", "x_service_pass", "authorization", "x-api-key"] {
            assert!(tells(name, Some(&own)), "{name}");
        }
        assert!(!tells("x-checksum", Some(&own)) && !tells("x-service-pass", None));
    }

    #[test]
    fn names_are_read_as_servers_read_them() {
        assert_eq!(decoded("%6Bey"), "key");
        assert_eq!(decoded("%256Bey"), "key");
        assert!(is_same("X_Api_Key", "x-api-key") && !is_same("x-api-keys", "x-api-key"));
        assert!(KeyNames(None).is_parameter("Access_Token") && !KeyNames(None).is_parameter("page_token"));
        assert!(
            KeyNames(None).may_be_parameter("Access_Token") && !KeyNames(None).may_be_parameter("page_token")
        );
        assert!(!KeyNames(None).is_header("idempotency-key"));
    }

    #[test]
    fn an_own_key_is_seen_in_a_name_that_some_server_reads_as_a_place_of_keys() {
        for name in [
            "token[]",
            "token[a][b]",
            "token\0",
            "Token \0x",
            "access_token[0]",
            "access.token",
            "access token",
            "access[token",
            "Access.Token[]",
            "x.amz-signature",
        ] {
            assert!(KeyNames(None).may_be_parameter(name), "{name}");
        }
        for name in ["page[token]", "[]", "access[token]", "page.token", "tokens", ""] {
            assert!(!KeyNames(None).may_be_parameter(name), "{name}");
        }
        let own = InjectionSite::Query("api.of.key".to_owned());
        assert!(
            KeyNames(Some(&own)).may_be_parameter("api_of_key")
                && !KeyNames(None).may_be_parameter("api_of_key")
        );
    }

    #[test]
    fn a_placeholder_stands_only_in_a_name_that_is_a_place_of_keys_as_it_is_written() {
        let provider = provider("{ header = \"authorization\", value = \"Bearer {{access_token}}\" }");
        let target = Target::parse("https://api.example.com/").unwrap();
        let asked = |query: &str| {
            let fields = Fields::default();
            let mut sending = Sending::new(policy::Method::parse("GET").unwrap(), &target, fields);
            sending.origin_form = format!("/x?{query}");
            let refused = refuse_elsewhere(&sending, &provider, &target, Form::Placeholders).is_err();
            (refused, authenticates(&sending, &provider, &target, Form::Placeholders))
        };
        for query in [format!("key={OURS}"), format!("a=1&Access_Token={OURS}"), format!("%6Bey={OURS}&b")] {
            assert_eq!(asked(&query), (false, true), "{query}");
        }
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
    fn who_asks_behind_others_is_told_by_more_headers() {
        assert!(is_forwarded("x-forwarded-authorization") && is_forwarded("X_Original_Authorization"));
        assert!(!is_forwarded("authorization") && !is_forwarded("x-authorizations") && !is_forwarded("é"));
    }

    #[test]
    fn a_key_is_seen_in_a_subprotocol() {
        let own =
            |value: &str| is_own_subprotocol("sec-websocket-protocol", value.as_bytes(), Form::Placeholders);
        for value in [
            "realtime, openai-insecure-api-key.sk-1",
            "x_api_key.sk-1",
            "Access-Token.a, chat",
            "base64url.bearer.authorization.k8s.io.YWJj",
            &format!("openai-insecure-api-key.{OURS}x"),
            &format!("token.a.token.{OURS}x"),
        ] {
            assert!(own(value), "{value}");
        }
        for value in
            ["realtime, openai-beta.realtime-v1", "graphql-ws", &format!("my-api-key.{OURS}"), "token."]
        {
            assert!(!own(value), "{value}");
        }
        assert!(!is_own_subprotocol("x-note", b"api-key.sk-1", Form::Placeholders));
    }
}
