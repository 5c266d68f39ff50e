//! Interim responses (RFC 9110 §15.2): 100 Continue and 103 Early Hints, which come before the final response.

use std::cell::Cell;
use std::io;

use tokio::io::AsyncRead;

use super::abandoned::Abandoned;
use super::answer::Answer;
use super::filter::Filter;
use super::head::{BodyLength, Buffered};
use super::response::{ResponseBody, ResponseHead, unusable};
use crate::cause::cause;
use crate::live_needles::LiveNeedles;

/// Why a 101 is refused that answers no WebSocket's handshake.
pub(super) const SWITCHED_UNASKED: &str = "the upstream switched protocols, and was not asked to: \
    an `Upgrade` of the request's is left out, unless it is to WebSocket";
/// How many interim responses may come before the final one.
pub(super) const MOST_INTERIM: usize = 16;

/// Where interim responses go.
pub(super) struct InterimAnswers<'a, 'b> {
    /// The agent's answer; without it they are dropped.
    answer: Option<&'b mut Answer<'a>>,
    needles: Option<&'b LiveNeedles>,
}

/// What an upstream sends next.
pub(super) enum Next<T> {
    Interim(ResponseHead),
    Final(T),
}

impl Next<ResponseHead> {
    /// Tells a final response of HTTP/1 from an interim one: 101 is final, because another protocol follows it.
    pub(super) fn of(head: ResponseHead) -> Self {
        if head.status >= 200 || head.status == 101 { Self::Final(head) } else { Self::Interim(head) }
    }
}

impl<'a, 'b> InterimAnswers<'a, 'b> {
    /// Passes interim responses on to the agent, with `needles` masked.
    pub(super) fn passed_on(answer: &'b mut Answer<'a>, needles: Option<&'b LiveNeedles>) -> Self {
        Self { answer: Some(answer), needles }
    }

    /// Drops interim responses.
    pub(super) fn dropped() -> Self {
        Self { answer: None, needles: None }
    }

    /// Reads heads from a connection of HTTP/1, and returns the final one. `is_sent` tells whether the whole request has been sent.
    ///
    /// # Errors
    /// As [`Self::until_final`].
    pub(super) async fn read_final<R: AsyncRead + Unpin>(
        &mut self,
        reader: &mut Buffered<R>,
        is_sent: &Cell<bool>,
    ) -> io::Result<ResponseHead> {
        self.until_final(async || ResponseHead::read(reader, is_sent).await.map(Next::of)).await
    }

    /// Reads responses by `next`, and returns the final one.
    ///
    /// # Errors
    /// What `next` fails with, more than [`MOST_INTERIM`] interim responses, a 101 among them, or [`Abandoned`].
    pub(super) async fn until_final<T>(
        &mut self,
        mut next: impl AsyncFnMut() -> io::Result<Next<T>>,
    ) -> io::Result<T> {
        let mut interims = 0;
        loop {
            let next = tokio::select! {
                biased;
                next = next() => next?,
                why = self.abandoned() => return Err(why),
            };
            let head = match next {
                Next::Final(response) => return Ok(response),
                Next::Interim(head) => head,
            };
            interims += 1;
            if interims > MOST_INTERIM {
                return Err(unusable("the upstream answers and answers before it answers"));
            }
            if head.status == 101 {
                return Err(unusable(SWITCHED_UNASKED));
            }
            self.pass_on(head).await?;
        }
    }

    /// Passes one on, masked like a final response.
    async fn pass_on(&mut self, mut head: ResponseHead) -> io::Result<()> {
        let Some(answer) = &mut self.answer else { return Ok(()) };
        head.fields.leave_hop();
        if let Some(needles) = self.needles {
            let mut length = ResponseBody::Framed(BodyLength::None);
            Filter::scrubbing(needles, &mut head, &mut length).map_err(|d| unusable(d.reason))?;
        }
        answer.interim(&head).await.map_err(|error| Abandoned::because(&cause(&error)))
    }

    /// Completes when the agent abandons its request.
    async fn abandoned(&mut self) -> io::Error {
        match &mut self.answer {
            Some(answer) => answer.abandoned().await,
            None => std::future::pending().await,
        }
    }
}
