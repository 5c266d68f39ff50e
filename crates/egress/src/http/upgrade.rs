//! WebSockets: a request that asks for one is sent on as it is, and once the upstream agrees, octets go both ways. What
//! comes in is searched for the credential; its masks are as long as what they hide, so frames keep their lengths.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use credential::Scrubber;
use policy::Target;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::answer::Answer;
use super::filter::Filter;
use super::forward::unreachable;
use super::head::{BodyLength, Buffered};
use super::incoming::Incoming;
use super::problem::After;
use super::response::{ResponseBody, ResponseHead};
use super::stream::AgentReader;
use super::upstream::{head_1, write};
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
        write(&mut writer, &head_1(sending, BodyLength::None, Some("websocket"))).await?;
        let head = ResponseHead::read(&mut reader).await?;
        Ok((reader, writer, head))
    };
    let (mut reader, writer, mut head) = match opened.await {
        Ok(opened) => opened,
        Err(error) => return unreachable(gate, exchange, target, &error, answer).await,
    };
    exchange.record().status(head.status);
    let held = exchange.held().cloned();
    let mut length = ResponseBody::Framed(BodyLength::None);
    if let Some(held) = &held {
        let scrubbed = Filter::scrubbing(held.needles(), &mut head, &mut length);
        scrubbed.map_err(|denial| io::Error::other(denial.reason))?;
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
    let Answer::Version1 { writer: to_agent, version, keep_alive } = answer else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    Answer::Version1 { writer: &mut *to_agent, version, keep_alive }.switch(&head).await?;
    let flow = Flow::of(exchange.record(), 0);
    let mut scrubber = held.as_ref().map(|held| Scrubber::new(held.needles()));
    let mut writer = writer;
    let out = carry(agent, &mut writer, None, &flow.sent);
    let back = carry(&mut reader, to_agent, scrubber.as_mut(), &flow.received);
    // Either end is the end of both: a WebSocket closes by frames, and then by its connection.
    tokio::select! {
        ended = out => ended?,
        ended = back => ended?,
    }
    Ok(After::Close)
}

/// The largest refusal that is read before its connection is given up, and how long that may take.
const LARGEST_REFUSAL: u64 = 16 * 1024;
const REFUSAL: Duration = Duration::from_millis(200);

async fn carry<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    from: &mut Buffered<R>,
    to: &mut W,
    mut scrubber: Option<&mut Scrubber>,
    count: &Cell<u64>,
) -> io::Result<()> {
    loop {
        if from.ahead.is_empty() && from.fill(IDLE).await? == 0 {
            return Ok(());
        }
        let piece = from.ahead.split();
        count.set(count.get() + piece.len() as u64);
        match &mut scrubber {
            Some(scrubber) => {
                let mut out = Vec::with_capacity(piece.len());
                scrubber.push(&piece, &mut out);
                to.write_all(&out).await?;
            }
            None => to.write_all(&piece).await?,
        }
        to.flush().await?;
    }
}
