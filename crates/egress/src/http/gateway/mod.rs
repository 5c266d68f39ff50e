//! The gateway on port 8080, for agents that name their target and provider in header fields. Its paths, headers and statuses are
//! those of the existing sidecar that clients know (S0, S1); it enforces what every plane enforces.
//!
//! A request with an absolute target is answered as on port 8081, so that either port may be named as the proxy.

mod configure;
mod control_headers;
mod llm;
mod proxy;
mod refused;
mod template;
mod web_page;
mod whole_body;

use std::io;
use std::rc::Rc;

use serde_json::json;

use super::answer::Answer;
use super::problem::{After, Reply};
use super::request::Request;
use crate::gate::Gate;
use refused::{NO_GUARD, after_unread, recorded, refusal};
pub(super) use web_page::refuse_web_page;

/// The longest query of a question about earlier runs, in octets.
const LONGEST_QUERY: usize = 1024;

/// Answers a request for one of the gateway's own paths.
pub(super) async fn route(gate: &Rc<Gate>, request: Request<'_>, answer: Answer<'_>) -> io::Result<After> {
    let target = request.head.target.clone();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    match (request.head.method.as_str(), path) {
        ("GET" | "HEAD", "/health") => answer.reply(health(gate), after_unread(&request)).await,
        (_, "/proxy") => proxy::proxy(gate, request, answer).await,
        ("POST", "/configure") => configure::configure(gate, request, answer).await,
        ("GET" | "HEAD", "/run-history") => {
            let reply = recorded(gate, &request.head, run_history(gate, query).await);
            answer.reply(reply, after_unread(&request)).await
        }
        (_, path) if path == "/llm" || path.starts_with("/llm/") => llm::llm(gate, request, answer).await,
        _ => {
            let why = "the gateway has /proxy, /llm/*, /run-history, /configure and /health";
            let reply = recorded(gate, &request.head, refusal(404, NO_GUARD, why));
            answer.reply(reply, after_unread(&request)).await
        }
    }
}

/// Answers 200 while requests can be served and recorded, as the existing sidecar does. S1
fn health(gate: &Gate) -> Reply {
    match gate.audit().borrow_mut().is_broken() {
        false => Reply::json(200, &json!({"status": "ok"})),
        true => Reply::json(503, &json!({"status": "degraded", "audit": "cannot be written"})),
    }
}

/// Asks the platform for earlier runs.
async fn run_history(gate: &Gate, query: &str) -> Reply {
    match query.len() <= LONGEST_QUERY {
        false => refusal(400, "target_syntax", "the query is too long"),
        true => match gate.credentials().run_history(query).await {
            Ok((status, body)) => {
                // No platform should put a credential here; one that does is masked.
                let needles = gate.credentials().needles().now();
                let body = needles.scrub_text(&body).map_or(body, |(masked, _)| masked);
                let fields = super::Fields::from_iter([("content-type", &b"application/json"[..])]);
                Reply::new(status, fields, body)
            }
            Err(why) => refusal(502, NO_GUARD, &format!("earlier runs cannot be told: {why}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use serde_json::Value;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;
    use tokio::task::LocalSet;

    use super::*;
    use crate::fixture::gate_for;
    use crate::http::request::Via;
    use crate::http::serve1::serve_requests;
    use crate::http::stream::AgentStream;

    /// Sends a request with this head to the gateway, and returns the head of the answer and its document.
    async fn asked(policy: &str, head: &str) -> (String, Value) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(format!("{head}Host: gate\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
        let gate = gate_for(policy, Vec::new(), None);
        let served = serve_requests(gate, Via::Gateway, AgentStream::Unix(ours), BytesMut::new());
        let mut answer = String::new();
        let reads = theirs.read_to_string(&mut answer);
        let (read, _) = LocalSet::new().run_until(async { tokio::join!(reads, served) }).await;
        read.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), serde_json::from_str(body).unwrap())
    }

    #[tokio::test]
    async fn a_refusal_of_the_gateways_own_names_its_guard_as_a_denial_does() {
        let long = format!("GET /run-history?{} HTTP/1.1\r\n", "a".repeat(LONGEST_QUERY + 1));
        let models = "providers = [\"anthropic\", \"openai\"]";
        for (policy, head, status, guard) in [
            ("", "GET /proxy HTTP/1.1\r\n", 400, "target_syntax"),
            ("", "GET /proxy HTTP/1.1\r\nX-Provider: One\r\nX-Target: http://a/\r\n", 400, "target_syntax"),
            ("", "GET /other HTTP/1.1\r\n", 404, "none"),
            ("", "GET /run-history HTTP/1.1\r\n", 502, "none"),
            ("", long.as_str(), 400, "target_syntax"),
            ("", "POST /llm/v1/messages HTTP/1.1\r\n", 503, "provider_not_declared"),
            (models, "POST /llm/v1/models HTTP/1.1\r\n", 400, "target_syntax"),
            (models, "POST /llm/v1/messages HTTP/1.1\r\nContent-Length: 40000000\r\n", 413, "http_framing"),
            ("", "POST /configure HTTP/1.1\r\n", 403, "credential_unavailable"),
        ] {
            let (answered, document) = asked(policy, head).await;
            assert!(answered.starts_with(&format!("HTTP/1.1 {status} ")), "{head}{answered}");
            let denied = answered.lines().find_map(|line| line.strip_prefix("x-lockgate-denied: "));
            assert_eq!(denied, Some(guard).filter(|guard| *guard != "none"), "{head}{answered}");
            assert_eq!(document["guard"], guard, "{head}{document}");
            assert_eq!(document["error"], document["detail"], "{head}{document}");
            assert!(document["title"].as_str().is_some_and(|title| title.contains(' ')), "{head}{document}");
        }
    }

    #[tokio::test]
    async fn without_a_platform_nothing_is_said_of_its_answer() {
        let reply = run_history(&gate_for("", Vec::new(), None), "").await;
        let body = String::from_utf8(reply.body).unwrap();
        assert_eq!(reply.status, 502);
        assert!(body.contains("earlier runs cannot be told: this sidecar has no platform to ask"), "{body}");
    }
}
