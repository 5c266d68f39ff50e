//! What comes before the answer: 100 Continue, 103 Early Hints.

use std::io;

use credential::Needles;

use super::abandoned::GivenUp;
use super::answer::Answer;
use super::filter::Filter;
use super::head::BodyLength;
use super::response::{ResponseBody, ResponseHead};

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
