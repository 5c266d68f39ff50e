//! `/llm/*`: the address of a model, as `MODEL_BASE_URL`. Which provider answers is told by the model's name, and its key is
//! put in on the way; the agent needs none. S1.25, S4.46

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use policy::{Denial, Guard, Hint, Plane, Provider, Target};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{left, noted, refusal, whole};
use crate::exchange::{self, Asked, Exchange};
use crate::gate::Gate;
use crate::http::answer::Answer;
use crate::http::forward::{Terms, forward};
use crate::http::head::BodyLength;
use crate::http::incoming::Incoming;
use crate::http::problem::After;
use crate::http::refuse::deny;
use crate::http::request::Request;
use crate::inject::{AUTHENTICATION, Form, Sending, inject};

/// The largest request to a model: long conversations with pictures in them.
const LARGEST: usize = 32 * 1024 * 1024;
/// How long an answer may take (REQUIREMENTS, literal behaviour).
const WITHIN: Duration = Duration::from_secs(300);

/// By whose names models are asked for, and who of them has the models of others under their makers' names (S4.46).
const VENDORS: [&str; 3] = ["anthropic", "openai", RESELLER];
const RESELLER: &str = "openrouter";

/// Answers `/llm/*`.
pub(super) async fn llm(gate: &Rc<Gate>, request: Request<'_>, mut answer: Answer<'_>) -> io::Result<After> {
    let models: Vec<_> = gate.policy().providers().filter(|p| p.llm().is_some()).cloned().collect();
    if models.is_empty() {
        let denial = Denial::new(Guard::Provider, "LLM proxy not configured");
        Exchange::<Asked>::refuse_unreadable(gate, Plane::Gateway, "/llm", denial);
        return answer
            .reply(refusal(503, "provider_not_declared", "LLM proxy not configured"), left(&request))
            .await;
    }
    let Request { mut head, mut body } = request;
    let (written, _room) = match whole(&head, &mut body, &mut answer, LARGEST).await? {
        Ok(held) => held,
        Err(refused) => return answer.reply(noted(gate, &head, refused), After::Close).await,
    };
    let rest = head.target.strip_prefix("/llm").unwrap_or("").trim_start_matches('/').to_owned();
    let (model, written) = routed(&written, &models);
    if let Some(other) = model.as_deref().filter(|name| !models.iter().any(|p| p.id().as_str() == *name)) {
        let why = format!("the model is of `{other}`, and the run declares no such provider");
        let denial = Denial::new(Guard::Provider, why)
            .with_hint(Hint::Command(format!("lockgate run --provider {other}")));
        let denial = Exchange::<Asked>::refuse_unreadable(gate, Plane::Gateway, &rest, denial);
        let request = Request { head, body: Incoming::Whole(None) };
        return deny(gate, &request, answer, &denial, &rest).await;
    }
    let provider = model.and_then(|name| models.iter().find(|p| p.id().as_str() == name));
    let Some(provider) = provider.or_else(|| by_path(&rest, &models)) else {
        let why = "name the model as provider/model, as in anthropic/claude-sonnet-4-5";
        let reply = noted(gate, &head, refusal(400, "target_syntax", why));
        return answer.reply(reply, After::KeepAlive).await;
    };
    let text = format!("{}{}", base(provider), rest.strip_prefix("v1/").unwrap_or(&rest));
    let target = match Target::parse(&text) {
        Ok(target) => target,
        Err(denial) => {
            let denial = Exchange::<Asked>::refuse_unreadable(gate, Plane::Gateway, &text, denial);
            let request = Request { head, body: Incoming::Whole(None) };
            return deny(gate, &request, answer, &denial, &text).await;
        }
    };
    let length = written.as_ref().map_or(0, Bytes::len);
    head.body = if length == 0 { BodyLength::None } else { BodyLength::Sized(length as u64) };
    let mut fields = head.fields.clone();
    fields.leave_hop();
    fields.remove("expect"); // it has been met
    // Clients insist on sending a key; here the sidecar's counts, and theirs is made up.
    AUTHENTICATION.iter().for_each(|name| fields.remove(name));
    let method = head.method.clone();
    let mut asked = policy::Asked::request(Plane::Gateway, method.clone(), &target);
    asked.provider = Some(provider.id().clone());
    // Without one the connection goes on as it is: it may be asked for a WebSocket.
    let body = match written.filter(|written| !written.is_empty()) {
        Some(written) => Incoming::Whole(Some(written)),
        None => body,
    };
    let request = Request { head, body };
    let pinned = match exchange::pin(gate, method.as_str(), text.clone(), asked).await {
        Ok(exchange) => exchange,
        Err(denial) => return deny(gate, &request, answer, &denial, &text).await,
    };
    let mut sending = Sending::new(method, &target, fields);
    match inject(pinned, gate, &target, &mut sending, Form::Placeholders).await {
        Ok(exchange) => {
            let terms = Terms { within: Some(WITHIN), ..Terms::default() };
            forward(gate, exchange, &target, sending, request, answer, terms).await
        }
        Err(denial) => deny(gate, &request, answer, &denial, &text).await,
    }
}

/// Takes the provider off the model's name: which one it is, and the body without it.
fn routed(body: &Bytes, models: &[std::sync::Arc<Provider>]) -> (Option<String>, Option<Bytes>) {
    let unchanged = (None, Some(body.clone()));
    let Ok(Named { model: Some(raw) }) = serde_json::from_slice::<Named<'_>>(body) else { return unchanged };
    let Ok(name) = serde_json::from_str::<String>(raw.get()) else { return unchanged };
    let known = |first: &str| models.iter().any(|p| p.id().as_str() == first);
    let Some((first, model)) = name.split_once('/') else { return unchanged };
    if !known(first) {
        // Whose it is, is said: nobody else is asked for it, but one who has the models of others (S4.46).
        let is_elsewhere = VENDORS.contains(&first) && !known(RESELLER);
        return if is_elsewhere { (Some(first.to_owned()), None) } else { unchanged };
    }
    // The raw text is a part of the body: its place is where it begins.
    let at = raw.get().as_ptr() as usize - body.as_ptr() as usize;
    let named = Value::String(model.to_owned()).to_string();
    let rewritten = [&body[..at], named.as_bytes(), &body[at + raw.get().len()..]].concat();
    (Some(first.to_owned()), Some(rewritten.into()))
}

/// The one field that is read of a request; all others are passed over without being kept.
#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
}

/// A path that only one model API has, or the only provider there is.
fn by_path<'a>(rest: &str, models: &'a [std::sync::Arc<Provider>]) -> Option<&'a std::sync::Arc<Provider>> {
    use policy::LlmFormat::{Anthropic, OpenAi};
    let path = rest.strip_prefix("v1/").unwrap_or(rest);
    let format = match path.split(['?', '/']).next() {
        Some("messages") => Some(Anthropic),
        Some("chat" | "responses" | "completions" | "embeddings") => Some(OpenAi),
        _ => None,
    };
    match models {
        [only] => Some(only),
        _ => models.iter().find(|p| format.is_some() && p.llm() == format),
    }
}

/// Where a provider's API begins, up to and with its version.
fn base(provider: &Provider) -> String {
    let first = provider.first_uri().trim_end_matches('*');
    if first.ends_with("/v1/") { first.to_owned() } else { format!("{}/v1/", first.trim_end_matches('/')) }
}
