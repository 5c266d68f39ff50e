//! Putting a credential into a request: the last stage before it is sent. The credential is fetched only now, after the
//! request was granted, its host resolved and every address judged.
//!
//! A placeholder is redeemed where programs put their keys: in a header's value, in basic authentication, in the path and
//! the query. Where there is none, the provider's own injection takes place. A placeholder anywhere else, or of another
//! provider, refuses the request: it is never half replaced, and never sent on (C01, C08).

use std::rc::Rc;

use credential::{Credential, Place as Position, Placeholder, RenderError, Secret, Template, substitute};
use data_encoding::BASE64;
use policy::{Denial, Guard, Method, Place, Provider, ProviderId, Scheme, Target};

use crate::credentials::Held;
use crate::exchange::{Exchange, Pinned, Ready};
use crate::gate::Gate;
use crate::http::Fields;

/// A request as it will be sent. It may hold a credential, so it has no `Debug`.
#[derive(Clone)]
pub(crate) struct Sending {
    pub(crate) method: Method,
    pub(crate) scheme: Scheme,
    pub(crate) authority: String,
    pub(crate) origin_form: String,
    pub(crate) fields: Fields,
}

impl Sending {
    /// A request for a target, with the fields that go on.
    pub(crate) fn new(method: Method, target: &Target, fields: Fields) -> Self {
        let (authority, origin_form) = (target.host_header(), target.origin_form());
        Self { method, scheme: target.scheme(), authority, origin_form, fields }
    }
}

/// Header fields by which services are told who asks.
pub(crate) const AUTHENTICATION: &[&str] = &[
    "authorization",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
    "private-token",
    "job-token",
    "x-auth-token",
    "x-access-token",
    "x-subscription-token",
];
/// Query parameters by which services are told who asks.
const AUTHENTICATION_QUERY: &[&str] =
    &["key", "api_key", "apikey", "access_token", "auth_token", "private_token"];

/// In what form the agent says where a credential goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// By the placeholder of its environment.
    Placeholders,
    /// By `{{field}}` as well, as requests to the gateway's `/proxy` do.
    Templates,
}

/// A request before its credential was put in, so that it can be made again with another.
pub(crate) struct Draft {
    sending: Sending,
    redeemable: Redeemable,
}

/// Puts the bound credential into a request, if one is bound to where it goes.
pub(crate) async fn inject(
    exchange: Exchange<Pinned>,
    gate: &Gate,
    target: &Target,
    sending: &mut Sending,
    form: Form,
) -> Result<Exchange<Ready>, Denial> {
    match prepare(&exchange, gate, target, sending, form).await {
        Ok(Some((held, draft))) => Ok(exchange.ready(Some((held, draft)))),
        Ok(None) => Ok(exchange.ready(None)),
        Err(denial) => Err(exchange.refuse(denial)),
    }
}

/// Whether a request asks a model for something, and is counted.
pub(crate) fn is_asking(provider: &Provider, method: &Method) -> bool {
    provider.llm().is_some() && method.as_str() == "POST"
}

/// Makes a request anew with the credential as it is now; nothing if that is the one that was refused.
pub(crate) async fn inject_again(
    exchange: &mut Exchange<Ready>,
    gate: &Gate,
    target: &Target,
) -> Option<Sending> {
    let provider = exchange.grant().provider()?.clone();
    let old = exchange.held()?.clone();
    let new = gate.credentials().fetch(provider.id()).await.ok()?;
    if new.is_same_as(&old) {
        return None;
    }
    let draft = exchange.draft()?;
    let mut sending = draft.sending.clone();
    put(&mut sending, &provider, target, new.credential(), draft.redeemable).ok()?;
    exchange.hold(new);
    Some(sending)
}

async fn prepare(
    exchange: &Exchange<Pinned>,
    gate: &Gate,
    target: &Target,
    sending: &mut Sending,
    form: Form,
) -> Result<Option<(Rc<Held>, Draft)>, Denial> {
    let grant = exchange.grant();
    let provider = grant.provider();
    let redeemable = match find(sending, gate, provider.map(|p| p.id()))? {
        Redeemable::Nothing if form == Form::Templates && has_templates(sending) => Redeemable::Templates,
        found => found,
    };
    if grant.is_pinned() {
        refuse_own(sending, provider, gate, target, form)?;
    }
    let Some(provider) = provider else { return Ok(None) };
    if sending.method.as_str() == "TRACE" {
        // An answer to it repeats every header (C12).
        return Err(Denial::new(Guard::Method, "TRACE is not sent with a credential"));
    }
    let held = gate.credentials().of(provider.id()).await?;
    if is_asking(provider, &sending.method) {
        gate.ledger().borrow_mut().admit()?;
    }
    // What comes back is searched for the credential: it must come whole, and not packed.
    sending.fields.set("accept-encoding", b"identity");
    for name in ["range", "if-range", "sec-websocket-extensions"] {
        sending.fields.remove(name);
    }
    let draft = Draft { sending: sending.clone(), redeemable };
    put(sending, provider, target, held.credential(), redeemable)?;
    Ok(Some((held, draft)))
}

/// Puts the credential into the request: where its placeholders stand, or else where the provider says.
fn put(
    sending: &mut Sending,
    provider: &Provider,
    target: &Target,
    credential: &Credential,
    redeemable: Redeemable,
) -> Result<(), Denial> {
    match redeemable {
        Redeemable::Placeholders => redeem(sending, credential),
        Redeemable::Templates => fill(sending, credential),
        Redeemable::Nothing => match provider.injection(target) {
            Some(injection) => place(sending, injection.place(), injection.value(), credential),
            None => Ok(()),
        },
    }
}

/// Whether a request holds placeholders that may be redeemed in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Redeemable {
    Placeholders,
    Templates,
    Nothing,
}

/// Looks for placeholders. One that is not the bound provider's own is refused by its guard's name.
fn find(sending: &Sending, gate: &Gate, own: Option<&ProviderId>) -> Result<Redeemable, Denial> {
    let mut found = Redeemable::Nothing;
    let mut judge = |text: &[u8]| {
        for (_, placeholder) in Placeholder::find_all(text) {
            match gate.credentials().provider_of(&placeholder) {
                Some(provider) if Some(provider) == own => found = Redeemable::Placeholders,
                Some(provider) => {
                    let reason = format!(
                        "the placeholder of `{provider}` stands in a request that its credential is not for"
                    );
                    return Err(Denial::new(Guard::EndpointMismatch, reason).with_hint(
                        "the text is a stand-in for a credential, and worth nothing elsewhere: leave it out",
                    ));
                }
                None => {
                    let reason = "the request holds a placeholder that is not of this run";
                    return Err(Denial::new(Guard::Unresolved, reason));
                }
            }
        }
        Ok(())
    };
    judge(sending.origin_form.as_bytes())?;
    for (name, value) in sending.fields.iter() {
        if Placeholder::find_all(name.as_bytes()).next().is_some() {
            return Err(Denial::new(Guard::EndpointMismatch, "a placeholder stands in a header's name"));
        }
        judge(value)?;
        if let Some(basic) = basic_of(name, value) {
            judge(&basic)?;
        }
    }
    Ok(found)
}

/// On a host with a bound credential nothing else may authenticate, or an allowed host becomes a way out.
fn refuse_own(
    sending: &Sending,
    provider: Option<&std::sync::Arc<Provider>>,
    gate: &Gate,
    target: &Target,
    form: Form,
) -> Result<(), Denial> {
    let holds = |text: &[u8]| {
        Placeholder::find_all(text).any(|(_, p)| gate.credentials().provider_of(&p).is_some())
            || (form == Form::Templates && is_template(text))
    };
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
    let injected = provider.and_then(|p| p.injection(target)).map(|i| i.place());
    for (name, value) in sending.fields.iter() {
        let telling = AUTHENTICATION.contains(&name)
            || matches!(injected, Some(Place::Header(header)) if header == name);
        if telling && !holds(value) && !basic_of(name, value).is_some_and(|basic| holds(&basic)) {
            return pinned(&format!("`{name}`"));
        }
    }
    let query = sending.origin_form.split_once('?').map_or("", |(_, query)| query);
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        let telling = AUTHENTICATION_QUERY.contains(&name.to_ascii_lowercase().as_str())
            || matches!(injected, Some(Place::Query(parameter)) if parameter == name);
        if telling && !value.is_empty() && !holds(value.as_bytes()) {
            return pinned(&format!("query parameter `{name}`"));
        }
    }
    Ok(())
}

/// Replaces placeholders by the credential's value, encoded for where it stands.
fn redeem(sending: &mut Sending, credential: &Credential) -> Result<(), Denial> {
    let field = main_field(credential);
    let value = |position| {
        Template::parse(&format!("{{{{{field}}}}}"))
            .map_err(|e| Denial::new(Guard::Unresolved, e.to_string()))?
            .render(credential, position)
            .map_err(|e| unfit("request", &e))
    };
    if Placeholder::find_all(sending.origin_form.as_bytes()).next().is_some() {
        let (path, query) = match sending.origin_form.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (sending.origin_form.as_str(), None),
        };
        let mut origin = replaced(path.as_bytes(), &value(Position::Path)?);
        if let Some(query) = query {
            origin.push(b'?');
            origin.extend(replaced(query.as_bytes(), &value(Position::Query)?));
        }
        sending.origin_form = String::from_utf8(origin)
            .map_err(|_| Denial::new(Guard::Unresolved, "the credential's value cannot stand in a target"))?;
    }
    for (name, content) in sending.fields.iter_mut() {
        if let Some(basic) = basic_of(name, content) {
            if Placeholder::find_all(&basic).next().is_some() {
                *content = basic_value(&replaced(&basic, &value(Position::Header)?));
            }
        } else if Placeholder::find_all(content).next().is_some() {
            *content = replaced(content, &value(Position::Header)?);
        }
    }
    Ok(())
}

fn has_templates(sending: &Sending) -> bool {
    is_template(sending.origin_form.as_bytes()) || sending.fields.iter().any(|(_, value)| is_template(value))
}

fn is_template(text: &[u8]) -> bool {
    std::str::from_utf8(text).ok().and_then(|t| Template::parse(t).ok()).is_some_and(|t| t.has_placeholders())
}

/// Replaces `{{field}}` in target and headers. S0.49
fn fill(sending: &mut Sending, credential: &Credential) -> Result<(), Denial> {
    let (path, query) = match sending.origin_form.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (sending.origin_form.as_str(), None),
    };
    let filled = |text: &str, position| {
        substitute(text.as_bytes(), credential, position).map_err(|e| unfit("URL", &e))
    };
    let mut origin = filled(path, Position::Path)?.to_vec();
    if let Some(query) = query {
        origin.push(b'?');
        origin.extend_from_slice(&filled(query, Position::Query)?);
    }
    sending.origin_form = String::from_utf8(origin)
        .map_err(|_| Denial::new(Guard::Unresolved, "the credential's value cannot stand in a target"))?;
    for (_, content) in sending.fields.iter_mut() {
        if is_template(content) {
            *content =
                substitute(content, credential, Position::Header).map_err(|e| unfit("header", &e))?.to_vec();
        }
    }
    Ok(())
}

/// The field a placeholder stands for: the only one, or `access_token`.
fn main_field(credential: &Credential) -> String {
    let mut names = credential.names();
    match (names.next(), names.next()) {
        (Some(only), None) => only.as_str().to_owned(),
        _ => "access_token".to_owned(),
    }
}

fn replaced(text: &[u8], value: &Secret) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + value.expose().len());
    let mut from = 0;
    for (range, _) in Placeholder::find_all(text) {
        out.extend(&text[from..range.start]);
        out.extend(value.expose());
        from = range.end;
    }
    out.extend(&text[from..]);
    out
}

/// Puts a rendered template where a provider wants it.
fn place(
    sending: &mut Sending,
    place: &Place,
    template: &str,
    credential: &Credential,
) -> Result<(), Denial> {
    let template = Template::parse(template).map_err(|e| Denial::new(Guard::Unresolved, e.to_string()))?;
    let render = |position| template.render(credential, position).map_err(|e| unfit("request", &e));
    match place {
        Place::Header(name) => sending.fields.set(name, render(Position::Header)?.expose()),
        Place::Basic => {
            sending.fields.set("authorization", &basic_value(render(Position::Header)?.expose()));
        }
        Place::Query(name) => {
            let value = render(Position::Query)?;
            let value = std::str::from_utf8(value.expose()).map_err(|_| {
                Denial::new(Guard::Unresolved, "the credential's value cannot stand in a query")
            })?;
            let joint = if sending.origin_form.contains('?') { '&' } else { '?' };
            sending.origin_form.push(joint);
            sending.origin_form.push_str(name);
            sending.origin_form.push('=');
            sending.origin_form.push_str(value);
        }
    }
    Ok(())
}

/// What an error of a template is to the agent; its text names fields, never values. S0.50
pub(crate) fn unfit(place: &str, error: &RenderError) -> Denial {
    let reason = match error {
        RenderError::Unresolved(names) => {
            let names: Vec<String> = names.iter().map(|name| format!("{{{{{name}}}}}")).collect();
            format!("Unresolved placeholders in {place}: {}", names.join(", "))
        }
        other => format!("{place}: {other}"),
    };
    Denial::new(Guard::Unresolved, reason)
}

/// What basic authentication says, decoded.
fn basic_of(name: &str, value: &[u8]) -> Option<Vec<u8>> {
    let scheme = value.get(..6)?;
    let basic = name == "authorization" && scheme.eq_ignore_ascii_case(b"basic ");
    let encoded = value[6..].trim_ascii();
    basic.then(|| BASE64.decode(encoded).ok()).flatten()
}

fn basic_value(text: &[u8]) -> Vec<u8> {
    format!("Basic {}", BASE64.encode(text)).into_bytes()
}
