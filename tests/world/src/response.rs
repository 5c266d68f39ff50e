//! A server's reaction to a request, independent of the protocol version. The routes decide on it, and HTTP/1.1 and HTTP/2 write it.

use std::time::Duration;

use serde_json::Value;

use crate::wire::Headers;

/// The reaction to a request.
#[derive(Debug)]
pub(crate) enum Reaction {
    /// An answer.
    Answer(Response),
    /// No answer, for as long as the peer waits.
    Hang,
    /// The connection becomes a WebSocket that repeats each frame, after this many early hints and a greeting frame.
    WebSocket { greeting: Option<String>, cut: Option<usize>, hints: usize },
}

/// An answer to a request.
#[derive(Debug)]
pub(crate) struct Response {
    /// An answer before this one (RFC 9110 §15.2).
    pub(crate) interim: Option<Interim>,
    /// How long it takes until this answer begins.
    pub(crate) wait: Duration,
    pub(crate) status: u16,
    /// Headers besides those that frame the content.
    pub(crate) headers: Headers,
    pub(crate) content: Content,
}

/// A status from 100 to 199.
#[derive(Debug)]
pub(crate) struct Interim {
    pub(crate) status: u16,
    pub(crate) headers: Headers,
}

/// The content of an answer.
#[derive(Debug)]
pub(crate) enum Content {
    /// All at once, with its length announced.
    Whole(Vec<u8>),
    /// This many octets `x`, as fast as the peer accepts them.
    Filler(u64),
    /// Piece by piece with a pause after each, without an announced length, and trailers (RFC 9110 §6.5).
    Pieces { pieces: Vec<Vec<u8>>, pause: Duration, trailers: Headers },
}

impl From<Response> for Reaction {
    fn from(response: Response) -> Self {
        Self::Answer(response)
    }
}

impl Response {
    fn new(status: u16, content: Content) -> Self {
        Self { interim: None, wait: Duration::ZERO, status, headers: Headers::new(), content }
    }

    /// Returns a body without a type.
    pub(crate) fn bare(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self::new(status, Content::Whole(body.into()))
    }

    /// Returns a body with a type.
    pub(crate) fn of(status: u16, kind: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::bare(status, body).with("content-type", kind)
    }

    /// Returns a JSON body.
    pub(crate) fn json(value: &Value) -> Self {
        Self::of(200, "application/json", value.to_string())
    }

    /// Returns pieces with a type.
    pub(crate) fn pieces(kind: &str, pieces: Vec<Vec<u8>>, pause: Duration) -> Self {
        Self::new(200, Content::Pieces { pieces, pause, trailers: Headers::new() }).with("content-type", kind)
    }

    /// Returns this many octets.
    pub(crate) fn filler(length: u64) -> Self {
        Self::new(200, Content::Filler(length)).with("content-type", "application/octet-stream")
    }

    /// Returns a plain 404.
    pub(crate) fn not_found() -> Self {
        Self::of(404, "text/plain", "not found\n")
    }

    /// Whether this status has content (RFC 9110 §15.3.5, §15.4.5) if the method has (§9.3.2).
    pub(crate) fn has_content(&self, method: &str) -> bool {
        method != "HEAD" && ![204, 304].contains(&self.status)
    }

    /// Adds a header.
    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Adds an interim answer with this status and these headers.
    pub(crate) fn after(mut self, status: u16, headers: Headers) -> Self {
        self.interim = Some(Interim { status, headers });
        self
    }
}
