//! The model providers of the world: which keys they accept, and which of their interfaces a request is for. An answer that refuses a key
//! repeats it, as real ones have done. What a model says is scripted, see [`script`].

mod anthropic;
mod chat;
mod responses;
mod script;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use lockgate_world::{ANTHROPIC_KEY, OPENAI_KEY, OPENROUTER_KEY};
use serde_json::{Value, json};

use crate::response::Response;
use crate::websocket;
use crate::wire::{Body, Head};

/// The pause between two events of a stream: enough to tell a stream from a whole answer.
const PAUSE: Duration = Duration::from_millis(2);
/// The number of characters in one event.
const PIECE: usize = 16;

/// The providers, and the file with the keys they accept.
pub(crate) struct Models {
    pub(crate) keys: Option<PathBuf>,
}

/// The provider at a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Provider {
    Anthropic,
    OpenAi,
    OpenRouter,
}

impl Provider {
    fn of(host: &str) -> Option<Self> {
        match host {
            "api.anthropic.com" => Some(Self::Anthropic),
            "api.openai.com" => Some(Self::OpenAi),
            "openrouter.ai" => Some(Self::OpenRouter),
            _ => None,
        }
    }

    fn default_key(self) -> &'static str {
        match self {
            Self::Anthropic => ANTHROPIC_KEY,
            Self::OpenAi => OPENAI_KEY,
            Self::OpenRouter => OPENROUTER_KEY,
        }
    }

    /// The path of its interface.
    fn root(self) -> &'static str {
        match self {
            Self::Anthropic | Self::OpenAi => "/v1/",
            Self::OpenRouter => "/api/v1/",
        }
    }

    fn error(self, status: u16, kind: &str, message: &str) -> Response {
        let body = match self {
            Self::Anthropic => json!({ "type": "error", "error": { "type": kind, "message": message } }),
            Self::OpenAi | Self::OpenRouter => {
                json!({ "error": { "type": kind, "code": kind, "param": null, "message": message } })
            }
        };
        Response { status, ..Response::json(&body) }
    }

    /// Returns the refusal of an unknown key.
    fn refuse(self, key: &str) -> Response {
        match self {
            Self::Anthropic => self.error(401, "authentication_error", &format!("invalid x-api-key: {key}")),
            Self::OpenAi | Self::OpenRouter => {
                self.error(401, "invalid_api_key", &format!("Incorrect API key provided: {key}."))
            }
        }
    }
}

impl Models {
    /// Returns the answer of a provider, or nothing if `host` is none.
    pub(crate) fn answer(&self, host: &str, path: &str, head: &Head, body: &Body) -> Option<Response> {
        let provider = Provider::of(host)?;
        let Some(method) = path.strip_prefix(provider.root()) else {
            return Some(provider.error(404, "not_found_error", "not found"));
        };
        let given = keys_of(head);
        let expected = self.expected(host).unwrap_or_else(|| provider.default_key().to_owned());
        if !given.contains(&expected.as_str()) {
            return Some(provider.refuse(given.first().copied().unwrap_or_default()));
        }
        let asked = || serde_json::from_slice::<Value>(&body.kept);
        let answered = match (provider, head.method.as_str(), method) {
            (Provider::Anthropic, "POST", "messages") => asked().map(|asked| anthropic::answer(&asked)),
            (Provider::Anthropic, "POST", "messages/count_tokens") => {
                asked().map(|_| anthropic::count_tokens())
            }
            (Provider::Anthropic, "GET", "models") => Ok(anthropic::models()),
            (Provider::OpenAi | Provider::OpenRouter, "POST", "chat/completions") => {
                asked().map(|asked| chat::answer(&asked))
            }
            (Provider::OpenAi | Provider::OpenRouter, "POST", "responses") => {
                asked().map(|asked| responses::answer(&asked))
            }
            // Codex tries a WebSocket first, and takes this for a no.
            (Provider::OpenAi, "GET", "responses") => Ok(websocket::required()),
            (Provider::OpenAi | Provider::OpenRouter, "GET", "models") => Ok(chat::models()),
            _ => Ok(provider.error(404, "not_found_error", "not found")),
        };
        let unread = |error: serde_json::Error| {
            provider.error(400, "invalid_request_error", &format!("the body is no JSON: {error}"))
        };
        Some(answered.unwrap_or_else(unread))
    }

    /// Returns the file's key for this host, read anew for each request.
    fn expected(&self, host: &str) -> Option<String> {
        let text = fs::read(self.keys.as_ref()?).ok()?;
        let keys: Value = serde_json::from_slice(&text).ok()?;
        Some(keys.get(host)?.as_str()?.to_owned())
    }
}

/// Returns every key in a request.
fn keys_of(head: &Head) -> Vec<&str> {
    let own = head.header("x-api-key");
    let bearer = head.header("authorization").and_then(|value| value.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key);
    own.into_iter().chain(bearer).collect()
}

/// Returns a server-sent event, with a name or without.
fn event(name: Option<&str>, data: &Value) -> Vec<u8> {
    let name = name.map(|name| format!("event: {name}\n")).unwrap_or_default();
    format!("{name}data: {data}\n\n").into_bytes()
}

fn stream(events: Vec<Vec<u8>>) -> Response {
    Response::pieces("text/event-stream; charset=utf-8", events, PAUSE).with("cache-control", "no-cache")
}

/// Splits a text into the pieces of a stream.
fn pieces(text: &str) -> Vec<String> {
    let letters: Vec<char> = text.chars().collect();
    letters.chunks(PIECE).map(|piece| piece.iter().collect()).collect()
}

/// Returns the requested model.
fn model_of(asked: &Value) -> &str {
    asked["model"].as_str().unwrap_or("world-model")
}
