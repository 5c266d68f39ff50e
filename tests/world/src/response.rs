//! What a server of the world does about a request, in the words of no protocol. It decides nothing, which is for the routes,
//! and writes nothing, which is for HTTP/1.1 and HTTP/2.

use std::time::Duration;

use serde_json::Value;

use crate::wire::Headers;

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Reaction {
    /// An answer.
    Answer(Response),
    /// Nothing, for as long as the peer waits.
    Hang,
    /// The connection becomes a WebSocket that repeats each frame, after so many early hints and this frame of its own.
    WebSocket { greeting: Option<String>, cut: Option<usize>, hints: usize },
}

/// An answer to a request.
#[derive(Debug)]
pub(crate) struct Response {
    /// An answer before this one (RFC 9110 §15.2).
    pub(crate) interim: Option<Interim>,
    /// How long it takes until this one begins.
    pub(crate) wait: Duration,
    pub(crate) status: u16,
    /// Headers beside those that frame the content.
    pub(crate) headers: Headers,
    pub(crate) content: Content,
}

/// A status from 100 to 199.
#[derive(Debug)]
pub(crate) struct Interim {
    pub(crate) status: u16,
    pub(crate) headers: Headers,
}

/// What an answer carries.
#[derive(Debug)]
pub(crate) enum Content {
    /// All at once, its length said before.
    Whole(Vec<u8>),
    /// This many octets `x`, as fast as the peer takes them.
    Filler(u64),
    /// Piece by piece with a pause after each, its length not said before, and trailers (RFC 9110 §6.5).
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

    /// A body that says nothing of its type.
    pub(crate) fn bare(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self::new(status, Content::Whole(body.into()))
    }

    /// A body of one type.
    pub(crate) fn of(status: u16, kind: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::bare(status, body).with("content-type", kind)
    }

    /// A JSON body.
    pub(crate) fn json(value: &Value) -> Self {
        Self::of(200, "application/json", value.to_string())
    }

    /// Pieces of one type.
    pub(crate) fn pieces(kind: &str, pieces: Vec<Vec<u8>>, pause: Duration) -> Self {
        Self::new(200, Content::Pieces { pieces, pause, trailers: Headers::new() }).with("content-type", kind)
    }

    /// This many octets.
    pub(crate) fn filler(length: u64) -> Self {
        Self::new(200, Content::Filler(length)).with("content-type", "application/octet-stream")
    }

    /// A plain answer that there is nothing here.
    pub(crate) fn not_found() -> Self {
        Self::of(404, "text/plain", "not found\n")
    }

    /// Whether this status comes with content (RFC 9110 §15.3.5, §15.4.5) where the method does (§9.3.2).
    pub(crate) fn has_content(&self, method: &str) -> bool {
        method != "HEAD" && ![204, 304].contains(&self.status)
    }

    /// With one more header.
    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// After another answer with this status and these headers.
    pub(crate) fn after(mut self, status: u16, headers: Headers) -> Self {
        self.interim = Some(Interim { status, headers });
        self
    }
}
