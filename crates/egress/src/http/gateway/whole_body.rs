//! Reads whole request bodies into memory, within the limit of [`ReservedMemory`].

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::refused::refusal;
use crate::http::answer::Answer;
use crate::http::head::BodyLength;
use crate::http::incoming::STALLED;
use crate::http::problem::{REQUEST_TIMEOUT, Reply};
use crate::http::request::Request;
use crate::http::reserved_memory::{NO_ROOM, ReservedMemory};

/// What a body is told that is read whole, and so goes on with a length.
const TRAILERS: &str =
    "The trailers of a body that is read whole are not taken; send these fields in the request's head";

/// A body that was read to its end.
pub(super) struct WholeBody {
    pub(super) octets: Bytes,
    /// To be kept for as long as the octets are.
    pub(super) reserved: ReservedMemory,
}

/// The reply to a body for which there is no memory.
pub(super) fn no_room() -> Reply {
    refusal(429, "http_framing", NO_ROOM)
}

/// The reply to a body above its limit.
fn too_large() -> Reply {
    refusal(413, "http_framing", "Request body too large")
}

/// The reply to a body that does not come whole, or is malformed.
fn broke_off(error: &io::Error) -> Reply {
    match error.kind() {
        io::ErrorKind::TimedOut => {
            late(&format!("Nothing more of the request body came for {} s", STALLED.as_secs()))
        }
        _ => refusal(400, "http_framing", "The request body broke off"),
    }
}

fn late(why: &str) -> Reply {
    refusal(REQUEST_TIMEOUT, "http_framing", why)
}

/// Whether a body declares that it is above the limit.
fn declares_too_much(length: BodyLength, limit: usize) -> bool {
    matches!(length, BodyLength::Sized(size) if usize::try_from(size).map_or(true, |size| size > limit))
}

/// Reads the whole body, after an interim 100 to a client that expects one. Returns the reply to send in its place if the body is larger
/// than `limit` octets, there is no memory for it, it has trailers, or it does not come whole.
pub(super) async fn read_whole(
    request: &mut Request<'_>,
    answer: &mut Answer<'_>,
    limit: usize,
) -> Result<WholeBody, Reply> {
    read(request, answer, limit).await.unwrap_or_else(|error| Err(broke_off(&error)))
}

/// As [`read_whole`], of a body that must have come within a time.
pub(super) async fn read_whole_within(
    request: &mut Request<'_>,
    answer: &mut Answer<'_>,
    limit: usize,
    within: Duration,
) -> Result<WholeBody, Reply> {
    let is_late =
        |_| Err(late(&format!("The request body did not come whole within {} s", within.as_secs())));
    tokio::time::timeout(within, read_whole(request, answer, limit)).await.unwrap_or_else(is_late)
}

async fn read(
    request: &mut Request<'_>,
    answer: &mut Answer<'_>,
    limit: usize,
) -> io::Result<Result<WholeBody, Reply>> {
    let Request { head, body } = request;
    if declares_too_much(head.body, limit) {
        return Ok(Err(too_large()));
    }
    let Some(mut reserved) = ReservedMemory::for_body(head.body, limit) else { return Ok(Err(no_room())) };
    if head.waits_to_go_on() {
        answer.go_on().await?;
    }
    let mut octets = BytesMut::new();
    while let Some(piece) = body.next().await? {
        if octets.len() + piece.len() > limit {
            return Ok(Err(too_large()));
        }
        if reserved.grow_to(octets.len() + piece.len()).is_none() {
            return Ok(Err(no_room()));
        }
        octets.extend_from_slice(&piece);
    }
    if !body.trailers().await?.is_empty() {
        return Ok(Err(refusal(400, "http_framing", TRAILERS)));
    }
    Ok(Ok(WholeBody { octets: octets.freeze(), reserved }))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;
    use tokio::task::LocalSet;

    use super::*;
    use crate::fixture::{gate_for, records_in};
    use crate::http::request::Via;
    use crate::http::serve1::serve_requests;
    use crate::http::stream::AgentStream;

    #[tokio::test]
    async fn a_request_to_a_model_that_breaks_off_or_has_trailers_is_recorded() {
        for (framing, body, why) in [
            ("Content-Length: 9", "{}", "broke off"),
            ("Transfer-Encoding: chunked", "2\r\n{}\r\n", "broke off"),
            ("Transfer-Encoding: chunked", "2\r\n{}\r\n0\r\nX-Sum: 1\r\n\r\n", TRAILERS),
        ] {
            let mut audit = tempfile::tempfile().unwrap();
            let gate = gate_for("providers = [\"anthropic\"]", Vec::new(), Some(audit.try_clone().unwrap()));
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let head = format!("POST /llm/v1/messages HTTP/1.1\r\nHost: gate\r\n{framing}\r\n\r\n");
            let served =
                serve_requests(Rc::clone(&gate), Via::Gateway, AgentStream::Unix(ours), BytesMut::new());
            let asks = async {
                theirs.write_all(head.as_bytes()).await.unwrap();
                theirs.write_all(body.as_bytes()).await.unwrap();
                theirs.shutdown().await.unwrap();
                let mut answer = String::new();
                theirs.read_to_string(&mut answer).await.unwrap();
                answer
            };
            let (answer, _) = LocalSet::new().run_until(async { tokio::join!(asks, served) }).await;
            assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains(why), "{framing}: {answer}");
            gate.close().unwrap();
            let records = records_in(&mut audit);
            let told = records.lines().any(|line| line.contains("/llm/v1/messages") && line.contains("400"));
            assert!(told, "{framing}: {records}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stands_still_is_late_and_has_not_broken_off() {
        let gate = gate_for("providers = [\"anthropic\"]", Vec::new(), None);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let head = "POST /llm/v1/messages HTTP/1.1\r\nHost: gate\r\nContent-Length: 9\r\n\r\n{";
        let served = serve_requests(gate, Via::Gateway, AgentStream::Unix(ours), head.as_bytes().into());
        LocalSet::new().run_until(served).await.unwrap();
        let mut answer = String::new();
        theirs.read_to_string(&mut answer).await.unwrap();
        let why = "Nothing more of the request body came for 120 s";
        assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains(why), "{answer}");
    }

    #[tokio::test]
    async fn a_body_that_declares_too_much_is_refused_before_it_is_sent() {
        let gate = gate_for("providers = [\"anthropic\"]", Vec::new(), None);
        let ask = async || {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let stream = AgentStream::Unix(ours);
            tokio::task::spawn_local(serve_requests(Rc::clone(&gate), Via::Gateway, stream, BytesMut::new()));
            let head = "POST /llm/v1/messages HTTP/1.1\r\nHost: gate\r\nContent-Length: 40000000\r\n\
                Expect: 100-continue\r\n\r\n";
            theirs.write_all(head.as_bytes()).await.unwrap();
            let mut begun = [0; 12];
            theirs.read_exact(&mut begun).await.unwrap();
            (theirs, String::from_utf8_lossy(&begun).into_owned())
        };
        let asked = async {
            // As many as would fill the memory, if they were given any.
            let mut held = Vec::new();
            for _ in 0..3 {
                let (kept, begun) = ask().await;
                assert_eq!(begun, "HTTP/1.1 413");
                held.push(kept);
            }
        };
        LocalSet::new().run_until(asked).await;
    }
}
