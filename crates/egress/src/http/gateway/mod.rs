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
use refused::{after_unread, recorded, refusal};
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
            let reply = recorded(gate, &request.head, refusal(404, "not_found", why));
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
            Err(why) => refusal(502, "platform", &format!("earlier runs cannot be told: {why}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::gate_for;

    #[tokio::test]
    async fn without_a_platform_nothing_is_said_of_its_answer() {
        let reply = run_history(&gate_for("", Vec::new(), None), "").await;
        let body = String::from_utf8(reply.body).unwrap();
        assert_eq!(reply.status, 502);
        assert!(body.contains("earlier runs cannot be told: this sidecar has no platform to ask"), "{body}");
    }
}
