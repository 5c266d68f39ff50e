//! What the gateway answers in place of an upstream's response.

use std::io;
use std::rc::Rc;

use policy::Denial;
use serde::Serialize;

use crate::audit;
use crate::gate::Gate;
use crate::http::answer::Answer;
use crate::http::head::RequestHead;
use crate::http::max_forwards::Ended;
use crate::http::problem::{After, Reply};
pub(super) use crate::http::refuse::after_unread;
use crate::http::refuse::deny;
use crate::http::request::Request;

/// Why a request to the gateway is not forwarded. Its record has been written by then.
pub(super) enum Refused {
    /// A guard denied it. `shown` is the target as the agent wrote it, for the problem document.
    Denied { denial: Denial, shown: String },
    /// The gateway answers by itself.
    Answered { reply: Reply, after: After },
}

impl Refused {
    pub(super) fn denied(denial: Denial, shown: &str) -> Self {
        Self::Denied { denial, shown: shown.to_owned() }
    }

    /// The end of a request that is not sent on.
    pub(super) fn ended(ended: Ended, request: &Request<'_>, shown: &str) -> Self {
        match ended {
            Ended::Denied(denial) => Self::denied(denial, shown),
            Ended::Answered(reply) => Self::Answered { reply, after: after_unread(request) },
        }
    }

    /// Tells the agent.
    ///
    /// # Errors
    /// The agent's connection broke.
    pub(super) async fn answer(
        self,
        gate: &Rc<Gate>,
        request: &Request<'_>,
        answer: Answer<'_>,
    ) -> io::Result<After> {
        match self {
            Self::Denied { denial, shown } => deny(gate, request, answer, &denial, &shown).await,
            Self::Answered { reply, after } => answer.reply(reply, after).await,
        }
    }
}

/// What stands in the place of a guard's code where none refused.
pub(super) const NO_GUARD: &str = "none";

/// The body of a refusal of the gateway's own. `error` is the text that existing clients know.
#[derive(Serialize)]
struct Refusal<'a> {
    error: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    guard: &'a str,
}

/// Builds the reply of a refusal of the gateway's own. `guard` is a guard's code, or [`NO_GUARD`].
pub(super) fn refusal(status: u16, guard: &str, why: &str) -> Reply {
    let title = match status {
        400..500 => "The gateway does not take this request",
        _ => "The gateway cannot do what is asked",
    };
    let mut reply =
        Reply::problem(status, &Refusal { error: why, title, status, detail: why, guard }, why.into());
    if guard != NO_GUARD {
        reply.fields.push("x-lockgate-denied", guard.as_bytes());
    }
    reply
}

/// Records that the gateway answers a request by itself, and returns its reply.
pub(super) fn recorded(gate: &Rc<Gate>, head: &RequestHead, reply: Reply) -> Reply {
    audit::record_own_answer(gate, head.method.as_str(), &head.target, reply.status);
    reply
}
