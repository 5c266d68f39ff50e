//! Answers of the sidecar's own in place of an upstream's: denials, and an upstream that cannot be reached.

use std::io;
use std::rc::Rc;

use policy::{Denial, Guard, Policy, Target};

use super::answer::Answer;
use super::head::BodyLength;
use super::problem::{self, After};
use super::request::Request;
use crate::exchange::{Exchange, Ready};
use crate::gate::Gate;

/// Answers a denied request, on the explicit plane or over a connection whose TLS was terminated.
pub(super) async fn deny(
    gate: &Rc<Gate>,
    request: &Request<'_>,
    answer: Answer<'_>,
    denial: &Denial,
    target: &str,
) -> io::Result<After> {
    let reply = problem::denied(denial, target, gate.run(), status_of(denial, gate.policy()));
    // What follows a request that cannot be read may not be what it seems to be.
    let after = match denial.guard {
        Guard::Framing | Guard::Syntax => After::Close,
        _ => after_unread(request),
    };
    answer.reply(reply, after).await
}

/// Returns the status of the answer to a denied request.
pub(super) fn status_of(denial: &Denial, policy: &Policy) -> u16 {
    match denial.guard {
        Guard::NoAddress | Guard::Credential => 502,
        Guard::Framing | Guard::Syntax | Guard::Unresolved => 400,
        Guard::Budget | Guard::RateLimit => 429,
        _ => policy.denied_status(),
    }
}

/// Returns whether the connection can be kept after an answer that did not read the request's body, which would be taken for the next
/// request.
pub(super) fn after_unread(request: &Request<'_>) -> After {
    if request.head.body == BodyLength::None { After::KeepAlive } else { After::Close }
}

/// Answers that the upstream cannot be reached; with the status `late` if it was too slow.
pub(super) async fn unreachable(
    gate: &Gate,
    mut exchange: Exchange<Ready>,
    target: &Target,
    error: &io::Error,
    answer: Answer<'_>,
    late: u16,
) -> io::Result<After> {
    exchange.record().upstream_failed(error);
    let reply = problem::unreachable(error, late, &target.to_string(), gate.run());
    answer.reply(reply, After::Close).await
}
