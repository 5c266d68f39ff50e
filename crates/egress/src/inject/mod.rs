//! Injects a credential into a request, as the last stage before the request is sent. The credential is fetched only now, after
//! the request was granted, its host resolved and every address judged.
//!
//! A placeholder is redeemed where programs put their keys: in a header's value, in basic authentication, in the path and the
//! query. A request without one gets the provider's own injection. A placeholder anywhere else, or of another provider, refuses
//! the request: it is never half replaced, and never sent on (C01, C08). An exposed value is read as its placeholder where a key
//! may stand.

mod agent_credentials;
pub(crate) mod draft;
mod exposed;
mod find;
mod method_override;
mod model_request;
mod substitution;

use std::rc::Rc;

use policy::{Denial, Guard, Method, Placeholders, Provider, ProviderId, Target};

use crate::credentials::FetchedCredential;
use crate::exchange::{Exchange, Pinned, Ready};
use crate::gate::Gate;
use crate::http::Fields;

pub(crate) use agent_credentials::{AUTHENTICATION, stands_elsewhere, tells_who_asks};
use draft::{Draft, Injected, Redeemable};
pub(crate) use draft::{Form, Sending};
use find::find;
pub(crate) use model_request::is_version;

/// Injects the credential that is bound to where a request goes, if there is one.
pub(crate) async fn inject(
    exchange: Exchange<Pinned>,
    gate: &Gate,
    target: &Target,
    sending: &mut Sending,
    form: Form,
) -> Result<Exchange<Ready>, Denial> {
    match prepare(&exchange, gate, target, sending, form).await {
        Ok(injected) => Ok(exchange.ready(injected)),
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
    let sending = Sending::new(method.clone(), target, Fields::default());
    match method_override::judge(
        &sending,
        gate.policy(),
        exchange.grant().provider().map(|provider| &**provider),
        target,
    ) {
        Ok(_) => Ok(exchange),
        Err(denial) => Err(exchange.refuse(denial)),
    }
}

/// Makes a request again from its draft, with a new credential of the same provider.
pub(crate) fn inject_again(
    exchange: &mut Exchange<Ready>,
    new: Rc<FetchedCredential>,
    target: &Target,
) -> Option<Sending> {
    let provider = exchange.grant().provider()?.clone();
    let draft = exchange.draft()?;
    let mut sending = draft.sending.clone();
    put(&mut sending, &provider, target, &new, draft.redeemable).ok()?;
    exchange.hold(new);
    Some(sending)
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
    let readings =
        method_override::judge(sending, gate.policy(), provider.map(|provider| &**provider), target)?;
    if let Some(provider) = provider {
        exposed::read_as_placeholder(sending, gate, provider, target);
    }
    let redeemable = redeemable(sending, gate, provider.map(|p| p.id()), form)?;
    if grant.refuses_own_credentials() {
        agent_credentials::refuse_own(sending, provider, target, form)?;
        // A session from elsewhere would authenticate as well, and APIs need none.
        sending.fields.remove("cookie");
    }
    let Some(provider) = provider else {
        if grant.is_bound() {
            ask_for_whole_response(sending);
        }
        return Ok(None);
    };
    if provider.placeholders() == Placeholders::InPlace && redeemable != Redeemable::Nothing {
        refuse_misplaced(sending, gate, provider, target, redeemable, form).await?;
    }
    sending.fields.keep(|name| provider.lets_pass(name) || AUTHENTICATION.contains(&name));
    let model_request = model_request::model_request(provider, &readings, sending);
    let held = gate.credentials().of(provider.id()).await?;
    ask_for_whole_response(sending);
    let draft = Draft { sending: sending.clone(), redeemable };
    put(sending, provider, target, &held, redeemable)?;
    // Last, so that a request that is refused uses nothing up.
    let admitted = match model_request {
        Some(model_request) => Some(gate.ledger().admit(model_request).await?),
        None => None,
    };
    gate.rates().admit(provider, std::time::Instant::now)?;
    Ok(Some(Injected { held, draft, admitted }))
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
    let found = find(sending, gate, provider)?;
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
) -> Result<(), Denial> {
    let refused = agent_credentials::refuse_elsewhere(sending, provider, target, form);
    if refused.is_err() && redeemable == Redeemable::Templates {
        // An unresolved field is reported as such (400, S0.50), and not as one in a wrong place.
        let held = gate.credentials().of(provider.id()).await?;
        substitution::fill(&mut sending.clone(), held.credential())?;
    }
    refused
}

/// Asks for an unpacked and whole response, because it is searched for credentials.
fn ask_for_whole_response(sending: &mut Sending) {
    sending.fields.set("accept-encoding", b"identity");
    for name in PARTIAL.iter().chain(&["sec-websocket-extensions"]) {
        sending.fields.remove(name);
    }
    for name in ["grpc-accept-encoding", "connect-accept-encoding"] {
        if sending.fields.has(name) {
            sending.fields.set(name, b"identity");
        }
    }
}

/// Puts the credential where the agent says, and also where the provider says unless the former authenticates already.
fn put(
    sending: &mut Sending,
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
    match redeemable {
        Redeemable::Placeholders => substitution::redeem(sending, held.credential())?,
        Redeemable::Templates => substitution::fill(sending, held.credential())?,
        Redeemable::Nothing => {}
    }
    match provider.injection(target) {
        Some(injection) if !authenticates => {
            substitution::place(sending, injection.place(), injection.value(), held)
        }
        _ => Ok(()),
    }
}
