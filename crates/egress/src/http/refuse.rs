//! What an agent is answered where nothing of an upstream's can be.

use std::io;
use std::rc::Rc;

use policy::{Denial, Guard, Target};

use super::answer::Answer;
use super::head::BodyLength;
use super::problem::{self, After};
use super::request::Request;
use crate::exchange::{Exchange, Ready};
use crate::gate::Gate;

/// Refuses a request on the explicit plane, or over a connection that was opened.
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
    // A body that was not read would be taken for the next request.
    let after = if request.head.body == BodyLength::None { After::KeepAlive } else { After::Close };
    answer.reply(problem::denied(denial, target, gate.run(), status), after).await
}

/// Answers that the upstream cannot be reached.
pub(super) async fn unreachable(
    gate: &Gate,
    mut exchange: Exchange<Ready>,
    target: &Target,
    error: &io::Error,
    answer: Answer<'_>,
) -> io::Result<After> {
    let (status, title) = match error.kind() {
        io::ErrorKind::TimedOut => (504, "The upstream did not answer in time"),
        _ => (502, "The upstream cannot be reached"),
    };
    exchange.record().fail(&error.to_string());
    let reply = problem::failed(status, title, &error.to_string(), &target.to_string(), gate.run());
    answer.reply(reply, After::Close).await
}
