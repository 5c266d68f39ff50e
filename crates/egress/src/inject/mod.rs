//! Injects a credential into a request, as the last stage before the request is sent. The credential is fetched only now, after
//! the request was granted, its host resolved, every address judged, and its provider's rate asked.
//!
//! A placeholder is redeemed where programs put their keys: in a header's value, in basic authentication, in the path and the
//! query. A request without one gets the provider's own injection. A placeholder anywhere else, or of another provider, refuses
//! the request: it is never half replaced, and never sent on (C01, C08). An exposed value is read as its placeholder where a key
//! may stand.

mod agent_credentials;
mod basic;
mod bound;
mod cookies;
mod copy_source;
pub(crate) mod draft;
pub(crate) mod escaped;
mod exposed;
mod find;
mod forwarded_host;
mod key_names;
mod marks;
mod method_override;
mod model_request;
mod percent;
mod subprotocol;
mod substitution;

use std::net::IpAddr;
use std::rc::Rc;

use credential::Room;
use policy::{
    Asked, Denial, Grant, Guard, Method, Placeholders, Plane, Policy, Provider, ProviderId, Target,
};

use crate::exchange::{Exchange, Pinned, Ready};
use crate::fetched_credential::FetchedCredential;
use crate::gate::Gate;
use crate::http::Fields;

pub(crate) use agent_credentials::{stands_elsewhere, tells_who_asks};
use draft::{Draft, Injected, Redeemable};
pub(crate) use draft::{Form, Sending};
use find::find_placeholders;
pub(crate) use find::provider_named_in;
pub(crate) use key_names::{AUTHENTICATION, may_authenticate};
use key_names::{KeyNames, may_be_same};
use marks::Marks;
use method_override::Terms;
pub(crate) use model_request::is_version;

/// Injects the credential that is bound to where a request goes, if there is one.
pub(crate) async fn inject(
    mut exchange: Exchange<Pinned>,
    gate: &Gate,
    target: &Target,
    sending: &mut Sending,
    form: Form,
) -> Result<Exchange<Ready>, Denial> {
    let prepared = async {
        let injected = prepare(&exchange, gate, target, sending, form).await?;
        Ok((injected, bound::fetch_others(exchange.grant(), gate).await?))
    };
    match prepared.await {
        Ok((injected, unsearched)) => {
            unsearched.iter().for_each(|what| exchange.record().remark(what));
            Ok(exchange.ready(injected))
        }
        Err(denial) => Err(exchange.refuse(denial)),
    }
}

/// Judges a request by its method and target alone, as [`inject`] does first, before it looks for keys and placeholders and fetches a
/// credential.
pub(crate) fn judge_line(
    exchange: Exchange<Pinned>,
    gate: &Gate,
    method: &Method,
    target: &Target,
) -> Result<Exchange<Pinned>, Denial> {
    match refuse_line(gate.policy(), exchange.grant(), exchange.judged(), method, target) {
        Ok(()) => Ok(exchange),
        Err(denial) => Err(exchange.refuse(denial)),
    }
}

/// Refuses what [`judge_line`] refuses, of a request that has no exchange.
pub(crate) fn refuse_line(
    policy: &Policy,
    grant: &Grant,
    judged: &[IpAddr],
    method: &Method,
    target: &Target,
) -> Result<(), Denial> {
    let sending = Sending::new(method.clone(), target, Fields::default());
    let terms = Terms { policy, provider: grant.provider().map(|provider| &**provider), judged };
    method_override::judge(&sending, terms, target).map(drop)
}

/// Makes a request again from its draft, with a new credential of the same provider in place of one that the upstream refused.
///
/// # Errors
/// The new one does not fit the request, which so cannot be sent again.
pub(crate) fn inject_again(
    exchange: &mut Exchange<Ready>,
    gate: &Gate,
    new: Rc<FetchedCredential>,
    target: &Target,
) -> Result<Sending, Denial> {
    let (Some(provider), Some(draft)) = (exchange.grant().provider(), exchange.draft()) else {
        return Err(Denial::new(Guard::Credential, "the request was sent without a credential"));
    };
    let mut sending = draft.sending.clone();
    let terms = Terms { policy: gate.policy(), provider: Some(provider), judged: exchange.judged() };
    put(&mut sending, terms, provider, target, &new, draft.redeemable).map_err(|denial| {
        let reason = format!(
            "the upstream refused the credential, and the one fetched anew does not fit: {}",
            denial.reason
        );
        Denial { reason, ..denial }
    })?;
    exchange.hold(new);
    Ok(sending)
}

/// Tells an agent the sub-protocol that it offered itself, where the upstream took the one into which its key was put.
pub(crate) fn restore_subprotocol(exchange: &Exchange<Ready>, sending: &Sending, answered: &mut Fields) {
    if let Some(draft) = exchange.draft() {
        subprotocol::restore(&draft.sending.fields, &sending.fields, answered);
    }
}

/// The fields that ask for a part of a resource, by which a credential could come back piece by piece: RFC 9110 §14, RFC 3229 §10.5.3, an
/// old browser's, and Azure's object store's.
const PARTIAL: [&str; 5] = ["range", "if-range", "a-im", "request-range", "x-ms-range"];

async fn prepare(
    exchange: &Exchange<Pinned>,
    gate: &Gate,
    target: &Target,
    sending: &mut Sending,
    form: Form,
) -> Result<Option<Injected>, Denial> {
    let grant = exchange.grant();
    let provider = grant.provider();
    let terms = Terms {
        policy: gate.policy(),
        provider: provider.map(|provider| &**provider),
        judged: exchange.judged(),
    };
    let readings = method_override::judge(sending, terms, target)?;
    forwarded_host::leave_out_other(sending, gate.policy(), grant, target);
    let exposed = match provider {
        Some(provider) => exposed::read_as_placeholder(sending, gate, provider, target),
        None => exposed::Found::Nothing,
    };
    let redeemable = redeemable(sending, gate, provider.map(|p| p.id()), form)?;
    if grant.refuses_own_credentials() {
        let asked = Asked::request(Plane::Forward, sending.method.clone(), target);
        let others = gate.policy().providers_for(&asked);
        agent_credentials::leave_out_empty(sending, provider, &others, target);
        agent_credentials::refuse_own(sending, provider, &others, target, form)?;
        cookies::keep_marked(sending, Marks::of(provider.map(|it| &**it), target, form), form);
    }
    let Some(provider) = provider else {
        if grant.is_bound() {
            ask_for_whole_response(sending);
        }
        return Ok(None);
    };
    // Before anything is waited for. A request that is refused gives it back, and so uses nothing up.
    let token = gate.rates().admit(provider, std::time::Instant::now)?;
    if provider.placeholders() == Placeholders::InPlace && redeemable != Redeemable::Nothing {
        refuse_misplaced(sending, gate, provider, target, redeemable, form, exposed).await?;
    }
    leave_out(sending, provider, target, form, exposed)?;
    let metered_as = grant.metered_as();
    let model_request =
        metered_as.and_then(|metered| model_request::model_request(metered, &readings, sending));
    let asks_for_stored = model_request.is_none()
        && metered_as.is_some_and(|metered| model_request::asks_for_stored(metered, &readings));
    let held = gate.credentials().of(provider.id()).await?;
    if form == Form::Templates {
        escaped::refuse_in_head(sending, held.credential())?;
    }
    ask_for_whole_response(sending);
    let draft = Draft { sending: sending.clone(), redeemable };
    put(sending, terms, provider, target, &held, redeemable)?;
    let admitted = match model_request {
        Some(model_request) => Some(gate.ledger().admit(model_request).await?),
        None => None,
    };
    Ok(Some(Injected { held, draft, token: Some(token), admitted, asks_for_stored }))
}

/// Returns what the request holds for its credential to replace.
///
/// # Errors
/// It holds what this credential does not replace, or names the credential in two ways.
fn redeemable(
    sending: &Sending,
    gate: &Gate,
    provider: Option<&ProviderId>,
    form: Form,
) -> Result<Redeemable, Denial> {
    let found = find_placeholders(sending, gate, provider)?;
    if form != Form::Templates || !substitution::has_templates(sending) {
        return Ok(found);
    }
    if found != Redeemable::Nothing {
        let why = "Unresolved placeholders in request: it names its credential in two ways";
        return Err(Denial::new(Guard::Unresolved, why).with_hint("write {{field}} for each"));
    }
    Ok(Redeemable::Templates)
}

/// Refuses a request that names its credential where the provider's does not go.
async fn refuse_misplaced(
    sending: &Sending,
    gate: &Gate,
    provider: &Provider,
    target: &Target,
    redeemable: Redeemable,
    form: Form,
    exposed: exposed::Found,
) -> Result<(), Denial> {
    let refused = agent_credentials::refuse_elsewhere(sending, provider, target, form, exposed);
    if refused.is_err() && redeemable == Redeemable::Templates {
        // An unresolved field is reported as such (400, S0.50), and not as one in a wrong place.
        let held = gate.credentials().of(provider.id()).await?;
        substitution::fill(&mut sending.clone(), held.credential(), &mut Room::of_head())?;
    }
    refused
}

/// Leaves out the fields that the provider does not let pass. The agent may say itself how its placeholder stands where the provider's
/// credential is put.
///
/// # Errors
/// One of them holds a placeholder, which would be lost.
fn leave_out(
    sending: &mut Sending,
    provider: &Provider,
    target: &Target,
    form: Form,
    exposed: exposed::Found,
) -> Result<(), Denial> {
    let places = KeyNames::of(Some(provider), target);
    let marks = |name: &str, value: &[u8]| {
        // Templates are not filled inside base64.
        let in_basic = || basic::basic_of(name, value).is_some_and(|basic| Form::Placeholders.marks(&basic));
        form.marks(value) || in_basic()
    };
    let passes = |name: &str, value: &[u8]| {
        // Without an injection the agent says where its placeholder stands.
        let is_place = || match provider.injection(target) {
            Some(_) => places.is_own_header(name),
            None => places.is_header(name),
        };
        provider.lets_pass(name) || (is_place() && marks(name, value))
    };
    let is_lost = |name: &str, value: &[u8]| marks(name, value) && !passes(name, value);
    if let Some((name, _)) = sending.fields.iter().find(|(name, value)| is_lost(name, value)) {
        let (what, id) = (exposed.name(), provider.id());
        let reason = format!("{what} stands in `{name}`, and `{id}` lets only some `headers` pass");
        return Err(Denial::new(Guard::EndpointMismatch, reason)
            .with_hint("name the header in the provider's `headers`, or leave the placeholder out there"));
    }
    sending.fields.keep_each(passes);
    Ok(())
}

/// Asks for an unpacked and whole response, in the charset that the service chooses, because it is searched for credentials. Names are
/// compared as servers do that take `_` for `-`.
fn ask_for_whole_response(sending: &mut Sending) {
    const PACKINGS: [&str; 3] = ["accept-encoding", "grpc-accept-encoding", "connect-accept-encoding"];
    let fields = &mut sending.fields;
    let told = PACKINGS.map(|name| name == "accept-encoding" || fields.has(name));
    let left_out = PARTIAL.iter().chain(&["accept-charset", "sec-websocket-extensions"]).chain(&PACKINGS);
    fields.keep(|name| !left_out.clone().any(|known| may_be_same(known, name)));
    for (name, _) in PACKINGS.iter().zip(told).filter(|(_, is_told)| *is_told) {
        fields.push(name, b"identity");
    }
}

/// Puts the credential where the agent says, and also where the provider says unless the former authenticates already.
///
/// # Errors
/// It does not fit there, or leads the request to where the policy does not let it go.
fn put(
    sending: &mut Sending,
    terms: Terms<'_>,
    provider: &Provider,
    target: &Target,
    held: &FetchedCredential,
    redeemable: Redeemable,
) -> Result<(), Denial> {
    let authenticates = match redeemable {
        Redeemable::Nothing => false,
        // A placeholder where no service looks for a key leaves the provider's own place empty.
        Redeemable::Placeholders => {
            agent_credentials::authenticates(sending, provider, target, Form::Placeholders)
        }
        Redeemable::Templates => agent_credentials::authenticates(sending, provider, target, Form::Templates),
    };
    let mut room = Room::of_head();
    match redeemable {
        Redeemable::Placeholders => substitution::redeem(sending, provider, held.credential(), &mut room)?,
        Redeemable::Templates => substitution::fill(sending, held.credential(), &mut room)?,
        Redeemable::Nothing => {}
    }
    if redeemable != Redeemable::Nothing {
        judge_filled(sending, terms, target)?;
    }
    match provider.injection(target) {
        Some(injection) if !authenticates => {
            let room = (redeemable != Redeemable::Nothing).then_some(&mut room);
            substitution::place(sending, injection.place(), injection.value(), held, room)
        }
        _ => Ok(()),
    }
}

/// Judges a request again once the credential is where the agent says: its value may lead it elsewhere.
fn judge_filled(sending: &Sending, terms: Terms<'_>, target: &Target) -> Result<(), Denial> {
    let filled =
        Target::from_origin_form(target.scheme(), target.host().clone(), target.port(), &sending.origin_form);
    let judged = filled.and_then(|filled| {
        if filled.path() != target.path() {
            terms.allow(&sending.method, &filled)?;
        }
        method_override::judge(sending, terms, &filled)
    });
    judged.map(drop).map_err(|denial| {
        // The policy's own reason is left out: it may quote what it judged, which holds the credential.
        let reason = "the credential's value leads the request to where the policy does not let it go".into();
        Denial { reason, ..denial }.with_hint("leave the placeholder out of the path")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_searched_is_asked_for_in_a_form_that_can_be() {
        let target = Target::parse("https://a.example/").unwrap();
        let mut fields = Fields::default();
        for (name, value) in [
            ("accept-charset", "utf-16"),
            ("accept-encoding", "zstd"),
            ("range", "bytes=0-3"),
            ("if-range", "\"tag\""),
            ("a-im", "range"),
            ("request-range", "bytes=0-3"),
            ("x-ms-range", "bytes=0-3"),
            ("sec-websocket-extensions", "permessage-deflate"),
            ("grpc-accept-encoding", "zstd"),
            ("accept", "text/plain"),
            // To servers of CGI's kind these are the same.
            ("accept_encoding", "zstd"),
            ("grpc_accept-encoding", "zstd"),
            ("accept_charset", "utf-16"),
            ("if_range", "\"tag\""),
            ("x_ms-range", "bytes=0-3"),
            ("if.range", "\"tag\""),
            ("accept~charset", "utf-16"),
        ] {
            fields.push(name, value.as_bytes());
        }
        let mut sending = Sending::new(Method::parse("GET").unwrap(), &target, fields);
        ask_for_whole_response(&mut sending);
        let fields = &sending.fields;
        let names: Vec<_> = fields.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["accept", "accept-encoding", "grpc-accept-encoding"]);
        for name in ["accept-encoding", "grpc-accept-encoding"] {
            assert_eq!(fields.text(name), Some("identity"), "{name}");
        }
        assert_eq!(fields.text("accept"), Some("text/plain"));
    }

    #[tokio::test]
    async fn a_rate_is_asked_before_the_platform_and_not_used_up_by_what_is_refused() {
        let gate = crate::fixture::gate_for(
            "[[provider]]\nid = \"one\"\nauthorized_uris = [\"http://127.0.0.1:9/*\"]\n\
             rate = { requests_per_minute = 1, burst = 1 }\n",
            Vec::new(),
            None,
        );
        let target = Target::parse("http://127.0.0.1:9/").unwrap();
        let refused = async || {
            let asked = Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &target);
            let exchange = Exchange::begin(&gate, "GET", target.to_string(), asked).pin(&gate).await.unwrap();
            let mut sending = Sending::new(Method::parse("GET").unwrap(), &target, Fields::default());
            inject(exchange, &gate, &target, &mut sending, Form::Placeholders).await.err().unwrap().guard
        };
        // There is no platform, so each of them is refused, and none takes the only token.
        assert_eq!([refused().await, refused().await], [Guard::Credential, Guard::Credential]);
        let provider = gate.policy().providers().next().unwrap();
        gate.rates().admit(provider, std::time::Instant::now).unwrap().spend();
        assert_eq!(refused().await, Guard::RateLimit);
    }

    #[tokio::test]
    async fn another_reading_is_judged_by_where_the_request_goes() {
        let gate = crate::fixture::gate_for(
            "[egress]\nallow = [{ host = \"a.example\", ports = [80] }]\n\
             deny = [{ url = \"http://93.184.216.34/admin*\" }, { url = \"http://93.184.216.35/*\" }]\n",
            vec!["93.184.216.34".parse().unwrap()],
            None,
        );
        let target = Target::parse("http://a.example/").unwrap();
        let asked_as = async |path: &str| {
            let get = Method::parse("GET").unwrap();
            let asked = Asked::request(Plane::Forward, get.clone(), &target);
            let exchange = Exchange::begin(&gate, "GET", target.to_string(), asked).pin(&gate).await.unwrap();
            let fields = Fields::from_iter([("X-Original-URL", path.as_bytes())]);
            let mut sending = Sending::new(get, &target, fields);
            let injected = inject(exchange, &gate, &target, &mut sending, Form::Placeholders).await;
            injected.map(drop).map_err(|denial| denial.rule)
        };
        assert_eq!(asked_as("/open").await, Ok(()));
        assert_eq!(asked_as("/admin/x").await, Err(Some("egress.deny[0] in test".into())));
    }

    #[test]
    fn what_a_credential_makes_of_the_path_is_judged_by_where_the_request_goes() {
        let config = "[egress]\ndeny = [{ url = \"http://93.184.216.34/admin*\" }]\n\
            [[provider]]\nid = \"one\"\nauthorized_uris = [\"http://a.example/*\"]\n";
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Named("test".into()), toml::from_str(config).unwrap());
        let policy = layers.compile().unwrap().policy;
        let provider = policy.providers().next().unwrap();
        let target = Target::parse("http://a.example/x").unwrap();
        let filled = |path: &str, judged: [u8; 4]| {
            let mut sending = Sending::new(Method::parse("GET").unwrap(), &target, Fields::default());
            sending.origin_form = path.into();
            let terms = Terms { policy: &policy, provider: Some(provider), judged: &[judged.into()] };
            judge_filled(&sending, terms, &target).map_err(|denial| (denial.guard, denial.rule))
        };
        let denied = Err((Guard::DenyRule, Some("egress.deny[0] in test".to_owned())));
        assert_eq!(filled("/admin/x", [93, 184, 216, 34]), denied);
        assert_eq!(filled("/open", [93, 184, 216, 34]), Ok(()));
        assert_eq!(filled("/admin/x", [93, 184, 216, 35]), Ok(()));
    }

    #[test]
    fn the_longest_value_fits_where_its_provider_puts_it() {
        let mut credential = credential::Credential::default();
        let value = credential::Secret::from_text("/".repeat(64 << 10));
        credential.set("access_token".parse().unwrap(), credential::Value::new(value).unwrap());
        let held = FetchedCredential::new("one".parse().unwrap(), credential, None);
        let target = Target::parse("https://api.example/").unwrap();
        for inject in [
            "{ header = \"Authorization\", value = \"Bearer {{access_token}}\" }",
            "{ basic = \"me:{{access_token}}\" }",
            "{ query = \"key\", value = \"{{access_token}}\" }",
        ] {
            let config = format!(
                "[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://api.example/*\"]\ninject = {inject}\n"
            );
            let mut layers = policy::Layers::default();
            layers.push(policy::Origin::Named("test".into()), toml::from_str(&config).unwrap());
            let policy = layers.compile().unwrap().policy;
            let provider = policy.providers().next().unwrap();
            let terms = Terms { policy: &policy, provider: Some(provider), judged: &[] };
            let mut sending = Sending::new(Method::parse("GET").unwrap(), &target, Fields::default());
            let put = put(&mut sending, terms, provider, &target, &held, Redeemable::Nothing);
            assert_eq!(put, Ok(()), "{inject}");
        }
    }

    #[test]
    fn a_placeholder_in_a_header_that_does_not_pass_is_refused_and_not_lost() {
        const OURS: &str = "Bearer lgph_0123456789abcdefghijklmnopqrstuvwxyz";
        let config = "[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://api.example/*\"]\nheaders = [\"x-may\"]\n\
            placeholders = \"anywhere\"\ninject = { header = \"x-service-pass\", value = \"{{access_token}}\" }\n";
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Named("test".into()), toml::from_str(config).unwrap());
        let provider = layers.compile().unwrap().policy.providers().next().unwrap().clone();
        let target = Target::parse("https://api.example/").unwrap();
        let left = |name: &str, value: &str, exposed| {
            let fields = Fields::from_iter([(name, value.as_bytes())]);
            let mut sending = Sending::new(Method::parse("GET").unwrap(), &target, fields);
            leave_out(&mut sending, &provider, &target, Form::Placeholders, exposed)
                .map(|()| sending.fields.len())
        };
        for name in ["x-other", "cookie", "x_may"] {
            let denial = left(name, OURS, exposed::Found::Nothing).unwrap_err();
            assert_eq!(denial.guard, Guard::EndpointMismatch);
            assert!(denial.reason.starts_with(&format!("a placeholder stands in `{name}`")), "{denial:?}");
            assert_eq!(left(name, "another value", exposed::Found::Nothing), Ok(0), "{name}");
        }
        let told = left("cookie", OURS, exposed::Found::Exposed).unwrap_err();
        assert!(told.reason.starts_with("the exposed value, or a placeholder, stands"), "{told:?}");
        for name in ["x-may", "x-service-pass"] {
            assert_eq!(left(name, OURS, exposed::Found::Nothing), Ok(1), "{name}");
        }
    }

    #[test]
    fn a_header_of_keys_that_does_not_pass_is_left_out_like_any_other() {
        const OURS: &str = "lgph_0123456789abcdefghijklmnopqrstuvwxyz";
        let left = |inject: &str, name: &str, value: &[u8]| {
            let config = format!(
                "[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://api.example/*\"]\nheaders = [\"x-may\"]\n\
                 pinned = false\ninject = {inject}\n"
            );
            let mut layers = policy::Layers::default();
            layers.push(policy::Origin::Named("test".into()), toml::from_str(&config).unwrap());
            let provider = layers.compile().unwrap().policy.providers().next().unwrap().clone();
            let target = Target::parse("https://api.example/").unwrap();
            let fields = Fields::from_iter([(name, value)]);
            let mut sending = Sending::new(Method::parse("GET").unwrap(), &target, fields);
            leave_out(&mut sending, &provider, &target, Form::Placeholders, exposed::Found::Nothing)
                .map(|()| sending.fields.len())
                .map_err(|denial| denial.guard)
        };
        let bearer = "{ header = \"Authorization\", value = \"Bearer {{access_token}}\" }";
        let basic = "{ basic = \"me:{{access_token}}\" }";
        let (ours, login) = (format!("Bearer {OURS}"), basic::basic_value(format!("me:{OURS}").as_bytes()));
        for inject in [bearer, basic] {
            for name in ["authorization", "token", "x-auth", "x-vault-token", "job-token", "x-token"] {
                assert_eq!(left(inject, name, b"Bearer own"), Ok(0), "{inject}: {name}");
            }
            for value in [ours.as_bytes(), &login] {
                assert_eq!(left(inject, "authorization", value), Ok(1), "{inject}");
            }
            assert_eq!(left(inject, "x-api-key", OURS.as_bytes()), Err(Guard::EndpointMismatch), "{inject}");
        }
        // Where the key goes elsewhere, nothing is put in `Authorization`.
        let query = "{ query = \"key\", value = \"{{access_token}}\" }";
        for value in [ours.as_bytes(), &login] {
            assert_eq!(left(query, "authorization", value), Err(Guard::EndpointMismatch));
        }
    }
}
