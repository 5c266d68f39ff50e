//! `/llm/*`: the address of a model's API, as `MODEL_BASE_URL`. The model's name tells which provider answers, and that provider's key is
//! injected; the agent needs none. S1.25, S4.46

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use policy::{Denial, Guard, Hint, Plane, Provider, Target};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::refused::{Refused, after_unread, recorded, refusal};
use super::whole_body::{ReservedMemory, WholeBody, read_whole};
use crate::audit;
use crate::exchange::{self, Exchange, Ready};
use crate::gate::Gate;
use crate::http::Fields;
use crate::http::answer::Answer;
use crate::http::forward::{Terms, forward};
use crate::http::head::{BodyLength, RequestHead};
use crate::http::incoming::Incoming;
use crate::http::problem::After;
use crate::http::request::Request;
use crate::inject::{AUTHENTICATION, Form, Sending, inject, is_version};

/// The largest request to a model: conversations are long, and hold pictures.
const LARGEST: usize = 32 * 1024 * 1024;
/// How long an answer may take (literal behaviour of the existing sidecar).
const WITHIN: Duration = Duration::from_secs(300);

/// The vendors whose names stand before models, as in `anthropic/…` (S4.46).
const VENDORS: [&str; 3] = ["anthropic", "openai", RESELLER];
/// The vendor that has the models of others, under their makers' names (S4.46).
const RESELLER: &str = "openrouter";

/// A request that is ready to be forwarded.
struct Prepared {
    exchange: Exchange<Ready>,
    target: Target,
    sending: Sending,
    /// The memory of the request's body.
    reserved: ReservedMemory,
}

/// Answers `/llm/*`.
pub(super) async fn llm(
    gate: &Rc<Gate>,
    mut request: Request<'_>,
    mut answer: Answer<'_>,
) -> io::Result<After> {
    match prepare(gate, &mut request, &mut answer).await {
        Ok(Prepared { exchange, target, sending, reserved: _reserved }) => {
            let terms = Terms { within: Some(WITHIN), ..Terms::default() };
            forward(gate, exchange, &target, sending, request, answer, terms).await
        }
        Err(refused) => refused.answer(gate, &request, answer).await,
    }
}

/// Takes a request through every stage before it is forwarded.
async fn prepare(
    gate: &Rc<Gate>,
    request: &mut Request<'_>,
    answer: &mut Answer<'_>,
) -> Result<Prepared, Refused> {
    let providers: Vec<_> = gate.policy().providers().filter(|p| p.llm().is_some()).cloned().collect();
    if providers.is_empty() {
        return Err(not_configured(gate, request));
    }
    let WholeBody { octets, reserved } = match read_whole(request, answer, LARGEST).await? {
        Ok(body) => body,
        Err(reply) => {
            let reply = recorded(gate, &request.head, reply);
            return Err(Refused::Answered { reply, after: After::Close });
        }
    };
    let path = request.head.target.strip_prefix("/llm").unwrap_or("").trim_start_matches('/').to_owned();
    let Routed { provider, body } = route(gate, &request.head, &path, octets, &providers)?;
    let url = format!("{}{}", base(provider.first_uri()), path.strip_prefix("v1/").unwrap_or(&path));
    let target = Target::parse(&url).map_err(|denial| unreadable(gate, denial, &url))?;
    replace_body(request, body);
    let method = request.head.method.clone();
    let mut asked = policy::Asked::request(Plane::Gateway, method.clone(), &target);
    asked.provider = Some(provider.id().clone());
    let denied = |denial| Refused::denied(denial, &url);
    let pinned = exchange::pin(gate, method.as_str(), url.clone(), asked).await.map_err(denied)?;
    let mut sending = Sending::new(method, &target, fields_of(&request.head));
    let exchange = inject(pinned, gate, &target, &mut sending, Form::Placeholders).await.map_err(denied)?;
    Ok(Prepared { exchange, target, sending, reserved })
}

/// Records and refuses a request in a run without a provider of models.
fn not_configured(gate: &Rc<Gate>, request: &Request<'_>) -> Refused {
    let why = "LLM proxy not configured";
    audit::record_unreadable(gate, Plane::Gateway, "/llm", Denial::new(Guard::Provider, why));
    let reply = refusal(503, "provider_not_declared", why);
    Refused::Answered { reply, after: after_unread(request) }
}

/// Records and refuses a request before its target has been judged.
fn unreadable(gate: &Rc<Gate>, denial: Denial, shown: &str) -> Refused {
    let denial = audit::record_unreadable(gate, Plane::Gateway, shown, denial);
    Refused::denied(denial, shown)
}

/// Puts the routed body in the place of the one that was read. An empty one leaves the agent's connection as the body: the request may be
/// for a WebSocket.
fn replace_body(request: &mut Request<'_>, body: Bytes) {
    if body.is_empty() {
        request.head.body = BodyLength::None;
    } else {
        request.head.body = BodyLength::Sized(body.len() as u64);
        request.body = Incoming::Whole(Some(body));
    }
}

/// Returns the header fields to send on. Clients insist on sending a key; theirs is made up, and the sidecar's counts.
fn fields_of(head: &RequestHead) -> Fields {
    let mut fields = head.fields.clone();
    fields.leave_hop();
    fields.remove("expect"); // it has been met
    AUTHENTICATION.iter().for_each(|name| fields.remove(name));
    fields
}

/// The provider that answers a request, and the body to send it.
struct Routed {
    provider: Arc<Provider>,
    body: Bytes,
}

/// Chooses the provider by the model's name, or by the path where the name tells none.
fn route(
    gate: &Rc<Gate>,
    head: &RequestHead,
    path: &str,
    body: Bytes,
    providers: &[Arc<Provider>],
) -> Result<Routed, Refused> {
    match by_model(&body, providers) {
        ByModel::Declared(routed) => Ok(routed),
        ByModel::Undeclared(vendor) => {
            let why = format!("the model is of `{vendor}`, and the run declares no such provider");
            let denial = Denial::new(Guard::Provider, why)
                .with_hint(Hint::Command(format!("lockgate run --provider {vendor}")));
            Err(unreadable(gate, denial, path))
        }
        ByModel::Untold => match by_path(path, providers) {
            Some(provider) => Ok(Routed { provider: Arc::clone(provider), body }),
            None => {
                let why = "name the model as provider/model, as in anthropic/claude-sonnet-4-5";
                let reply = recorded(gate, head, refusal(400, "target_syntax", why));
                Err(Refused::Answered { reply, after: After::KeepAlive })
            }
        },
    }
}

/// What a model's name tells of its provider.
enum ByModel {
    /// It names this provider, and the body no longer does; or the maker of a model that this provider resells.
    Declared(Routed),
    /// It names a vendor that the run declares no provider for.
    Undeclared(String),
    Untold,
}

/// Takes the provider off the model's name in a body.
fn by_model(body: &Bytes, providers: &[Arc<Provider>]) -> ByModel {
    let Ok(ModelField { model: Some(raw) }) = serde_json::from_slice::<ModelField<'_>>(body) else {
        return ByModel::Untold;
    };
    let Ok(name) = serde_json::from_str::<String>(raw.get()) else { return ByModel::Untold };
    let known = |id: &str| providers.iter().find(|provider| provider.id().as_str() == id);
    let Some((vendor, model)) = name.split_once('/') else { return ByModel::Untold };
    let Some(provider) = known(vendor) else {
        // A vendor's model is asked for at no other provider, except at one that resells the models of others (S4.46).
        return match known(RESELLER) {
            Some(reseller) => {
                ByModel::Declared(Routed { provider: Arc::clone(reseller), body: body.clone() })
            }
            None if VENDORS.contains(&vendor) => ByModel::Undeclared(vendor.to_owned()),
            None => ByModel::Untold,
        };
    };
    // The raw text borrows from the body: the distance between the two is where it begins.
    let at = raw.get().as_ptr() as usize - body.as_ptr() as usize;
    let model = Value::String(model.to_owned()).to_string();
    let rewritten = [&body[..at], model.as_bytes(), &body[at + raw.get().len()..]].concat();
    ByModel::Declared(Routed { provider: Arc::clone(provider), body: rewritten.into() })
}

/// The only field of a request that is read; the others are skipped without being kept.
#[derive(Deserialize)]
struct ModelField<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
}

/// Returns the only provider there is, or the first whose API has the path.
fn by_path<'a>(path: &str, providers: &'a [Arc<Provider>]) -> Option<&'a Arc<Provider>> {
    use policy::LlmFormat::{Anthropic, OpenAi};
    let path = path.strip_prefix("v1/").unwrap_or(path);
    let format = match path.split(['?', '/']).next() {
        Some("messages") => Some(Anthropic),
        Some("chat" | "responses" | "completions" | "embeddings") => Some(OpenAi),
        _ => None,
    };
    match providers {
        [only] => Some(only),
        _ => providers.iter().find(|provider| format.is_some() && provider.llm() == format),
    }
}

/// Returns the URL at which a provider's API begins, by its first URI: all of a prefix that names a version, or an exact one up to and with
/// its version. Where there is none it is `v1`.
fn base(first_uri: &str) -> String {
    let is_prefix = first_uri.ends_with('*');
    let first = first_uri.trim_end_matches('*').trim_end_matches('/');
    // Two slashes are before the host, whose name is no version.
    let segments = first.match_indices('/').skip(2).map(|(at, _)| at + 1);
    let end = |start: usize| first[start..].find('/').map_or(first.len(), |length| start + length);
    match segments.map(|start| (start, end(start))).find(|(start, end)| is_version(&first[*start..*end])) {
        Some(_) if is_prefix => format!("{first}/"),
        Some((_, end)) => format!("{}/", &first[..end]),
        None => format!("{first}/v1/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns who is asked for a model, and under which name; or the vendor that is missing.
    fn asked(providers: &str, model: &str) -> String {
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Flags, toml::from_str(&format!("providers = {providers}")).unwrap());
        let spec = layers.compile().unwrap();
        let providers: Vec<_> = spec.policy.providers().cloned().collect();
        let body = Bytes::from(format!("{{\"stream\":true,\"model\":\"{model}\"}}"));
        match by_model(&body, &providers) {
            ByModel::Declared(routed) => {
                let body: Value = serde_json::from_slice(&routed.body).unwrap();
                format!("{} {}", routed.provider.id(), body["model"].as_str().unwrap())
            }
            ByModel::Undeclared(vendor) => format!("without {vendor}"),
            ByModel::Untold => "untold".into(),
        }
    }

    #[test]
    fn an_api_begins_behind_its_version() {
        for (first, api) in [
            ("https://api.example.com/v1/*", "https://api.example.com/v1/"),
            ("https://api.example.com/*", "https://api.example.com/v1/"),
            ("https://v1.example.com/*", "https://v1.example.com/v1/"),
            ("https://api.example.com/api/paas/v4/*", "https://api.example.com/api/paas/v4/"),
            ("https://api.example.com/v1beta/openai/*", "https://api.example.com/v1beta/openai/"),
            ("https://api.example.com/v1/chat/completions", "https://api.example.com/v1/"),
            ("https://api.example.com/api", "https://api.example.com/api/v1/"),
        ] {
            assert_eq!(base(first), api, "{first}");
        }
    }

    #[test]
    fn a_model_of_another_vendor_is_asked_for_where_models_are_resold() {
        let both = "[\"openai\", \"openrouter\"]";
        for (providers, model, who) in [
            (both, "anthropic/claude-sonnet-4.5", "openrouter anthropic/claude-sonnet-4.5"),
            (both, "google/gemini-3", "openrouter google/gemini-3"),
            (both, "openai/gpt-5", "openai gpt-5"),
            (both, "openrouter/openai/gpt-5", "openrouter openai/gpt-5"),
            (both, "gpt-5", "untold"),
            ("[\"openai\"]", "anthropic/claude-sonnet-4.5", "without anthropic"),
            ("[\"openai\"]", "google/gemini-3", "untold"),
        ] {
            assert_eq!(asked(providers, model), who, "{providers} {model}");
        }
    }
}
