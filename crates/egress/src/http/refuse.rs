//! Answers of the sidecar's own in place of an upstream's: denials, and an upstream that cannot be reached.

use std::io;
use std::rc::Rc;

use policy::{Denial, Guard, Target};

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
    let status = match denial.guard {
        Guard::NoAddress | Guard::Credential => 502,
        Guard::Framing | Guard::Syntax | Guard::Unresolved => 400,
        Guard::Budget | Guard::RateLimit => 429,
        _ => gate.policy().denied_status(),
    };
    // An unread body would be taken for the next request.
    let after = if request.head.body == BodyLength::None { After::KeepAlive } else { After::Close };
    answer.reply(problem::denied(denial, target, gate.run(), status), after).await
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
    exchange.record().fail(&error.to_string());
    let reply = problem::unreachable(error, late, &target.to_string(), gate.run());
    answer.reply(reply, After::Close).await
}
