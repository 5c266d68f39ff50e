//! The paths that every web server of the world serves, under any name: answers of every shape that a proxy may have to carry. It must not
//! write to the wire.

use std::time::Duration;

use serde_json::json;

use crate::echoes::{Origin, echo, echo_authorization, with_body};
use crate::response::{Reaction, Response};
use crate::wire::{Body, Head, latin1};

/// The limit of waits, lengths and numbers of events.
const MAX_WAIT: u64 = 120_000;
const MAX_BYTES: u64 = 16 << 30;
const MAX_EVENTS: u64 = 100_000;
const MAX_HINTS: usize = 100;

/// The part of a target after `?`.
#[derive(Clone, Copy)]
pub(crate) struct Query<'a>(&'a str);

impl<'a> Query<'a> {
    /// Returns the value undecoded.
    pub(crate) fn text(self, name: &str) -> Option<&'a str> {
        let mut pairs = self.0.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// Returns the value as a number, if it is one.
    pub(crate) fn number<T: std::str::FromStr>(self, name: &str) -> Option<T> {
        self.text(name)?.parse().ok()
    }

    /// Returns the value as a time in milliseconds.
    pub(crate) fn milliseconds(self, name: &str) -> Option<Duration> {
        self.number(name).map(|ms: u64| Duration::from_millis(ms.min(MAX_WAIT)))
    }
}

/// Returns the reaction to a request for one of these paths, or nothing.
pub(crate) fn answer(
    origin: Origin<'_>,
    path: &str,
    query: &str,
    head: &Head,
    body: &Body,
) -> Option<Reaction> {
    let query = Query(query);
    if let Some(count) = path.strip_prefix("/bytes/") {
        return Some(filler(count.parse().ok()).into());
    }
    if let Some(code) = path.strip_prefix("/status/") {
        return Some(status(code.parse().ok()).into());
    }
    let response = match path {
        "/big" => filler(query.number("bytes")),
        "/status" => status(query.number("code")),
        "/slow" => {
            let wait = query.milliseconds("ms")?;
            let body = json!({ "path": head.target, "waited_ms": wait.as_millis() });
            Response { wait, ..Response::json(&body) }
        }
        "/redirect" => {
            let to = percent_decoded(query.text("to")?);
            Response::bare(query.number("status").unwrap_or(302), "").with("location", to)
        }
        "/mirror" => {
            Response::of(200, head.header("content-type").unwrap_or("text/plain"), body.kept.clone())
        }
        "/echo" => Response::json(&with_body(echo(origin, head, body), body)),
        "/echo-auth" => echo_authorization(query, head),
        "/sse" => events(5, Duration::from_millis(100)),
        "/events" => {
            let pause = query.milliseconds("ms").unwrap_or(Duration::from_millis(20));
            events(query.number("n").unwrap_or(5), pause)
        }
        "/continue" => Response::json(&echo(origin, head, body)).after(100, Vec::new()),
        "/early-hints" => {
            let link = ("link".to_owned(), "</style.css>; rel=preload; as=style".to_owned());
            Response::json(&echo(origin, head, body)).after(103, vec![link])
        }
        "/hang" | "/stall" => return Some(Reaction::Hang),
        "/ws" | "/v1/ws" => return Some(Reaction::WebSocket { greeting: None, cut: None, hints: 0 }),
        "/ws/echo-auth" => {
            let authorization = head.header("authorization").unwrap_or_default().to_owned();
            let hints = query.number("hints").unwrap_or(0).min(MAX_HINTS);
            return Some(Reaction::WebSocket {
                greeting: Some(authorization),
                cut: query.number("cut"),
                hints,
            });
        }
        _ => return None,
    };
    Some(response.into())
}

/// Returns the answer to a request whose body is not read, which closes the connection: over HTTP/1.1 alone.
pub(crate) fn unread(head: &Head) -> Option<Response> {
    let (path, query) = head.target.split_once('?')?;
    (path == "/unread").then(|| status(Query(query).number("code")))
}

fn filler(length: Option<u64>) -> Response {
    Response::filler(length.unwrap_or(0).min(MAX_BYTES))
}

fn status(code: Option<u16>) -> Response {
    // Other codes end no exchange (RFC 9110 §15.2), or are invalid.
    let code = code.filter(|code| (200..600).contains(code)).unwrap_or(400);
    Response::of(code, "text/plain", "as you wish\n")
}

/// Returns server-sent events (HTML, "Server-sent events").
fn events(count: u64, pause: Duration) -> Response {
    let event = |number| format!("id: {number}\ndata: event {number}\n\n").into_bytes();
    Response::pieces("text/event-stream", (1..=count.min(MAX_EVENTS)).map(event).collect(), pause)
}

/// Decodes `%XX`, and keeps anything else. Line ends are dropped: they would end the header that contains the text.
fn percent_decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, tail @ ..] = rest {
        let pair = tail.get(..2).filter(|_| *first == b'%').and_then(|pair| std::str::from_utf8(pair).ok());
        match pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes.retain(|byte| !b"\r\n".contains(byte));
    String::from_utf8(bytes).unwrap_or_else(|error| latin1(error.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_decoding_keeps_what_is_no_escape() {
        assert_eq!(percent_decoded("http%3A%2f%2Fa/%zz%"), "http://a/%zz%");
        assert_eq!(percent_decoded("a%0d%0ab"), "ab");
    }
}
