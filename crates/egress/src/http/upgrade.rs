//! WebSockets: a request that asks for one is sent on as it is, and once the upstream agrees, octets go both ways. What
//! comes in is searched for the credential; its masks are as long as what they hide, so frames keep their lengths.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use data_encoding::BASE64;
use policy::Target;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::answer::Answer;
use super::filter::Filter;
use super::frames::Kind;
use super::head::{BodyLength, Buffered};
use super::incoming::Incoming;
use super::messages::Messages;
use super::outgoing::timely;
use super::problem::After;
use super::refuse::{TOO_SLOW, unreachable};
use super::response::{ResponseBody, ResponseHead};
use super::stream::AgentReader;
use super::upstream::{MOST_INTERIM, head_1, write};
use crate::exchange::{Exchange, Flow, Ready};
use crate::gate::Gate;
use crate::inject::Sending;
use crate::upstream::{Link, Offer, Upstream};

/// How long a socket may be quiet.
const IDLE: Duration = Duration::from_secs(3600);

/// Opens a WebSocket to the upstream, and carries it.
pub(super) async fn websocket(
    gate: &Rc<Gate>,
    mut exchange: Exchange<Ready>,
    target: &Target,
    sending: &Sending,
    body: Incoming<'_, AgentReader>,
    answer: Answer<'_>,
) -> io::Result<After> {
    let Incoming::Version1 { reader: agent, .. } = body else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let opened = async {
        let upstream = Upstream::open(gate, &mut exchange, sending.scheme, Offer::Version1).await?;
        let Link::Version1(mut reader, mut writer) = Link::over(upstream).await? else {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        };
        let wire = head_1(sending, BodyLength::None, Some("websocket"));
        write(&mut writer, &wire).await?;
        exchange.record().count(wire.len() as u64, 0);
        // Hints that come before (103) are for a page, and there is none.
        for _ in 0..=MOST_INTERIM {
            let head = ResponseHead::read(&mut reader).await?;
            if !matches!(head.status, 100 | 102..=199) {
                return Ok((reader, writer, head));
            }
        }
        Err(io::Error::other("the upstream answers and answers before it answers"))
    };
    let (mut reader, writer, mut head) = match opened.await {
        Ok(opened) => opened,
        Err(error) => return unreachable(gate, exchange, target, &error, answer, TOO_SLOW).await,
    };
    exchange.mark_sent();
    exchange.record().status(head.status);
    let mut length = ResponseBody::Framed(BodyLength::None);
    let scrubbed = Filter::scrubbing(&gate.credentials().needles(), &mut head, &mut length);
    scrubbed.map_err(|denial| io::Error::other(denial.reason))?;
    if head.status == 101 && !agrees(&head, sending) {
        let why = "the upstream switched protocols, and not to a WebSocket of this handshake";
        exchange.record().fail(why);
        let reply = super::problem::failed(
            502,
            "The upstream opened no WebSocket",
            why,
            &target.to_string(),
            gate.run(),
        );
        return answer.reply(reply, After::Close).await;
    }
    if head.status != 101 {
        let mut small = Vec::new();
        let limit = async { (&mut reader.reader).take(LARGEST_REFUSAL).read_to_end(&mut small).await };
        let _ = tokio::time::timeout(REFUSAL, limit).await;
        let status = if head.status >= 400 { head.status } else { 502 };
        let reply = super::problem::failed(
            status,
            "The upstream opened no WebSocket",
            &format!("it answered {}", head.status),
            &target.to_string(),
            gate.run(),
        );
        return answer.reply(reply, After::Close).await;
    }
    let Answer::Version1 { writer: to_agent, version, keep_alive, extent } = answer else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    Answer::Version1 { writer: &mut *to_agent, version, keep_alive, extent }.switch(&head).await?;
    let flow = Flow::of(exchange.record(), 0);
    let needles = gate.credentials().needles();
    // One is agreed on only where no credential was put in; what it packs is not searched, as with any answer there.
    let extended = head.fields.has("sec-websocket-extensions");
    let kind = if extended { Kind::ExtendedWebSocket } else { Kind::WebSocket };
    let mut messages = (!needles.is_empty()).then(|| Messages::of(kind, &needles));
    let mut writer = writer;
    let out = carry(agent, &mut writer, None, &flow.sent);
    let back = carry(&mut reader, to_agent, messages.as_mut(), &flow.received);
    // Either end is the end of both: a WebSocket closes by frames, and then by its connection.
    let ended = tokio::select! {
        ended = out => ended,
        ended = back => ended,
    };
    drop(flow);
    if let Err(error) = &ended
        && matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::TimedOut)
    {
        exchange.record().fail(&error.to_string());
    }
    ended.map(|()| After::Close)
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

/// The largest refusal that is read before its connection is given up, and how long that may take.
const LARGEST_REFUSAL: u64 = 16 * 1024;
const REFUSAL: Duration = Duration::from_millis(200);

async fn carry<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    from: &mut Buffered<R>,
    to: &mut W,
    mut messages: Option<&mut Messages>,
    count: &Cell<u64>,
) -> io::Result<()> {
    loop {
        if from.ahead.is_empty() && from.fill(IDLE).await? == 0 {
            let mut rest = Vec::new();
            messages.map_or(Ok(()), |messages| messages.finish(&mut rest))?;
            timely(to.write_all(&rest)).await?;
            return timely(to.flush()).await;
        }
        let piece = from.ahead.split();
        count.set(count.get() + piece.len() as u64);
        match &mut messages {
            Some(messages) => {
                let mut out = Vec::with_capacity(piece.len());
                messages.push(&piece, &mut out)?;
                timely(to.write_all(&out)).await?;
            }
            None => timely(to.write_all(&piece)).await?,
        }
        timely(to.flush()).await?;
    }
}

#[cfg(test)]
mod tests {
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
        let needles = credential::Needles::of([&credential::Secret::new(b"sk-0123456789".to_vec())]);
        let mut messages = Messages::of(Kind::WebSocket, &needles);
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
