//! Answers that repeat a request, or its credential alone in each of the ways in which an upstream may leak one. Dangerous on purpose: it
//! must never soften what it returns.

use std::time::Duration;

use data_encoding::{BASE64, HEXLOWER};
use serde_json::{Map, Value, json};

use crate::forms::{brotli, deflate, gzip, json_string, lines_of, percent};
use crate::paths::Query;
use crate::response::{Content, Response};
use crate::wire::{Body, Head, latin1};

/// The place where a request arrived.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) server: &'a str,
    pub(crate) scheme: &'a str,
}

/// Returns the request without its body.
pub(crate) fn echo(origin: Origin<'_>, head: &Head, body: &Body) -> Value {
    let mut headers = Map::new();
    for (name, value) in &head.headers {
        let name = name.to_ascii_lowercase();
        let joined = headers.get(&name).and_then(Value::as_str).map(|before| format!("{before}, {value}"));
        headers.insert(name, Value::String(joined.unwrap_or_else(|| value.clone())));
    }
    json!({
        "server": origin.server,
        "scheme": origin.scheme,
        "method": head.method,
        "path": head.target,
        "host": head.header("host"),
        "headers": headers,
        "body_length": body.length,
    })
}

/// Adds the body to an echo, one character per octet.
pub(crate) fn with_body(mut echo: Value, body: &Body) -> Value {
    echo["body"] = latin1(&body.kept).into();
    echo
}

/// Returns the `Authorization` header's value in the form that `as` names, with the status that `status` names.
pub(crate) fn echo_authorization(query: Query<'_>, head: &Head) -> Response {
    let value = head.header("authorization").unwrap_or_default();
    let octets = value.as_bytes();
    let text = |body: String| Response::of(200, "text/plain", body);
    let coded =
        |coding: &str, body: Vec<u8>| Response::of(200, "text/plain", body).with("content-encoding", coding);
    let name = "x-authorization".to_owned();
    let bit_by_bit = |pause| {
        let pieces = octets.iter().map(|octet| vec![*octet]).collect();
        Response::pieces("text/plain", pieces, pause)
    };
    let response = match query.text("as").unwrap_or("plain") {
        "plain" => text(value.to_owned()),
        "base64" => text(BASE64.encode(octets)),
        "hex" => text(HEXLOWER.encode(octets)),
        "percent" => text(percent(octets)),
        "json" => {
            let body = format!("{{\"authorization\":{}}}", json_string(value));
            Response::of(200, "application/json", body)
        }
        "gzip" => coded("gzip", gzip(&lines_of(octets))),
        "deflate" => coded("deflate", deflate(&lines_of(octets))),
        "br" => coded("br", brotli(&lines_of(octets))),
        "chunks1" => bit_by_bit(Duration::ZERO),
        "slow" => bit_by_bit(query.milliseconds("ms").unwrap_or(Duration::from_millis(5))),
        "header" => text("see the header\n".to_owned()).with(&name, value),
        "www-authenticate" => {
            let challenge = format!("Bearer error=\"invalid_token\", error_description=\"{value}\"");
            Response::of(401, "text/plain", "see the header\n").with("www-authenticate", challenge)
        }
        "set-cookie" => text("see the cookie\n".to_owned())
            .with("set-cookie", format!("authorization=\"{value}\"; Path=/; Secure; HttpOnly")),
        "location" => {
            let place = format!("/echo?authorization={}", value.replace(' ', "%20"));
            Response::bare(302, "").with("location", place)
        }
        "early-hints" => text("see the hints\n".to_owned()).after(103, vec![(name, value.to_owned())]),
        "trailer" => {
            let content = Content::Pieces {
                pieces: vec![b"see the trailer\n".to_vec()],
                pause: Duration::ZERO,
                trailers: vec![(name.clone(), value.to_owned())],
            };
            Response { content, ..text(String::new()).with("trailer", name) }
        }
        other => Response::of(400, "text/plain", format!("no form is called {other}\n")),
    };
    match query.number("status").filter(|status| (200..600).contains(status)) {
        Some(status) => Response { status, ..response },
        None => response,
    }
}
