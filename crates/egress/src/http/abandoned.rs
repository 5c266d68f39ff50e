//! The error that says that the agent abandoned its request. It is told apart from a failure of the upstream, because what a model does
//! for an abandoned request is charged.

use std::io;

/// The agent abandoned its request.
#[derive(Debug, thiserror::Error)]
pub(super) enum Abandoned {
    #[error("the agent gave the request up ({0})")]
    GivenUp(String),
    /// The sidecar ended the connection, for what else came by it.
    #[error("the sidecar ended the agent's connection ({0})")]
    Ended(String),
}

impl Abandoned {
    pub(super) fn because(why: &impl ToString) -> io::Error {
        io::Error::new(io::ErrorKind::BrokenPipe, Self::GivenUp(why.to_string()))
    }

    /// The sidecar ended the connection that the request came by.
    pub(super) fn by_an_end(why: &impl ToString) -> io::Error {
        io::Error::new(io::ErrorKind::BrokenPipe, Self::Ended(why.to_string()))
    }

    /// Whether an error is this one.
    pub(super) fn is(error: &io::Error) -> bool {
        Self::inside(error).is_some()
    }

    /// Whether the agent gave the request up, and did nothing for which the sidecar ended its connection.
    pub(super) fn is_given_up(error: &io::Error) -> bool {
        matches!(Self::inside(error), Some(Self::GivenUp(_)))
    }

    fn inside(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}
