//! `/llm/*`: the address of a model's API, as `MODEL_BASE_URL`. The model's name tells which provider answers, and that provider's key is
//! injected; the agent needs none. S1.25, S4.46

use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use policy::{Denial, Guard, Plane, Provider, Target};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::refused::{Refused, after_unread, recorded, refusal};
use super::whole_body::{WholeBody, read_whole};
use crate::audit;
use crate::exchange::{self, Exchange, Ready};
use crate::gate::Gate;
use crate::http::Fields;
use crate::http::answer::Answer;
use crate::http::forwarding::{Forwarding, Terms};
use crate::http::head::{BodyLength, RequestHead};
use crate::http::incoming::Incoming;
use crate::http::max_forwards::count_forward;
use crate::http::problem::After;
use crate::http::request::Request;
use crate::http::reserved_memory::ReservedMemory;
use crate::inject::{Form, Sending, inject, is_version, may_authenticate};

/// The largest request to a model: conversations are long, and hold pictures.
const LARGEST: usize = 32 * 1024 * 1024;
/// How long an answer may take (literal behaviour of the existing sidecar).
const WITHIN: Duration = Duration::from_secs(300);

/// The vendors whose names stand before models, as in `anthropic/…` (S4.46), and where each has its API.
const VENDORS: [(&str, &str); 3] = [
    ("anthropic", "https://api.anthropic.com/"),
    ("openai", "https://api.openai.com/"),
    (RESELLER, "https://openrouter.ai/"),
];
/// The vendor that has the models of others, under their makers' names (S4.46).
const RESELLER: &str = "openrouter";

/// Where paths begin that OpenAI's API has and Anthropic's has not. Many of these requests are multipart, or have no body that could name
/// a model.
const OF_OPENAI: [&str; 17] = [
    "assistants",
    "audio",
    "batches",
    "chat",
    "completions",
    "containers",
    "conversations",
    "embeddings",
    "evals",
    "fine_tuning",
    "images",
    "moderations",
    "realtime",
    "responses",
    "threads",
    "uploads",
    "vector_stores",
];

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
            Forwarding::new(gate, &target, terms).send(exchange, sending, request, answer).await
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
    let providers: Vec<_> = gate.policy().providers().filter(|p| p.is_asked_by_model()).cloned().collect();
    if providers.is_empty() {
        return Err(not_configured(gate, request));
    }
    let WholeBody { octets, reserved } = match read_whole(request, answer, LARGEST).await {
        Ok(body) => body,
        Err(reply) => {
            let reply = recorded(gate, &request.head, reply);
            return Err(Refused::Answered { reply, after: After::Close });
        }
    };
    let path = request.head.target.strip_prefix("/llm").unwrap_or("").trim_start_matches('/').to_owned();
    let Routed { provider, body } = route(gate, &request.head, &path, octets, &providers)?;
    let base = base(provider.first_uri());
    let url = format!("{base}{}", below(&base, &path));
    let target = Target::parse(&url).map_err(|denial| unreadable(gate, denial, &url))?;
    replace_body(request, body);
    let method = request.head.method.clone();
    let mut asked = policy::Asked::request(Plane::Gateway, method.clone(), &target);
    asked.provider = Some(provider.id().clone());
    let denied = |denial| Refused::denied(denial, &url);
    let pinned = exchange::pin(gate, method.as_str(), url.clone(), asked).await.map_err(denied)?;
    let mut sending = Sending::new(method, &target, fields_of(&request.head));
    let counted = count_forward(pinned, &mut sending, gate, &target, &url)
        .map_err(|ended| Refused::ended(ended, request, &url))?;
    let exchange = inject(counted, gate, &target, &mut sending, Form::Placeholders).await.map_err(denied)?;
    Ok(Prepared { exchange, target, sending, reserved })
}

/// Records and refuses a request in a run without a provider of models.
fn not_configured(gate: &Rc<Gate>, request: &Request<'_>) -> Refused {
    let why = "LLM proxy not configured";
    audit::record_refused_unasked(gate, Plane::Gateway, "/llm", Denial::new(Guard::Provider, why));
    let reply = refusal(503, "provider_not_declared", why);
    Refused::Answered { reply, after: after_unread(request) }
}

/// Records and refuses a request before its target has been judged.
fn unreadable(gate: &Rc<Gate>, denial: Denial, shown: &str) -> Refused {
    let denial = audit::record_refused_unasked(gate, Plane::Gateway, shown, denial);
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
    let mut fields = head.fields_to_send();
    fields.remove("expect"); // it has been met
    fields.keep(|name| !may_authenticate(name));
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
            let (lacks, hint) = match of_vendor(vendor, providers).next() {
                Some(own) => {
                    let hint = format!("say which provider of its host is meant, as in {}/MODEL", own.id());
                    ("several providers of the run are at its host", hint.into())
                }
                None => ("the run declares no such provider", gate.policy().declaring(vendor)),
            };
            let why = format!("the model is of `{vendor}`, and {lacks}");
            let denial = Denial::new(Guard::Provider, why).with_hint(hint);
            Err(unreadable(gate, denial, &head.target))
        }
        ByModel::Repeated => {
            let why = "the body names its `model` twice, and each reader may take another one: name it once";
            let reply = recorded(gate, head, refusal(400, "target_syntax", why));
            Err(Refused::Answered { reply, after: After::KeepAlive })
        }
        ByModel::Untold => match by_path(path, providers) {
            Some(provider) => Ok(Routed { provider: Arc::clone(provider), body }),
            None => {
                let why = "nothing tells which provider is meant: name the model as provider/model, as in \
                    anthropic/claude-sonnet-4-5, or ask the provider at its own address";
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
    /// It names a vendor that the run declares no provider for, or several under other names.
    Undeclared(&'static str),
    /// The body has the field more than once.
    Repeated,
    Untold,
}

/// Takes the provider off the model's name in a body.
fn by_model(body: &Bytes, providers: &[Arc<Provider>]) -> ByModel {
    let raw = match serde_json::from_slice(body) {
        Ok(ModelField::Once(raw)) => raw,
        Ok(ModelField::Repeated) => return ByModel::Repeated,
        Ok(ModelField::Missing) | Err(_) => return ByModel::Untold,
    };
    let Ok(name) = serde_json::from_str::<String>(raw.get()) else { return ByModel::Untold };
    // An id may hold a slash itself, so the longest one that the name begins with is meant.
    let after = |id: &str| Some(name.strip_prefix(id)?.strip_prefix('/')?.to_owned());
    let named = providers.iter().filter_map(|provider| Some((provider, after(provider.id().as_str())?)));
    let reseller = providers.iter().find(|provider| provider.id().as_str() == RESELLER);
    let (provider, model) = match (named.min_by_key(|(_, model)| model.len()), reseller) {
        (Some(named), _) => named,
        // A vendor's model is asked for at no other provider, except at one that resells the models of others (S4.46).
        (None, Some(reseller)) if name.contains('/') => {
            return ByModel::Declared(Routed { provider: Arc::clone(reseller), body: body.clone() });
        }
        (None, _) => {
            let vendor = VENDORS.iter().find_map(|(vendor, _)| Some((*vendor, after(vendor)?)));
            let Some((vendor, model)) = vendor else { return ByModel::Untold };
            // Or at the vendor's own host, by a subscription say.
            let mut own = of_vendor(vendor, providers);
            match (own.next(), own.next()) {
                (Some(only), None) => (only, model),
                _ => return ByModel::Undeclared(vendor),
            }
        }
    };
    // Models of the reseller's own, such as `openrouter/auto`, have its name in theirs.
    if after(RESELLER).as_ref() == Some(&model) && !model.contains('/') {
        return ByModel::Declared(Routed { provider: Arc::clone(provider), body: body.clone() });
    }
    // The raw text borrows from the body: the distance between the two is where it begins.
    let at = raw.get().as_ptr() as usize - body.as_ptr() as usize;
    let model = Value::String(model).to_string();
    let rewritten = [&body[..at], model.as_bytes(), &body[at + raw.get().len()..]].concat();
    ByModel::Declared(Routed { provider: Arc::clone(provider), body: rewritten.into() })
}

/// Returns the providers that are authorized where a vendor has its API, whatever their names.
fn of_vendor<'a>(vendor: &str, providers: &'a [Arc<Provider>]) -> impl Iterator<Item = &'a Arc<Provider>> {
    let api = VENDORS.iter().find(|(known, _)| *known == vendor).map(|(_, api)| *api);
    providers.iter().filter(move |provider| api.is_some_and(|api| provider.first_uri().starts_with(api)))
}

/// The only field of a request that is read; the others are skipped without being kept.
enum ModelField<'a> {
    Once(&'a RawValue),
    Repeated,
    Missing,
}

impl<'de> Deserialize<'de> for ModelField<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ModelFieldVisitor)
    }
}

struct ModelFieldVisitor;

impl<'de> Visitor<'de> for ModelFieldVisitor {
    type Value = ModelField<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a request to a model")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut fields: M) -> Result<Self::Value, M::Error> {
        let mut found = ModelField::Missing;
        while let Some(name) = fields.next_key::<String>()? {
            if name != "model" {
                fields.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = fields.next_value()?;
            found = match found {
                ModelField::Missing => ModelField::Once(value),
                ModelField::Once(_) | ModelField::Repeated => ModelField::Repeated,
            };
        }
        Ok(found)
    }
}

/// Returns the only provider there is, or the only one whose API has the path: among several none is guessed, for the request would go to
/// a service that it is not for, and its key with it.
fn by_path<'a>(path: &str, providers: &'a [Arc<Provider>]) -> Option<&'a Arc<Provider>> {
    use policy::LlmFormat::{Anthropic, OpenAi};
    let path = path.strip_prefix("v1/").unwrap_or(path);
    let format = match path.split(['?', '/']).next() {
        Some("messages") => Some(Anthropic),
        Some(first) if OF_OPENAI.contains(&first) => Some(OpenAi),
        // Both have `models` and `files`.
        _ => None,
    };
    if let [only] = providers {
        return Some(only);
    }
    let mut having = providers.iter().filter(|provider| format.is_some() && provider.llm() == format);
    having.next().filter(|_| having.next().is_none())
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

/// Returns a path without the beginning that it shares with the URL of an API, or without the version that programs put before it.
fn below<'a>(base: &str, path: &'a str) -> &'a str {
    let own = base.splitn(4, '/').nth(3).filter(|own| !own.is_empty());
    own.and_then(|own| path.strip_prefix(own)).or_else(|| path.strip_prefix("v1/")).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::request::Via;
    use crate::http::serve1::serve_requests;
    use crate::http::stream::AgentStream;

    /// Returns who is asked for a model, and under which name; or the vendor that is missing.
    fn asked(providers: &str, model: &str) -> String {
        let providers = declared(providers);
        let body = Bytes::from(format!("{{\"stream\":true,\"model\":\"{model}\"}}"));
        match by_model(&body, &providers) {
            ByModel::Declared(routed) => {
                let body: Value = serde_json::from_slice(&routed.body).unwrap();
                format!("{} {}", routed.provider.id(), body["model"].as_str().unwrap())
            }
            ByModel::Undeclared(vendor) => format!("without {vendor}"),
            ByModel::Repeated => "repeated".into(),
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
        for (base, own) in
            [("https://api.example.com/v1/", "v1/"), ("https://api.example.com/api/v1/", "api/v1/")]
        {
            for path in ["chat/completions", "v1/chat/completions", &format!("{own}chat/completions")] {
                assert_eq!(below(base, path), "chat/completions", "{base} {path}");
            }
        }
        assert_eq!(below("https://api.example.com/v1/", "api/v1/models"), "api/v1/models");
    }

    fn declared(providers: &str) -> Vec<Arc<Provider>> {
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Flags, toml::from_str(&format!("providers = {providers}")).unwrap());
        layers.compile().unwrap().policy.providers().cloned().collect()
    }

    #[tokio::test]
    async fn a_vendor_that_is_not_declared_is_denied_at_the_path_that_was_asked_for() {
        use tokio::io::AsyncReadExt;
        let gate = crate::fixture::gate_for("providers = [\"anthropic\"]", Vec::new(), None);
        let (ours, mut agent) = tokio::net::UnixStream::pair().unwrap();
        let body = r#"{"model":"openai/gpt-5"}"#;
        let head = "POST /llm/v1/chat/completions HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n";
        let asked = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        let stream = AgentStream::Unix(ours);
        let served = serve_requests(gate, Via::Gateway, stream, asked.as_bytes().into());
        tokio::task::LocalSet::new().run_until(served).await.unwrap();
        let mut told = String::new();
        agent.read_to_string(&mut told).await.unwrap();
        assert!(told.contains("\"target\":\"/llm/v1/chat/completions\""), "{told}");
    }

    #[test]
    fn a_path_that_two_providers_have_tells_none() {
        for all in ["[\"openrouter\", \"openai\"]", "[\"openai\", \"anthropic\", \"openrouter\"]"] {
            let providers = declared(all);
            for path in ["v1/uploads", "v1/audio/speech", "v1/batches", "images/edits", "v1/chat/completions"]
            {
                assert!(by_path(path, &providers).is_none(), "{all} {path}");
            }
        }
        let two = declared("[\"openrouter\", \"anthropic\"]");
        assert_eq!(by_path("v1/uploads", &two).map(|it| it.id().as_str()), Some("openrouter"));
        assert_eq!(by_path("v1/messages", &two).map(|it| it.id().as_str()), Some("anthropic"));
    }

    #[test]
    fn a_path_of_one_api_alone_tells_the_provider() {
        let providers = declared("[\"anthropic\", \"openai\"]");
        for (path, who) in [
            ("v1/messages", Some("anthropic")),
            ("v1/messages/batches", Some("anthropic")),
            ("v1/chat/completions", Some("openai")),
            ("v1/moderations", Some("openai")),
            ("v1/audio/transcriptions", Some("openai")),
            ("images/generations?x", Some("openai")),
            ("v1/fine_tuning/jobs", Some("openai")),
            ("v1/models", None),
            ("v1/files", None),
        ] {
            assert_eq!(by_path(path, &providers).map(|it| it.id().as_str()), who, "{path}");
            assert!(by_path(path, &providers[..1]).is_some(), "{path}");
        }
    }

    #[test]
    fn a_model_that_is_named_twice_is_none() {
        for (body, is_repeated) in [
            (r#"{"model":"openai/a","model":"anthropic/b"}"#, true),
            (r#"{"model":"a","x":{},"mod\u0065l":"a"}"#, true),
            (r#"{"model":null,"model":"openai/a","model":1}"#, true),
            (r#"{"model":"openai/a","x":{"model":"b"}}"#, false),
            (r#"["model","model"]"#, false),
        ] {
            let found = by_model(&Bytes::from(body), &declared("[\"openai\", \"anthropic\"]"));
            assert_eq!(matches!(found, ByModel::Repeated), is_repeated, "{body}");
        }
    }

    #[test]
    fn a_name_that_begins_with_an_id_of_two_parts_names_it() {
        let provider = |id: &str| {
            format!("{{ id = \"{id}\", llm = \"openai\", authorized_uris = [\"https://llm.example/v1/*\"] }}")
        };
        let declared =
            format!("[\"openrouter\"]\nprovider = [{}, {}]", provider("@acme/llm"), provider("acme"));
        for (model, who) in [
            ("@acme/llm/big", "@acme/llm big"),
            ("@acme/llm/vendor/big", "@acme/llm vendor/big"),
            ("acme/llm/big", "acme llm/big"),
            ("acmes/big", "openrouter acmes/big"),
        ] {
            assert_eq!(asked(&declared, model), who, "{model}");
        }
    }

    #[test]
    fn a_vendors_model_is_asked_for_at_its_own_host_whatever_the_provider_is_called() {
        let at = |id: &str, host: &str| {
            format!("{{ id = \"{id}\", llm = \"anthropic\", authorized_uris = [\"https://{host}/v1/*\"] }}")
        };
        let subscription = "[\"claude-subscription\"]";
        let two = format!("{subscription}\nprovider = [{}]", at("mine", "api.anthropic.com"));
        let elsewhere = format!("[]\nprovider = [{}]", at("mine", "llm.example"));
        for (providers, model, who) in [
            (subscription, "anthropic/claude-x", "claude-subscription claude-x"),
            (subscription, "claude-subscription/claude-x", "claude-subscription claude-x"),
            (subscription, "openai/gpt-5", "without openai"),
            (subscription, "google/gemini-3", "untold"),
            (&two, "anthropic/claude-x", "without anthropic"),
            (&two, "mine/claude-x", "mine claude-x"),
            (&elsewhere, "anthropic/claude-x", "without anthropic"),
        ] {
            assert_eq!(asked(providers, model), who, "{providers} {model}");
        }
        assert_eq!(of_vendor("anthropic", &declared(&two)).count(), 2);
    }

    #[test]
    fn a_model_of_another_vendor_is_asked_for_where_models_are_resold() {
        let both = "[\"openai\", \"openrouter\"]";
        for (providers, model, who) in [
            (both, "anthropic/claude-sonnet-4.5", "openrouter anthropic/claude-sonnet-4.5"),
            (both, "google/gemini-3", "openrouter google/gemini-3"),
            (both, "openai/gpt-5", "openai gpt-5"),
            (both, "openrouter/openai/gpt-5", "openrouter openai/gpt-5"),
            (both, "openrouter/auto", "openrouter openrouter/auto"),
            (both, "openrouter/openrouter/auto", "openrouter openrouter/auto"),
            (both, "gpt-5", "untold"),
            ("[\"openai\"]", "anthropic/claude-sonnet-4.5", "without anthropic"),
            ("[\"openai\"]", "google/gemini-3", "untold"),
        ] {
            assert_eq!(asked(providers, model), who, "{providers} {model}");
        }
    }
}
