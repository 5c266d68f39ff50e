//! Denials and failures as the agent reads them: `application/problem+json` (RFC 9457) with the guard's name, the rule, and what
//! would allow the request.

use std::io;

use policy::{Denial, Guard, Hint, RunId};
use serde::Serialize;

use super::fields::Fields;
use super::hung_up::HungUp;
use super::response::Unusable;
use crate::cause::cause;

#[derive(Serialize)]
struct Problem<'a> {
    error: ErrorMember<'a>,
    title: &'a str,
    status: u16,
    detail: &'a str,
    guard: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    target: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    run: &'a str,
}

/// What clients show of a refused request.
#[derive(Serialize)]
#[serde(untagged)]
enum ErrorMember<'a> {
    /// For clients of the existing sidecar.
    Text(&'a str),
    /// For the libraries of model APIs, which show nothing but the message of an object.
    OfModelApi { r#type: &'a str, code: &'a str, message: String },
}

/// The media type of a problem document (RFC 9457 §3).
const PROBLEM: &str = "application/problem+json";

/// A complete response of the sidecar's own.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) fields: Fields,
    pub(crate) body: Vec<u8>,
    /// What is told where no document is read.
    pub(crate) detail: String,
}

/// Whether the connection goes on after the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    KeepAlive,
    Close,
}

/// Returns the answer to a request that a guard refused: a denied one, or one for a name that does not resolve. S0.38
pub(crate) fn denied(denial: &Denial, target: &str, run: &RunId, status: u16) -> Reply {
    let is_budget = denial.guard == Guard::Budget;
    let problem = Problem {
        error: if is_budget { of_model_api(denial) } else { ErrorMember::Text(&denial.reason) },
        title: if denial.guard.is_failure() {
            "The name does not resolve"
        } else {
            "Denied by the sandbox's policy"
        },
        status,
        detail: &denial.reason,
        guard: denial.guard.code(),
        rule: denial.rule.as_deref(),
        target,
        hint: denial.hint.as_ref().map(ToString::to_string),
        run: run.as_str(),
    };
    let mut reply = Reply::problem(status, &problem, with_hint(denial));
    if !denial.guard.is_failure() {
        reply.fields.push("x-lockgate-denied", denial.guard.code().as_bytes());
    }
    // RFC 9110 §10.2.3
    if let Some(Hint::Wait(seconds)) = denial.hint {
        reply.fields.push("retry-after", seconds.to_string().as_bytes());
    } else if is_budget {
        // A budget that has ended stays so. The libraries of Anthropic and OpenAI ask twice more without this.
        reply.fields.push("x-should-retry", b"false");
    }
    reply
}

fn of_model_api(denial: &Denial) -> ErrorMember<'_> {
    ErrorMember::OfModelApi {
        r#type: denial.guard.code(),
        code: denial.guard.code(),
        message: with_hint(denial),
    }
}

fn with_hint(denial: &Denial) -> String {
    let hint = denial.hint.iter().map(|hint| format!("; {hint}"));
    std::iter::once(denial.reason.clone()).chain(hint).collect()
}

/// Returns the answer to a request that was allowed and failed.
pub(crate) fn failed(status: u16, title: &str, detail: &str, target: &str, run: &RunId) -> Reply {
    let (error, guard, run) = (ErrorMember::Text(detail), "none", run.as_str());
    let problem = Problem { error, title, status, detail, guard, rule: None, target, hint: None, run };
    Reply::problem(status, &problem, detail.into())
}

/// The status of a request for a protocol that is not spoken here (RFC 9110 §15.5.22).
pub(super) const UPGRADE_REQUIRED: u16 = 426;
/// The status of a request that does not come in time (RFC 9110 §15.5.9).
pub(super) const REQUEST_TIMEOUT: u16 = 408;
/// The status of an upstream that is too slow (RFC 9110 §15.6.5).
pub(crate) const TOO_SLOW: u16 = 504;

/// Returns the answer to a request whose upstream cannot be reached; with the status `late` if the upstream was too slow.
pub(crate) fn unreachable(error: &io::Error, late: u16, target: &str, run: &RunId) -> Reply {
    let (status, title) = match error.kind() {
        io::ErrorKind::TimedOut => (late, "The upstream did not answer in time"),
        _ if HungUp::is(error) => (502, "The upstream hung up"),
        _ if Unusable::is(error) => (502, "The upstream's answer cannot be used"),
        _ => (502, "The upstream cannot be reached"),
    };
    failed(status, title, &cause(error), target, run)
}

impl Reply {
    /// Creates a reply that has no more to tell than what its status means, where its body is not read.
    pub(crate) fn new(status: u16, fields: Fields, body: Vec<u8>) -> Self {
        Self { status, fields, body, detail: phrase(status).into() }
    }

    /// Creates a reply with a JSON document.
    pub(crate) fn json(status: u16, document: &impl Serialize) -> Self {
        let fields = Fields::from_iter([("content-type", &b"application/json"[..])]);
        Self::new(status, fields, serde_json::to_vec(document).unwrap_or_default())
    }

    /// Creates a reply with a problem document.
    pub(crate) fn problem(status: u16, document: &impl Serialize, detail: String) -> Self {
        let mut reply = Self { detail, ..Self::json(status, document) };
        reply.fields.set("content-type", PROBLEM.as_bytes());
        reply.body.push(b'\n'); // programs print it as it is
        reply
    }

    /// Writes it as HTTP/1.
    pub(crate) fn to_version_1(&self, after: After) -> Vec<u8> {
        let mut out = self.head_1(after);
        out.extend(&self.body);
        out
    }

    /// Writes its head alone, as the answer to HEAD.
    pub(crate) fn head_1(&self, after: After) -> Vec<u8> {
        let mut out = format!("HTTP/1.1 {} {}\r\n", self.status, phrase(self.status)).into_bytes();
        self.fields.write(&mut out);
        out.extend(format!("content-length: {}\r\n", self.body.len()).bytes());
        if self.status == UPGRADE_REQUIRED {
            // What is asked of the agent is no other protocol than the connection has, without a WebSocket (RFC 9110 §7.8).
            out.extend(b"upgrade: HTTP/1.1\r\nconnection: upgrade\r\n");
        }
        if after == After::Close {
            out.extend(b"connection: close\r\n");
        }
        out.extend(b"\r\n");
        out
    }
}

fn phrase(status: u16) -> &'static str {
    http::StatusCode::from_u16(status).ok().and_then(|s| s.canonical_reason()).unwrap_or("Denied")
}

#[cfg(test)]
mod tests {
    use policy::Guard;

    use super::*;
    use crate::http::response::unusable;

    #[test]
    fn a_name_that_does_not_resolve_is_not_called_denied() {
        let run = RunId::from_random([0; 12]);
        for (guard, is_denied) in [(Guard::NoAddress, false), (Guard::HostNotAllowed, true)] {
            let reply = denied(&Denial::new(guard, "why"), "target", &run, 502);
            let body = String::from_utf8(reply.body.clone()).unwrap();
            assert_eq!(body.contains("Denied by the sandbox's policy"), is_denied, "{body}");
            assert_eq!(reply.fields.text("x-lockgate-denied").is_some(), is_denied, "{body}");
            assert!(body.contains(guard.code()), "{body}");
        }
    }

    #[test]
    fn a_budget_that_has_ended_is_told_in_the_form_of_model_apis_and_not_asked_for_again() {
        let run = RunId::from_random([0; 12]);
        let told = |guard: Guard, hint: Hint| {
            let reply = denied(&Denial::new(guard, "why").with_hint(hint), "target", &run, 429);
            let body: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
            (body["error"].clone(), reply.fields.text("x-should-retry").map(str::to_owned))
        };
        let in_form = |message: &str| serde_json::json!({"type": "budget_exhausted", "code": "budget_exhausted", "message": message});
        let last = told(Guard::Budget, "begin another run".into());
        assert_eq!(last, (in_form("why; begin another run"), Some("false".into())));
        assert_eq!(told(Guard::Budget, Hint::Wait(3)), (in_form("why; ask again in 3 s"), None));
        assert_eq!(told(Guard::RateLimit, "later".into()), ("why".into(), None));
    }

    #[test]
    fn whoever_is_to_ask_over_http_is_told_the_protocol() {
        let run = RunId::from_random([0; 12]);
        let head = |status: u16, after: After| {
            let denial = Denial::new(Guard::Budget, "why").with_hint(Hint::OverHttp);
            String::from_utf8(denied(&denial, "target", &run, status).head_1(after)).unwrap()
        };
        let told = head(UPGRADE_REQUIRED, After::Close);
        assert!(told.starts_with("HTTP/1.1 426 Upgrade Required\r\n"), "{told}");
        assert!(
            told.contains("upgrade: HTTP/1.1\r\nconnection: upgrade\r\nconnection: close\r\n\r\n"),
            "{told}"
        );
        assert!(!head(429, After::KeepAlive).contains("upgrade"));
    }

    #[test]
    fn an_upstream_that_hung_up_is_told_from_one_that_cannot_be_reached() {
        use io::ErrorKind::{ConnectionRefused, ConnectionReset, TimedOut, UnexpectedEof};
        let run = RunId::from_random([0; 12]);
        let told =
            |error: &io::Error| String::from_utf8(unreachable(error, 504, "target", &run).body).unwrap();
        for (kind, title) in [
            (UnexpectedEof, "The upstream hung up"),
            (ConnectionReset, "The upstream hung up"),
            (TimedOut, "The upstream did not answer in time"),
            (ConnectionRefused, "The upstream cannot be reached"),
        ] {
            let body = told(&HungUp::told(kind.into()));
            assert!(body.contains(title), "{kind}: {body}");
            assert_eq!(body.contains("may have acted"), title.contains("hung up"), "{kind}: {body}");
        }
        assert!(told(&ConnectionReset.into()).contains("The upstream cannot be reached"));
        let unverified = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let unverified = io::Error::new(io::ErrorKind::InvalidData, unverified);
        assert!(told(&unverified).contains("The upstream cannot be reached"));
        // A proxy whose certificate does not verify is told by text.
        let proxy = io::Error::new(io::ErrorKind::InvalidData, "proxy one cannot be spoken to over TLS: x");
        assert!(told(&proxy).contains("The upstream cannot be reached"));
        assert!(told(&unusable("the length of the response is ambiguous")).contains("cannot be used"));
    }

    #[test]
    fn whoever_may_ask_again_is_told_when() {
        let run = RunId::from_random([0; 12]);
        let told = |hint: Hint| {
            let denial = Denial::new(Guard::RateLimit, "too often").with_hint(hint);
            denied(&denial, "target", &run, 429).fields.text("retry-after").map(str::to_owned)
        };
        assert_eq!(told(Hint::Wait(3)).as_deref(), Some("3"));
        assert_eq!(told("later".into()), None);
    }
}
