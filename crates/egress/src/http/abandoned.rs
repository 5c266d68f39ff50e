//! The error that says that the agent abandoned its request. It is told apart from a failure of the upstream, because what a model does
//! for an abandoned request is charged.

use std::io;

/// The agent abandoned its request.
#[derive(Debug, thiserror::Error)]
#[error("the agent gave the request up ({why})")]
pub(super) struct Abandoned {
    why: String,
}

impl Abandoned {
    pub(super) fn because(why: &impl ToString) -> io::Error {
        io::Error::new(io::ErrorKind::BrokenPipe, Self { why: why.to_string() })
    }

    /// Whether an error is this one.
    pub(super) fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}
