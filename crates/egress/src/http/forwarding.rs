//! What stays the same over all attempts to send one request: where it goes, its limits, and how it ends.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use policy::{Denial, Guard, Target};

use super::abandoned::Abandoned;
use super::answer::Answer;
use super::chunk::RefusedBody;
use super::filter::Unsearchable;
use super::head::BodyLength;
use super::hung_up::HungUp;
use super::problem::{self, After, TOO_SLOW};
use super::refuse::unreachable;
use super::replay::ReplayBuffer;
use super::respond::{Failure, Handling, Metering, Renewed, Responded, UNAUTHORIZED};
use super::send;
use super::time_limit::Deadline;
use super::version2;
use crate::cause::cause;
use crate::exchange::{Exchange, Ready};
use crate::fetched_credential::FetchedCredential;
use crate::gate::Gate;
use crate::inject::Sending;
use crate::llm::RequestLine;

/// The limits of an exchange.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// The largest response body that is passed on: the response is gathered first, and cut (S0.53).
    pub(super) max_body: Option<usize>,
    /// How long the whole exchange may take.
    pub(super) within: Option<Duration>,
    /// Whether the request's body holds a credential: it is then not sent again beside another one.
    pub(super) body_holds_credential: bool,
    /// The status that the agent gets when the upstream is too slow.
    pub(super) late_status: u16,
}

impl Default for Terms {
    fn default() -> Self {
        Self { max_body: None, within: None, body_holds_credential: false, late_status: TOO_SLOW }
    }
}

/// One request on its way to one target.
#[derive(Clone, Copy)]
pub(super) struct Forwarding<'a> {
    pub(super) gate: &'a Rc<Gate>,
    pub(super) target: &'a Target,
    pub(super) terms: Terms,
    pub(super) deadline: Option<Deadline<'a>>,
}

/// Something that is done again at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    Allowed,
    Used,
}

/// One attempt to send a request.
#[derive(Clone, Copy)]
pub(super) struct Attempt<'a> {
    pub(super) sending: &'a Sending,
    pub(super) length: BodyLength,
    /// The request's body, if it can be sent again.
    pub(super) replay: &'a ReplayBuffer,
    /// Whether a 401 may be followed by an attempt with another credential.
    pub(super) renewal: Retry,
    /// Whether a request that the upstream gave back unread, or whose network has gone, may be sent again.
    pub(super) unread: Retry,
}

impl Attempt<'_> {
    /// Whether another attempt may follow one that ended so.
    fn may_follow(&self, error: &io::Error) -> bool {
        let is_repeatable = send::is_repeatable(self.sending.method.as_str(), self.length);
        version2::is_unprocessed(error) || is_repeatable && send::is_given_up(error)
    }
}

/// What came of an attempt.
pub(super) enum Relayed<'a> {
    /// The agent has its answer.
    Answered {
        after: After,
        /// The upstream's status; none if the answer is the sidecar's own.
        status: Option<u16>,
    },
    /// The upstream refused the credential, and there is another one.
    Unauthorized { unanswered: Box<Unanswered<'a>>, renewed: Renewed },
    /// The upstream gave the request back unread, or its network has gone and the request may be repeated.
    Unread(Box<Unanswered<'a>>),
}

/// An exchange of which the agent has no answer yet.
pub(super) struct Unanswered<'a> {
    pub(super) answer: Answer<'a>,
    pub(super) exchange: Exchange<Ready>,
}

impl<'a> Forwarding<'a> {
    /// Begins now: the time limit of the terms counts from here.
    pub(super) fn new(gate: &'a Rc<Gate>, target: &'a Target, terms: Terms) -> Self {
        let deadline = terms.within.map(|within| Deadline::from_now(within, target.host()));
        Self { gate, target, terms, deadline }
    }

    /// Returns how the response to an attempt is handled. `held` is the credential of the request.
    pub(super) fn handling<'h>(
        &'h self,
        exchange: &Exchange<Ready>,
        attempt: Attempt<'h>,
        held: Option<&'h FetchedCredential>,
    ) -> Handling<'h> {
        let format = exchange.grant().metered_as().and_then(|provider| provider.llm());
        let is_bound = exchange.grant().is_bound();
        let method = attempt.sending.method.as_str();
        Handling {
            method,
            needles: self.gate.searched(),
            // A response of a host that no credential goes to can hardly hold one: it is not refused for its coding.
            unsearchable: if is_bound { self.gate.unsearchable() } else { Unsearchable::Note },
            is_bound,
            message_wise: exchange.grant().is_message_wise(),
            replay: attempt.replay,
            renewal: held.filter(|_| attempt.renewal == Retry::Allowed).map(|held| (&**self.gate, held)),
            max_body: self.terms.max_body,
            deadline: self.deadline,
            metering: format.zip(exchange.usage()).map(|(format, usage)| Metering {
                ledger: self.gate.ledger(),
                line: RequestLine { method, path: self.target.path().as_str() },
                format,
                usage,
            }),
        }
    }

    /// Answers that the upstream cannot be reached.
    pub(super) async fn unreachable(
        &self,
        exchange: Exchange<Ready>,
        error: &io::Error,
        answer: Answer<'_>,
    ) -> io::Result<After> {
        unreachable(self.gate, exchange, self.target, error, answer, self.terms.late_status).await
    }

    /// Refuses a request that was sent, and answers the agent in the upstream's place.
    pub(super) async fn refuse(
        &self,
        exchange: Exchange<Ready>,
        denial: Denial,
        status: u16,
        answer: Answer<'_>,
    ) -> io::Result<After> {
        let denial = exchange.refuse(denial);
        let reply = problem::denied(&denial, &self.target.to_string(), self.gate.run(), status);
        answer.reply(reply, After::Close).await
    }

    /// Completes the record of an attempt, and answers the agent if no response was passed on. The status is the upstream's, whatever
    /// became of its response.
    pub(super) async fn settle<'r>(
        &self,
        mut exchange: Exchange<Ready>,
        attempt: Attempt<'_>,
        status: Option<u16>,
        outcome: io::Result<Responded<'r>>,
    ) -> io::Result<Relayed<'r>> {
        status.into_iter().for_each(|status| exchange.record().status(status));
        let outcome = match outcome {
            // Nobody is left to answer, and the upstream did not fail.
            Ok(Responded::Failed(_, Failure::Broken(error))) if Abandoned::is(&error) => Err(error),
            outcome => outcome,
        };
        match outcome {
            Ok(Responded::Unauthorized(answer, renewed)) => {
                Ok(Relayed::Unauthorized { unanswered: Box::new(Unanswered { answer, exchange }), renewed })
            }
            Ok(Responded::Answered { after, note, .. }) => {
                if let Some(note) = note {
                    exchange.record().note(&note);
                }
                Ok(Relayed::Answered { after, status })
            }
            Ok(Responded::Failed(answer, Failure::Broken(error)))
                // An upstream that has answered took the request, whatever it says afterwards.
                if attempt.unread == Retry::Allowed
                    && status.is_none()
                    && attempt.replay.is_complete()
                    && attempt.may_follow(&error) =>
            {
                Ok(Relayed::Unread(Box::new(Unanswered { answer, exchange })))
            }
            Ok(Responded::Failed(answer, Failure::Broken(error))) => {
                let told = if status.is_none() { HungUp::told } else { HungUp::told_in_answer };
                let error = told(error);
                let after = Box::pin(self.unreachable(exchange, &error, answer)).await?;
                Ok(Relayed::Answered { after, status: None })
            }
            Ok(Responded::Failed(answer, Failure::Denied(denial))) => {
                let after = self.refuse(exchange, denial, 502, answer).await?;
                Ok(Relayed::Answered { after, status: None })
            }
            Err(error) => {
                exchange.record().fail(&cause(&error));
                if error.get_ref().is_some_and(|inner| inner.is::<RefusedBody>()) {
                    exchange.record().stopped_by(Guard::Framing);
                }
                Err(error)
            }
        }
    }

    /// Renews a credential that the upstream refused with 401, or reports that its renewed value was refused as well.
    pub(super) async fn after_unauthorized(
        &self,
        held: Option<Rc<FetchedCredential>>,
        status: Option<u16>,
        attempt: Attempt<'_>,
    ) {
        let credentials = self.gate.credentials();
        match held.filter(|_| status == Some(UNAUTHORIZED)) {
            Some(held) if attempt.renewal == Retry::Used => credentials.report_refused(held.provider()).await,
            // The body cannot be sent again: the new credential counts from the next request on.
            Some(held) if !attempt.replay.is_complete() => credentials.renew(&held).await,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use policy::Method;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::exchange::tests::ready;
    use crate::fixture::{gate_for, options_for, records_in};
    use crate::http::answer::Extent;
    use crate::http::fields::Fields;
    use crate::http::head::Version;
    use crate::http::stream::AgentStream;
    use crate::{GateOptions, SigningKey};

    /// The error of a session whose upstream goes away.
    async fn gone_away() -> io::Error {
        let (ours, mut theirs) = tokio::io::duplex(4096);
        // An empty SETTINGS, then GOAWAY for INTERNAL_ERROR (RFC 9113 §6.5, §6.8).
        theirs.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
        theirs.write_all(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]).await.unwrap();
        let (_requests, connection) = h2::client::handshake(ours).await.unwrap();
        version2::broken(connection.await.unwrap_err())
    }

    fn first_attempt<'a>(sending: &'a Sending, replay: &'a ReplayBuffer) -> Attempt<'a> {
        Attempt { sending, length: BodyLength::None, replay, renewal: Retry::Allowed, unread: Retry::Allowed }
    }

    #[test]
    fn what_may_be_repeated_is_sent_again_once_the_network_has_gone() {
        let target = Target::parse("http://127.0.0.1:9/").unwrap();
        let replay = ReplayBuffer::whole(None);
        let gone = || io::Error::from(rustix::io::Errno::TIMEDOUT);
        for (method, error, follows) in [
            ("GET", gone(), true),
            ("POST", gone(), false),
            ("GET", io::ErrorKind::TimedOut.into(), false),
            ("GET", io::ErrorKind::ConnectionReset.into(), false),
        ] {
            let sending = Sending::new(Method::parse(method).unwrap(), &target, Fields::default());
            let attempt = first_attempt(&sending, &replay);
            assert_eq!(attempt.may_follow(&error), follows, "{method} {error}");
        }
    }

    #[tokio::test]
    async fn a_request_that_was_answered_is_not_sent_again() {
        let url = "http://127.0.0.1:9/";
        let gate = gate_for(&format!("[egress]\nallow = [{{ url = \"{url}*\" }}]\n"), Vec::new(), None);
        let target = Target::parse(url).unwrap();
        let sending = Sending::new(Method::parse("GET").unwrap(), &target, Fields::default());
        let forwarding = Forwarding::new(&gate, &target, Terms::default());
        let replay = ReplayBuffer::whole(None);
        let attempt = first_attempt(&sending, &replay);
        for status in [None, Some(200)] {
            let (agent, _seen) = tokio::net::UnixStream::pair().unwrap();
            let (_reader, mut writer) = AgentStream::Unix(agent).split();
            let answer = Answer::Version1 {
                writer: &mut writer,
                version: Version::Http11,
                keep_alive: true,
                extent: Extent::Whole,
            };
            let outcome = Ok(Responded::Failed(answer, Failure::Broken(gone_away().await)));
            let exchange = ready(&gate, url).await;
            let relayed = forwarding.settle(exchange, attempt, status, outcome).await.unwrap();
            assert_eq!(matches!(relayed, Relayed::Unread(_)), status.is_none());
        }
    }

    #[tokio::test]
    async fn an_agent_that_gave_up_before_its_answer_is_no_failure_of_the_upstream() {
        let url = "http://127.0.0.1:9/";
        let mut audit = tempfile::tempfile().unwrap();
        let (notices, theirs) = UnixStream::pair().unwrap();
        let gate = Gate::open(GateOptions {
            audit: Some((Arc::new(audit.try_clone().unwrap()), SigningKey::generate().unwrap().0)),
            notices: Some(theirs.into()),
            ..options_for(&format!("[egress]\nallow = [{{ url = \"{url}*\" }}]\n"))
        })
        .unwrap();
        let target = Target::parse(url).unwrap();
        let sending = Sending::new(Method::parse("GET").unwrap(), &target, Fields::default());
        let forwarding = Forwarding::new(&gate, &target, Terms::default());
        let replay = ReplayBuffer::whole(None);
        let (agent, mut seen) = tokio::net::UnixStream::pair().unwrap();
        let (reader, mut writer) = AgentStream::Unix(agent).split();
        let (version, extent) = (Version::Http11, Extent::Whole);
        let answer = Answer::Version1 { writer: &mut writer, version, keep_alive: true, extent };
        let error = Abandoned::because(&h2::Reason::CANCEL);
        let outcome = Ok(Responded::Failed(answer, Failure::Broken(error)));
        let settled =
            forwarding.settle(ready(&gate, url).await, first_attempt(&sending, &replay), None, outcome).await;
        assert!(settled.is_err_and(|error| Abandoned::is(&error)));
        drop((reader, writer));
        let mut answered = Vec::new();
        seen.read_to_end(&mut answered).await.unwrap();
        assert!(answered.is_empty(), "{answered:?}");
        gate.close().unwrap();
        drop(gate);
        let told = std::io::read_to_string(notices).unwrap();
        assert!(!told.contains("upstream_failed"), "{told}");
        let records = records_in(&mut audit);
        assert!(records.contains("the agent gave the request up"), "{records}");
    }
}
