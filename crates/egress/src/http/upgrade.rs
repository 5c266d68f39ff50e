//! WebSockets: sends the agent's handshake on and, once the upstream agrees, carries octets both ways. What comes in is searched for
//! credentials; a mask is as long as what it hides, so that frames keep their lengths.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use data_encoding::BASE64;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::answer::Answer;
use super::filter::Filter;
use super::forwarding::{Attempt, Forwarding, Relayed, Retry};
use super::frames::FrameFormat;
use super::head::{BodyLength, Buffered};
use super::incoming::Incoming;
use super::interim::InterimAnswers;
use super::messages::MessageScrubber;
use super::outgoing::within_stall_limit;
use super::problem::TOO_SLOW;
use super::problem::{self, After};
use super::refuse::unreachable;
use super::replay::ReplayBuffer;
use super::respond::{Failure, Responded, respond_to_handshake};
use super::response::{ResponseBody, ResponseHead};
use super::stream::{AgentReader, AgentWriter};
use super::upstream::{UpstreamResponse, request_head, write};
use crate::exchange::{Exchange, Flow, Ready};
use crate::gate::Gate;
use crate::inject::Sending;
use crate::upstream::{Link, Offer, Upstream, UpstreamReader, UpstreamWriter};

/// How long a socket may be quiet.
const IDLE: Duration = Duration::from_secs(3600);

/// A handshake that was answered.
struct Answered {
    reader: Buffered<UpstreamReader>,
    writer: UpstreamWriter,
    head: ResponseHead,
}

impl Forwarding<'_> {
    /// Opens a WebSocket to the upstream and carries it. A response that opens none is passed on as any other is.
    pub(super) async fn websocket(
        &self,
        mut exchange: Exchange<Ready>,
        sending: &Sending,
        body: Incoming<'_, AgentReader>,
        answer: Answer<'_>,
    ) -> io::Result<After> {
        let Incoming::Version1 { reader: agent, .. } = body else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let answered = match handshake(self.gate, &mut exchange, sending).await {
            Ok(answered) => answered,
            Err(error) => {
                return unreachable(self.gate, exchange, self.target, &error, answer, TOO_SLOW).await;
            }
        };
        exchange.mark_sent();
        if answered.head.status == 101 {
            self.switch(exchange, sending, answered, agent, answer).await
        } else {
            self.pass_response_on(exchange, sending, answered, answer).await
        }
    }

    /// Passes on a response that opens no WebSocket.
    async fn pass_response_on(
        &self,
        mut exchange: Exchange<Ready>,
        sending: &Sending,
        Answered { mut reader, head, .. }: Answered,
        answer: Answer<'_>,
    ) -> io::Result<After> {
        let held = exchange.held().cloned();
        let replay = ReplayBuffer::disabled();
        let (renewal, unread) = (Retry::Allowed, Retry::Used);
        let attempt = Attempt { sending, length: BodyLength::None, replay: &replay, renewal, unread };
        let handling = self.handling(&exchange, attempt, held.as_deref());
        let flow = Flow::of(exchange.record(), 0);
        let outcome = match UpstreamResponse::of_version_1(head, &mut reader, handling.method) {
            Ok(response) => respond_to_handshake(response, handling, answer, &flow.received).await,
            Err(error) => Ok(Responded::Failed(answer, Failure::Broken(error))),
        };
        drop(flow);
        if let Relayed::Answered { status, .. } = self.settle(exchange, attempt, outcome).await? {
            self.after_unauthorized(held, status, attempt).await;
        }
        Ok(After::Close)
    }

    /// Answers a 101 of the upstream with one to the agent, and carries what follows.
    async fn switch(
        &self,
        mut exchange: Exchange<Ready>,
        sending: &Sending,
        mut answered: Answered,
        agent: &mut Buffered<AgentReader>,
        answer: Answer<'_>,
    ) -> io::Result<After> {
        let head = &mut answered.head;
        exchange.record().status(head.status);
        let searched = self.gate.searched();
        if let Some(needles) = searched {
            let mut length = ResponseBody::Framed(BodyLength::None);
            Filter::scrubbing(needles, head, &mut length)
                .map_err(|denial| io::Error::other(denial.reason))?;
        }
        if !agrees(head, sending) {
            let why = "the upstream switched protocols, and not to a WebSocket of this handshake";
            exchange.record().fail(why);
            let (title, target) = ("The upstream opened no WebSocket", self.target.to_string());
            let reply = problem::failed(502, title, why, &target, self.gate.run());
            return answer.reply(reply, After::Close).await;
        }
        let Answer::Version1 { writer: to_agent, version, keep_alive, extent } = answer else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        Answer::Version1 { writer: &mut *to_agent, version, keep_alive, extent }.switch(head).await?;
        // An extension is agreed on only if no credential was put in; compressed messages are then not searched, as in any response.
        let extended = head.fields.has("sec-websocket-extensions");
        let format = if extended { FrameFormat::ExtendedWebSocket } else { FrameFormat::WebSocket };
        let messages = searched.map(|needles| MessageScrubber::of(format, needles));
        let ended = tunnel(&mut exchange, answered, messages, agent, to_agent).await;
        if let Err(error) = &ended
            && matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::TimedOut)
        {
            exchange.record().fail(&error.to_string());
        }
        ended.map(|()| After::Close)
    }
}

/// Sends the handshake over a connection of its own, and returns the upstream's response to it.
async fn handshake(gate: &Gate, exchange: &mut Exchange<Ready>, sending: &Sending) -> io::Result<Answered> {
    let upstream = Upstream::open(gate, exchange, sending.scheme, Offer::Version1).await?;
    let Link::Version1(mut reader, mut writer) = Link::over(upstream).await? else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let wire = request_head(sending, BodyLength::None, Some("websocket"));
    write(&mut writer, &wire).await?;
    exchange.record().count(wire.len() as u64, 0);
    // Early hints (103) are for a page, and there is none.
    let head = InterimAnswers::dropped().read_final(&mut reader).await?;
    Ok(Answered { reader, writer, head })
}

/// Carries octets both ways until either side ends: a WebSocket closes by frames, and then by its connection.
async fn tunnel(
    exchange: &mut Exchange<Ready>,
    Answered { mut reader, mut writer, .. }: Answered,
    mut messages: Option<MessageScrubber>,
    agent: &mut Buffered<AgentReader>,
    to_agent: &mut AgentWriter,
) -> io::Result<()> {
    let flow = Flow::of(exchange.record(), 0);
    let out = carry(agent, &mut writer, None, &flow.sent);
    let back = carry(&mut reader, to_agent, messages.as_mut(), &flow.received);
    tokio::select! {
        ended = out => ended,
        ended = back => ended,
    }
}

/// Whether a 101 is the answer to this handshake (RFC 6455 §4.1): anything else would be a pipe to the host past every rule.
fn agrees(head: &ResponseHead, sending: &Sending) -> bool {
    let key = sending.fields.values("sec-websocket-key").next().unwrap_or_default();
    let expected = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, GUID].concat());
    let expected = BASE64.encode(expected.as_ref());
    let accepts: Vec<&[u8]> = head.fields.values("sec-websocket-accept").collect();
    head.fields.has_token("connection", "upgrade")
        && head.fields.has_token("upgrade", "websocket")
        && matches!(accepts.as_slice(), [one] if *one == expected.as_bytes())
        // None is offered where a credential is masked, because frames are then not to be packed.
        && (sending.fields.has("sec-websocket-extensions") || !head.fields.has("sec-websocket-extensions"))
}

/// RFC 6455 §1.3.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Carries octets one way until they end, and searches the messages in them.
async fn carry<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    from: &mut Buffered<R>,
    to: &mut W,
    mut messages: Option<&mut MessageScrubber>,
    count: &Cell<u64>,
) -> io::Result<()> {
    loop {
        if from.ahead.is_empty() && from.fill(IDLE).await? == 0 {
            let mut rest = Vec::new();
            messages.map_or(Ok(()), |messages| messages.finish(&mut rest))?;
            within_stall_limit(to.write_all(&rest)).await?;
            return within_stall_limit(to.flush()).await;
        }
        let piece = from.ahead.split();
        count.set(count.get() + piece.len() as u64);
        match &mut messages {
            Some(messages) => {
                let mut out = Vec::with_capacity(piece.len());
                messages.push(&piece, &mut out)?;
                within_stall_limit(to.write_all(&out)).await?;
            }
            None => within_stall_limit(to.write_all(&piece)).await?,
        }
        within_stall_limit(to.flush()).await?;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_reads_nothing_is_waited_for_as_long_as_with_any_body() {
        let (mut upstream, theirs) = tokio::io::duplex(1 << 16);
        let (mut to, _reads_nothing) = tokio::io::duplex(1);
        upstream.write_all(&[b'x'; 100]).await.unwrap();
        let (mut from, count, begun) = (Buffered::new(theirs), Cell::new(0), Instant::now());
        let ended = carry(&mut from, &mut to, None, &count).await.unwrap_err();
        assert_eq!((ended.kind(), count.get()), (io::ErrorKind::TimedOut, 100));
        assert!((120..122).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn what_was_held_back_is_passed_on_at_the_end() {
        let needles = credential::Needles::of([&credential::Secret::new(b"sk-0123456789".to_vec())]).into();
        let mut messages = MessageScrubber::of(FrameFormat::WebSocket, &needles);
        let (mut upstream, theirs) = tokio::io::duplex(1 << 16);
        let (mut to, mut agent) = tokio::io::duplex(1 << 16);
        let sent = b"\x01\x05sk-01\x88\x02\x03\xe8";
        upstream.write_all(sent).await.unwrap();
        drop(upstream);
        carry(&mut Buffered::new(theirs), &mut to, Some(&mut messages), &Cell::new(0)).await.unwrap();
        drop(to);
        let mut come = Vec::new();
        agent.read_to_end(&mut come).await.unwrap();
        assert_eq!(come, sent);
    }
}
