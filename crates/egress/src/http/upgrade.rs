//! WebSockets: sends the agent's handshake on and, once the upstream agrees, carries octets both ways. What comes in is searched for
//! credentials; a mask is as long as what it hides, so that frames keep their lengths.

use std::cell::Cell;
use std::io;
use std::pin::pin;
use std::time::Duration;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use data_encoding::BASE64;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

use super::answer::Answer;
use super::filter::Filter;
use super::forwarding::{Attempt, Forwarding, Relayed, Retry};
use super::frames::FrameFormat;
use super::head::{BodyLength, Buffered};
use super::hung_up::HungUp;
use super::incoming::Incoming;
use super::interim::InterimAnswers;
use super::messages::MessageScrubber;
use super::outgoing::{within_stall_limit, write_within_limit};
use super::problem::{self, After};
use super::progress::Progress;
use super::replay::ReplayBuffer;
use super::respond::{Failure, Responded, respond_to_handshake};
use super::response::{ResponseBody, ResponseHead};
use super::send::request_head;
use super::stream::{AgentReader, AgentWriter};
use super::time_limit::{Awaited, by_deadline};
use super::upstream_response::UpstreamResponse;
use crate::cause::cause;
use crate::directions::{Broken, Ended, Failed, both, is_cut};
use crate::exchange::{Exchange, Flow, Ready};
use crate::gate::Gate;
use crate::inject::{Sending, restore_subprotocol};
use crate::upstream::{self, Link, Offer, UpstreamReader, UpstreamWriter};

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
        let answered =
            by_deadline(self.deadline, Awaited::Answer, pin!(handshake(self.gate, &mut exchange, sending)))
                .await;
        let answered = match answered {
            Ok(answered) => answered,
            Err(error) => return self.unreachable(exchange, &error, answer).await,
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
        let progress = Progress::begin(&flow.received);
        progress.is_sent.set(true);
        let outcome = match UpstreamResponse::of_version_1(head, &mut reader, handling.method) {
            Ok(response) => respond_to_handshake(response, handling, answer, &progress).await,
            Err(error) => Ok(Responded::Failed(answer, Failure::Broken(error))),
        };
        let status = progress.status.get();
        drop(flow);
        if let Relayed::Answered { status, .. } = self.settle(exchange, attempt, status, outcome).await? {
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
        restore_subprotocol(&exchange, sending, &mut head.fields);
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
        if exchange.is_counted() {
            self.gate.ledger().note_socket();
        }
        // An extension is agreed on only if no credential was put in; compressed messages are then not searched, as in any response.
        let extended = head.fields.has("sec-websocket-extensions");
        let format = if extended { FrameFormat::ExtendedWebSocket } else { FrameFormat::WebSocket };
        let messages = searched.map(|needles| MessageScrubber::of(format, needles));
        match tunnel(&mut exchange, answered, messages, agent, to_agent).await {
            Err(error) if is_cut(&error) => {
                exchange.record().fail(&cause(&error));
                Err(error)
            }
            // Also behind a peer that reset its connection: its last words are on their way to the other.
            _ => Ok(After::Close),
        }
    }
}

/// Sends the handshake over a connection of its own, and returns the upstream's response to it.
async fn handshake(gate: &Gate, exchange: &mut Exchange<Ready>, sending: &Sending) -> io::Result<Answered> {
    let upstream = upstream::open(gate, exchange, sending.scheme, Offer::Version1).await?;
    let Link::Version1(mut reader, mut writer) = Link::over(upstream).await? else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let wire = request_head(sending, BodyLength::None, Some("websocket"));
    write_within_limit(&mut writer, &wire).await?;
    exchange.record().count(wire.len() as u64, 0);
    // Early hints (103) are for a page, and there is none.
    let head = InterimAnswers::dropped().read_final(&mut reader, &Cell::new(true)).await;
    let head = head.map_err(HungUp::told)?;
    Ok(Answered { reader, writer, head })
}

/// Carries octets both ways until both sides have ended, as any tunnel does.
async fn tunnel(
    exchange: &mut Exchange<Ready>,
    Answered { mut reader, mut writer, .. }: Answered,
    mut messages: Option<MessageScrubber>,
    agent: &mut Buffered<AgentReader>,
    to_agent: &mut AgentWriter,
) -> io::Result<()> {
    let flow = Flow::of(exchange.record(), 0);
    let moved = Cell::new(Instant::now());
    // Each peer hears of a failure by itself, so that the other has its time.
    let out = async { one_way(agent, &mut writer, None, &flow.sent, &moved).await.map_err(Failed::Writing) };
    let back = one_way(&mut reader, to_agent, messages.as_mut(), &flow.received, &moved);
    let back = async { back.await.map_err(Failed::Writing) };
    let ended = both(out, back, &moved, IDLE).await.map_err(|Broken { error, .. }| error)?;
    drop(flow);
    if ended == Ended::Idle {
        exchange.record().note("nothing moved for too long");
    }
    Ok(())
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

/// Carries octets one way, then shuts the writing side down: each peer hears at once that the other has ended or failed.
async fn one_way<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    from: &mut Buffered<R>,
    to: &mut W,
    messages: Option<&mut MessageScrubber>,
    count: &Cell<u64>,
    moved: &Cell<Instant>,
) -> io::Result<()> {
    let carried = carry(from, to, messages, count, moved).await;
    match carried {
        Err(error) if is_cut(&error) => Err(error),
        carried => carried.and(within_stall_limit(to.shutdown()).await),
    }
}

/// Carries octets one way until they end, and searches the messages in them. What could not be written is left ahead: the agent is then
/// known to have sent more than was read.
async fn carry<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    from: &mut Buffered<R>,
    to: &mut W,
    mut messages: Option<&mut MessageScrubber>,
    count: &Cell<u64>,
    moved: &Cell<Instant>,
) -> io::Result<()> {
    loop {
        let read = if from.ahead.is_empty() { from.more().await } else { Ok(from.ahead.len()) };
        let (is_over, mut searched) = (!matches!(read, Ok(1..)), Vec::new());
        match &mut messages {
            Some(messages) if is_over => messages.finish(&mut searched)?,
            Some(messages) => messages.push(&from.ahead, &mut searched)?,
            None => {}
        }
        count.set(count.get() + from.ahead.len() as u64);
        let written = if messages.is_some() { &searched[..] } else { &from.ahead[..] };
        within_stall_limit(async {
            to.write_all(written).await?;
            to.flush().await
        })
        .await?;
        if is_over {
            return read.map(drop);
        }
        from.ahead.clear();
        moved.set(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use bytes::BytesMut;
    use policy::{Method, Target};
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::LocalSet;

    use super::*;
    use crate::exchange::tests::ready;
    use crate::fixture::gate_for;
    use crate::http::answer::Extent;
    use crate::http::fields::Fields;
    use crate::http::forwarding::Terms;
    use crate::http::head::Version;
    use crate::http::incoming::Framing;
    use crate::http::request::Via;
    use crate::http::serve1::serve_requests;
    use crate::http::stream::AgentStream;

    /// What the server of a WebSocket gets.
    type Upstream = Buffered<TcpStream>;

    /// Opens a WebSocket through the proxy. `asks` and `serves` get the connections behind the handshake. Returns what `asks` does.
    async fn opened<T>(asks: impl AsyncFnOnce(TcpStream) -> T, serves: impl AsyncFnOnce(Upstream)) -> T {
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let (upstream, proxy) = (listen().await.unwrap(), listen().await.unwrap());
        let at = upstream.local_addr().unwrap();
        let gate =
            gate_for(&format!("[egress]\nallow = [{{ url = \"http://{at}/*\" }}]\n"), Vec::new(), None);
        #[expect(clippy::disallowed_methods, reason = "the agent's side, to a listener of the test's")]
        let mut agent = TcpStream::connect(proxy.local_addr().unwrap()).await.unwrap();
        let served = AgentStream::Tcp(proxy.accept().await.unwrap().0);
        let served = serve_requests(gate, Via::Proxy, served, BytesMut::new());
        let asks = async {
            // The example of RFC 6455 §1.3.
            let head = format!(
                "GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            );
            agent.write_all(head.as_bytes()).await.unwrap();
            let mut agent = Buffered::new(agent);
            let head = agent.read_head(IDLE, IDLE, |_, _| false).await.unwrap().unwrap();
            assert!(head.starts_with(b"HTTP/1.1 101 "), "{head:?}");
            assert!(agent.ahead.is_empty());
            asks(agent.reader).await
        };
        let serves = async {
            let mut stream = Buffered::new(upstream.accept().await.unwrap().0);
            stream.read_head(IDLE, IDLE, |_, _| false).await.unwrap();
            let agrees = "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
            stream.reader.write_all(agrees.as_bytes()).await.unwrap();
            serves(stream).await;
        };
        LocalSet::new().run_until(async { tokio::join!(asks, serves, served) }).await.0
    }

    #[tokio::test]
    async fn who_sends_no_more_gets_what_is_still_said() {
        let asks = async |mut agent: TcpStream| {
            agent.write_all(b"question").await.unwrap();
            agent.shutdown().await.unwrap();
            let mut heard = Vec::new();
            agent.read_to_end(&mut heard).await.unwrap();
            heard
        };
        let serves = async |mut upstream: Upstream| {
            while upstream.fill(IDLE).await.unwrap() > 0 {}
            assert_eq!(upstream.ahead, b"question"[..]);
            upstream.reader.write_all(b"answer").await.unwrap();
        };
        assert_eq!(opened(asks, serves).await, b"answer");
    }

    #[tokio::test]
    async fn the_last_words_come_to_who_keeps_sending() {
        const LAST: &[u8] = b"\x88\x02\x03\xf0";
        let asks = async |mut agent: TcpStream| {
            let (mut from, mut to) = agent.split();
            // More than fits into the connections, so that some of it is unread whenever the server ends.
            let sends = async { while to.write_all(&[1; 1 << 16]).await.is_ok() {} };
            let mut heard = Vec::new();
            tokio::select! {
                read = from.read_to_end(&mut heard) => drop(read.unwrap()),
                () = sends => panic!("the connection was reset"),
            }
            heard
        };
        let serves = async |mut upstream: Upstream| {
            upstream.fill(IDLE).await.unwrap();
            upstream.reader.write_all(LAST).await.unwrap();
            drop(upstream); // with much that it has not read, which resets the connection
        };
        assert_eq!(opened(asks, serves).await, LAST);
    }

    #[tokio::test(start_paused = true)]
    async fn who_only_listens_is_not_idle() {
        let asks = async |mut agent: TcpStream| {
            let mut heard = Vec::new();
            agent.read_to_end(&mut heard).await.unwrap();
            heard
        };
        let serves = async |mut upstream: Upstream| {
            for _ in 0..10 {
                tokio::time::sleep(IDLE / 4).await;
                upstream.reader.write_all(b"news").await.unwrap();
            }
        };
        assert_eq!(opened(asks, serves).await, b"news".repeat(10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_handshake_takes_no_longer_than_any_exchange() {
        let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("http://{}/", upstream.local_addr().unwrap());
        let gate = gate_for(&format!("[egress]\nallow = [{{ url = \"{url}*\" }}]\n"), Vec::new(), None);
        let target = Target::parse(&url).unwrap();
        let sending = Sending::new(Method::parse("GET").unwrap(), &target, Fields::default());
        let within = Duration::from_secs(30);
        let terms = Terms { within: Some(within), late_status: 502, ..Terms::default() };
        let (ours, mut theirs) = tokio::net::UnixStream::pair().unwrap();
        let (reader, mut writer) = AgentStream::Unix(ours).split();
        let mut reader = Buffered::new(reader);
        let body = Incoming::Version1 { reader: &mut reader, framing: Framing::Done };
        let (version, extent) = (Version::Http11, Extent::Whole);
        let answer = Answer::Version1 { writer: &mut writer, version, keep_alive: true, extent };
        let (exchange, begun) = (ready(&gate, &url).await, Instant::now());
        let forwarding = Forwarding::new(&gate, &target, terms);
        forwarding.websocket(exchange, &sending, body, answer).await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), within.as_secs());
        let mut answer = [0; 13];
        theirs.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 502 ");
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_nothing_is_waited_for_as_long_as_with_any_body() {
        let (mut upstream, theirs) = tokio::io::duplex(1 << 16);
        let (mut to, _reads_nothing) = tokio::io::duplex(1);
        upstream.write_all(&[b'x'; 100]).await.unwrap();
        let (mut from, count, begun) = (Buffered::new(theirs), Cell::new(0), Instant::now());
        let ended = carry(&mut from, &mut to, None, &count, &Cell::new(begun)).await.unwrap_err();
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
        let (mut from, moved) = (Buffered::new(theirs), Cell::new(Instant::now()));
        carry(&mut from, &mut to, Some(&mut messages), &Cell::new(0), &moved).await.unwrap();
        drop(to);
        let mut come = Vec::new();
        agent.read_to_end(&mut come).await.unwrap();
        assert_eq!(come, sent);
    }
}
