//! That the agent waits for no answer any more, told apart from an upstream that fails: what a model does meanwhile is charged.

use std::io;

/// The agent wants no answer any more.
#[derive(Debug, thiserror::Error)]
#[error("the agent gave the request up ({why})")]
pub(super) struct GivenUp {
    why: String,
}

impl GivenUp {
    pub(super) fn because(why: &impl ToString) -> io::Error {
        io::Error::new(io::ErrorKind::BrokenPipe, Self { why: why.to_string() })
    }

    /// Whether that is what an error means, and not that the upstream failed.
    pub(super) fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}
