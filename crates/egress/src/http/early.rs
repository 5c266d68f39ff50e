//! What comes before the answer: 100 Continue, 103 Early Hints. And that the agent waits for none any more.

use std::io;

use credential::Needles;

use super::answer::Answer;
use super::filter::Filter;
use super::head::BodyLength;
use super::response::{ResponseBody, ResponseHead};

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

/// What the agent hears before the answer, and whether it still listens.
pub(super) struct Early<'a, 'b> {
    answer: &'b mut Answer<'a>,
    needles: Option<&'b Needles>,
}

impl<'a, 'b> Early<'a, 'b> {
    pub(super) fn of(answer: &'b mut Answer<'a>, needles: Option<&'b Needles>) -> Self {
        Self { answer, needles }
    }

    /// Passes an answer before the answer on, searched like one.
    pub(super) async fn pass_on(&mut self, mut head: ResponseHead) -> io::Result<()> {
        head.fields.leave_hop();
        if let Some(needles) = self.needles {
            let mut length = ResponseBody::Framed(BodyLength::None);
            Filter::scrubbing(needles, &mut head, &mut length).map_err(|d| io::Error::other(d.reason))?;
        }
        self.answer.interim(&head).await.map_err(|error| GivenUp::because(&error))
    }

    /// Ends when the agent wants no answer any more.
    pub(super) async fn given_up(&mut self) -> io::Error {
        self.answer.given_up().await
    }
}
