//! Denials and failures as the agent reads them: `application/problem+json` (RFC 9457) with the guard's name, the rule,
//! and what would allow it.

use policy::{Denial, RunId};
use serde::Serialize;

#[derive(Serialize)]
struct Problem<'a> {
    title: &'a str,
    status: u16,
    detail: &'a str,
    guard: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    target: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
    run: &'a str,
}

/// Whether the connection goes on after the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    KeepAlive,
    Close,
}

/// The whole response to a denied request. S0.38
pub(crate) fn denied(denial: &Denial, target: &str, run: &RunId, status: u16, after: After) -> Vec<u8> {
    let problem = Problem {
        title: "Denied by the sandbox's policy",
        status,
        detail: &denial.reason,
        guard: denial.guard.code(),
        rule: denial.rule.as_deref(),
        target,
        hint: denial.hint.as_deref(),
        run: run.as_str(),
    };
    response(&problem, Some(denial.guard.code()), after)
}

/// The whole response to a request that was allowed and failed, or that could not be read.
pub(crate) fn failed(status: u16, title: &str, detail: &str, target: &str, run: &RunId) -> Vec<u8> {
    let problem =
        Problem { title, status, detail, guard: "none", rule: None, target, hint: None, run: run.as_str() };
    response(&problem, None, After::Close)
}

fn response(problem: &Problem<'_>, code: Option<&str>, after: After) -> Vec<u8> {
    let body = serde_json::to_vec(problem).unwrap_or_default();
    let phrase = match problem.status {
        400 => "Bad Request",
        403 => "Forbidden",
        413 => "Content Too Large",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        504 => "Gateway Timeout",
        _ => "Denied",
    };
    let code = code.map(|code| format!("X-Lockgate-Denied: {code}\r\n")).unwrap_or_default();
    let connection = if after == After::Close { "Connection: close\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {} {phrase}\r\nContent-Type: application/problem+json\r\nContent-Length: {}\r\n{code}{connection}\r\n",
        problem.status,
        body.len(),
    );
    [head.into_bytes(), body].concat()
}
