//! Sends a request on in its one form and relays its response; once more where the upstream refuses the credential, or gives the request
//! back unread.

use std::cell::Cell;
use std::io;
use std::pin::pin;

use super::abandoned::Abandoned;
use super::answer::Answer;
use super::forwarding::{Attempt, Forwarding, Relayed, Retry, Terms, Unanswered};
use super::head::{BodyLength, RequestHead, Version};
use super::incoming::Incoming;
use super::pooled;
use super::problem::After;
use super::progress::Progress;
use super::pump::{Trailers, pump, race};
use super::refuse::status_of;
use super::replay::ReplayBuffer;
use super::request::Request;
use super::respond::{Failure, Responded, UNAUTHORIZED, respond};
use super::send::{self, Connection, Reuse, SentRequest};
use super::session::OpenStream;
use super::stream::AgentReader;
use super::time_limit::{Awaited, by_deadline};
use crate::cause::cause;
use crate::exchange::{Exchange, Flow, Ready};
use crate::gate::Gate;
use crate::inject::{Sending, inject_again};
use crate::upstream::Offer;

impl Forwarding<'_> {
    /// Sends the request on and relays its response.
    pub(super) async fn send(
        &self,
        mut exchange: Exchange<Ready>,
        mut sending: Sending,
        request: Request<'_>,
        mut answer: Answer<'_>,
    ) -> io::Result<After> {
        refuse_if_abandoned(self.gate, &mut exchange, &mut answer).await?;
        exchange.spend_token();
        let Request { head, mut body } = request;
        // The request is looked at as it was judged, and not only as it came: `Connection` may have named the key, so that it ends here.
        if head.asks_for_websocket() && sending.fields.values("sec-websocket-key").count() == 1 {
            return Box::pin(self.websocket(exchange, &sending, body, answer)).await;
        }
        if head.asks_for_what_is_left_out() {
            exchange.record().remark(UPGRADE_LEFT_OUT);
        }
        let mut reuse = reuse_for(&head);
        // Agents that speak HTTP/2 may need it all the way: gRPC does.
        let offer = if head.version == Version::Http2 { Offer::Version2 } else { Offer::Version1 };
        let replay = replayable(&exchange, &body, head.body, self.terms, offer);
        let (mut renewal, mut unread) = (Retry::Allowed, Retry::Allowed);
        loop {
            let sent = {
                let sends = pin!(send::send(self.gate, &mut exchange, &sending, head.body, offer, reuse));
                tokio::select! {
                    biased;
                    sent = by_deadline(self.deadline, Awaited::Answer, sends) => Ok(sent),
                    why = answer.abandoned() => Err(why),
                }
            };
            let sent = match sent {
                Ok(Ok(sent)) => sent,
                Err(why) => {
                    exchange.record().fail(&cause(&why));
                    return Err(why);
                }
                Ok(Err(error)) => {
                    let after = Box::pin(self.unreachable(exchange, &error, answer)).await;
                    body.settle().await;
                    return after;
                }
            };
            exchange.mark_sent();
            let attempt = Attempt { sending: &sending, length: head.body, replay: &replay, renewal, unread };
            let held = exchange.held().cloned();
            match self.relay(exchange, attempt, body, sent, answer).await? {
                Relayed::Answered { after, status } => {
                    self.after_unauthorized(held, status, attempt).await;
                    return Ok(after);
                }
                Relayed::Unread(unanswered) => {
                    Unanswered { answer, exchange } = *unanswered;
                    unread = Retry::Used;
                    reuse = Reuse::Forbidden;
                }
                Relayed::Unauthorized { unanswered, renewed } => {
                    Unanswered { answer, exchange } = *unanswered;
                    renewal = Retry::Used;
                    match inject_again(&mut exchange, self.gate, renewed.credential, self.target) {
                        Ok(injected) => sending = injected,
                        Err(denial) => {
                            exchange.record().status(UNAUTHORIZED);
                            if let Some(refused) = exchange.held() {
                                self.gate.credentials().report_refused(refused.provider()).await;
                            }
                            let status = status_of(&denial, self.gate.policy());
                            return Box::pin(self.refuse(exchange, denial, status, answer)).await;
                        }
                    }
                    renewed.token.spend();
                }
            }
            sending.fields.remove("expect"); // it was met: the body is at hand
            body = Incoming::Whole(replay.body());
        }
    }

    /// Relays the body and the response of one attempt at the same time.
    async fn relay<'r>(
        &self,
        mut exchange: Exchange<Ready>,
        attempt: Attempt<'_>,
        mut body: Incoming<'_, AgentReader>,
        sent: SentRequest,
        answer: Answer<'r>,
    ) -> io::Result<Relayed<'r>> {
        let held = exchange.held().cloned();
        let handling = self.handling(&exchange, attempt, held.as_deref());
        let provider = exchange.grant().provider().cloned();
        let flow = Flow::of(exchange.record(), 0);
        let mut connection = None;
        let stream = sent.stream();
        let (mut outgoing, pending) = sent.open(attempt.length, &mut connection, stream.as_ref());
        let body_comes = answer.body_comes();
        body_comes.set(body.whole().is_none());
        let progress = Progress::begin(&flow.received);
        let trailers = Cell::new(Trailers::PassedOn);
        // Pinned where they are made: `respond` is three kilobytes, which a move would copy.
        let mut outcome = {
            let sends = pin!(async {
                let provider = provider.as_deref();
                let pumped =
                    pump(&mut body, &mut outgoing, provider, self.target, attempt.replay, &flow.sent).await;
                body_comes.set(body_comes.get() && pumped.is_err());
                pumped.map(|became| trailers.set(became))
            });
            let responds = pin!(respond(pending, handling, answer, &progress));
            race(sends, responds, &progress).await
        };
        let Progress { is_sent, status, holds_message, .. } = progress;
        drop((outgoing, flow));
        if trailers.get() == Trailers::LeftOut {
            exchange.record().remark(TRAILERS_LEFT_OUT);
        }
        if outcome.is_err() && holds_message.get() {
            exchange.record().remark(MESSAGE_HELD_BACK);
        }
        if let Ok(Responded::Answered { after, reusable, .. }) = &mut outcome {
            if !body.is_done() {
                *after = After::Close; // what is left of the body would be taken for the next request
            }
            *reusable &= is_sent.get() && send::is_reusable_after(attempt.length);
        }
        self.recycle(&exchange, attempt, connection, stream, &outcome);
        let relayed = self.settle(exchange, attempt, status.get(), outcome).await;
        if matches!(relayed, Ok(Relayed::Answered { status: None | Some(NO_SUCCESS..), .. })) {
            body.settle().await;
        }
        relayed
    }

    /// Keeps a connection of HTTP/1 that can carry another request; tells the pool whether a session of HTTP/2 still works.
    fn recycle(
        &self,
        exchange: &Exchange<Ready>,
        attempt: Attempt<'_>,
        connection: Option<Connection>,
        stream: Option<OpenStream>,
        outcome: &io::Result<Responded<'_>>,
    ) {
        if let Some(stream) = stream {
            let failure = match outcome {
                Ok(Responded::Failed(_, Failure::Broken(error))) | Err(error) => Some(error),
                Ok(_) => None,
            };
            pooled::report_session(self.gate, &stream, failure);
        } else if let (Some(connection), Ok(Responded::Answered { reusable: true, .. })) =
            (connection, outcome)
        {
            send::keep_connection(self.gate, exchange, attempt.sending.scheme, connection);
        }
    }
}

/// Refuses a request that the agent abandoned while it waited for its turn.
async fn refuse_if_abandoned(
    gate: &Gate,
    exchange: &mut Exchange<Ready>,
    answer: &mut Answer<'_>,
) -> io::Result<()> {
    let reset = tokio::select! {
        biased;
        error = answer.abandoned() => Some(error),
        () = std::future::ready(()) => None,
    };
    let waited = exchange.is_counted() && gate.ledger().lets_wait();
    let hung_up =
        || (waited && answer.has_hung_up()).then(|| Abandoned::because(&"its connection has ended"));
    match reset.or_else(hung_up) {
        None => Ok(()),
        Some(error) => {
            exchange.record().fail(&cause(&error));
            Err(error)
        }
    }
}

/// Whether a request may be sent over a connection that was used before: only if it may be repeated.
fn reuse_for(head: &RequestHead) -> Reuse {
    match send::is_repeatable(head.method.as_str(), head.body) {
        true => Reuse::Allowed,
        false => Reuse::OfSessions,
    }
}

/// Returns what will hold the request's body for another attempt.
fn replayable(
    exchange: &Exchange<Ready>,
    body: &Incoming<'_, AgentReader>,
    length: BodyLength,
    terms: Terms,
    offer: Offer,
) -> ReplayBuffer {
    match body.whole() {
        _ if terms.body_holds_credential => ReplayBuffer::disabled(),
        Some(whole) => ReplayBuffer::whole(whole),
        // Without a credential there is no other one to try, and HTTP/1 gives nothing back unread.
        None if exchange.held().is_none() && offer == Offer::Version1 => ReplayBuffer::disabled(),
        None => ReplayBuffer::recording(length),
    }
}

/// What the record says of a request for another protocol.
const UPGRADE_LEFT_OUT: &str = "its `Upgrade` was left out: no other protocol than WebSocket is switched to";

/// What the record says of a request with trailers that went to its upstream by HTTP/1, whatever else that speaks.
const TRAILERS_LEFT_OUT: &str =
    "its trailers were left out: it went to the upstream by HTTP/1; send these fields in its head";

/// What the record says of a stream of messages that the agent gave up, perhaps because it waited for what was held back.
const MESSAGE_HELD_BACK: &str = "the end of a message was held back until the next one: \
    with `grpc = true` its provider has each passed on as it ends";

/// From this status on an answer says that nothing came of the request here, and its sender does not send the rest of the body.
const NO_SUCCESS: u16 = 300;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::Duration;

    use bytes::BytesMut;
    use policy::{Host, Plane, Port, Scheme};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream, UnixStream};
    use tokio::task::LocalSet;

    use super::*;
    use crate::fixture::{gate_for, options_for, records_in};
    use crate::http::chunk::ChunkSyntax;
    use crate::http::head::Buffered;
    use crate::http::incoming::Framing;
    use crate::http::request::Via;
    use crate::http::serve1::serve_requests;
    use crate::http::stream::AgentStream;
    use crate::{CredentialConfig, GateOptions, PlatformPlace, SigningKey};

    const MINUTE: Duration = Duration::from_secs(60);

    /// What an agent reads that sends a request with a body of this length, and the records. `sends` and `serves` get the connections
    /// behind the head of the request.
    async fn exchanged<A: Future<Output = UnixStream>, U: Future<Output = ()>>(
        length: usize,
        sends: impl FnOnce(UnixStream) -> A,
        serves: impl FnOnce(Buffered<TcpStream>) -> U,
    ) -> (String, String) {
        exchanged_saying("Connection: close\r\n", length, sends, serves).await
    }

    /// The same, with these fields in the request's head.
    async fn exchanged_saying<A: Future<Output = UnixStream>, U: Future<Output = ()>>(
        fields: &str,
        length: usize,
        sends: impl FnOnce(UnixStream) -> A,
        serves: impl FnOnce(Buffered<TcpStream>) -> U,
    ) -> (String, String) {
        let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = upstream.local_addr().unwrap();
        let mut audit = tempfile::tempfile().unwrap();
        let rule = format!("[egress]\nallow = [{{ url = \"http://{at}/*\" }}]\n");
        let gate = gate_for(&rule, Vec::new(), Some(audit.try_clone().unwrap()));
        let (ours, mut agent) = UnixStream::pair().unwrap();
        let agent = async {
            let head = format!(
                "POST http://{at}/ HTTP/1.1\r\nHost: {at}\r\nContent-Length: {length}\r\n{fields}\r\n"
            );
            agent.write_all(head.as_bytes()).await.unwrap();
            let mut read = Vec::new();
            let _ = sends(agent).await.read_to_end(&mut read).await;
            String::from_utf8(read).unwrap()
        };
        let serves = async {
            let mut stream = Buffered::new(upstream.accept().await.unwrap().0);
            stream.read_head(MINUTE, MINUTE, |_, _| false).await.unwrap();
            serves(stream).await;
        };
        let served = serve_requests(Rc::clone(&gate), Via::Proxy, AgentStream::Unix(ours), BytesMut::new());
        let (read, ..) = LocalSet::new().run_until(async { tokio::join!(agent, serves, served) }).await;
        gate.close().unwrap();
        let records = records_in(&mut audit);
        (read, records)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_late_once_the_whole_request_was_sent() {
        for (thinks, answered) in [(4, "HTTP/1.1 204 "), (6, "HTTP/1.1 504 ")] {
            let sends = async |mut agent: UnixStream| {
                // Longer than an answer may take to begin.
                for _ in 0..10 {
                    tokio::time::sleep(MINUTE).await;
                    agent.write_all(b"x").await.unwrap();
                }
                agent
            };
            let serves = async |mut upstream: Buffered<TcpStream>| {
                while upstream.ahead.len() < 10 {
                    assert_eq!(upstream.fill(2 * MINUTE).await.unwrap(), 1);
                }
                tokio::time::sleep(thinks * MINUTE).await;
                let _ = upstream.reader.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
            };
            let (read, _) = exchanged(10, sends, serves).await;
            assert!(read.starts_with(answered), "{thinks}: {read}");
        }
    }

    #[tokio::test]
    async fn the_status_of_an_answer_that_breaks_off_is_recorded() {
        let serves = async |mut upstream: Buffered<TcpStream>| {
            upstream
                .reader
                .write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 9\r\n\r\nhalf")
                .await
                .unwrap();
        };
        let (read, records) = exchanged(0, async |agent| agent, serves).await;
        assert!(read.starts_with("HTTP/1.1 201 "), "{read}");
        let record = records.lines().find(|line| line.contains("\"POST\"")).unwrap();
        assert!(record.contains("\"failed\"") && record.contains("\"status\":201"), "{record}");
    }

    #[tokio::test]
    async fn an_answer_that_came_and_cannot_be_used_is_called_so() {
        let large = format!("HTTP/1.1 200 OK\r\nX-Long: {}\r\n\r\n", "x".repeat(17 * 1024));
        for (answer, why) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "is ambiguous"),
            ("HTTP/1.1 200 OK\nX: 1\n\n", "does not end in CRLF"),
            ("HTTP/1.1 200 OK\r\nX(: 1\r\n\r\n", "is malformed"),
            (&large, "is larger than 16 KiB"),
        ] {
            let serves = async |mut upstream: Buffered<TcpStream>| {
                upstream.reader.write_all(answer.as_bytes()).await.unwrap();
            };
            let (read, _) = exchanged(0, async |agent| agent, serves).await;
            let title = "\"title\":\"The upstream's answer cannot be used\"";
            assert!(
                read.starts_with("HTTP/1.1 502 ") && read.contains(title) && read.contains(why),
                "{read}"
            );
        }
    }

    #[tokio::test]
    async fn an_agent_gets_trailers_if_it_says_that_it_takes_them() {
        for (fields, end) in [
            ("Connection: close, TE\r\nTE: trailers\r\n", "\r\n0\r\nx-sum: 1\r\n\r\n"),
            ("Connection: close\r\n", "\r\n0\r\n\r\n"),
        ] {
            let serves = async |mut upstream: Buffered<TcpStream>| {
                let answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                    4\r\nbody\r\n0\r\nX-Sum: 1\r\nContent-Length: 7\r\nConnection: x-private\r\nX-Private: 1\r\n\r\n";
                upstream.reader.write_all(answer).await.unwrap();
            };
            let (read, _) = exchanged_saying(fields, 0, async |agent| agent, serves).await;
            assert!(read.ends_with(&format!("\r\n\r\n4\r\nbody{end}")), "{read}");
        }
    }

    #[tokio::test]
    async fn a_switch_to_another_protocol_is_left_out_and_told() {
        for (protocol, is_told) in [("tcp", true), ("h2c", false)] {
            let fields = format!("Connection: Upgrade\r\nUpgrade: {protocol}\r\n");
            let serves = async |mut upstream: Buffered<TcpStream>| {
                let answer =
                    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n";
                upstream.reader.write_all(answer).await.unwrap();
            };
            let (read, records) = exchanged_saying(&fields, 0, async |agent| agent, serves).await;
            assert!(
                read.starts_with("HTTP/1.1 502 ") && read.contains("an `Upgrade` of the request"),
                "{read}"
            );
            assert_eq!(records.contains("its `Upgrade` was left out"), is_told, "{records}");
        }
    }

    /// Answers each connection's one request, until it is dropped.
    async fn answers(listener: TcpListener, mut answer: impl FnMut(String) -> String) {
        loop {
            let mut stream = Buffered::new(listener.accept().await.unwrap().0);
            let head = stream.read_head(MINUTE, MINUTE, |_, _| false).await.unwrap().unwrap();
            let answer = answer(String::from_utf8(head.to_vec()).unwrap());
            stream.reader.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    const OURS: &str = "lgph_0123456789abcdefghijklmnopqrstuvwxyz";

    /// What came of a request with a credential.
    struct Exchanged {
        gate: Rc<Gate>,
        /// What the agent read.
        read: String,
        /// How often the upstream was asked.
        sent: usize,
        /// How often the platform was asked.
        fetched: usize,
        /// How often it was told that a fresh credential was refused.
        reported: usize,
        records: String,
    }

    /// Sends a request of a run whose only provider, with these settings besides, is bound to an upstream that answers 401 once and then
    /// 200. The platform has these fields, one after the other.
    async fn exchanged_with(
        settings: &str,
        fields: &[&str],
        asks: impl FnOnce(SocketAddr) -> (Via, String),
    ) -> Exchanged {
        let [upstream, platform] = [(); 2].map(|()| async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            (listener.local_addr().unwrap(), listener)
        });
        let ((at, upstream), (platform_at, platform)) = tokio::join!(upstream, platform);
        let mut audit = tempfile::tempfile().unwrap();
        let policy = format!(
            "[[provider]]\nid = \"one\"\nauthorized_uris = [\"http://{at}/*\"]\n{settings}\n\
             [egress]\ndeny = [{{ url = \"http://{at}/admin*\" }}, {{ url = \"http://{at}/v1/admin*\" }}]\n"
        );
        let platform_at = PlatformPlace::Address(
            format!("http://{platform_at}").parse().unwrap(),
            credential::Secret::from_text("token".into()).try_into().unwrap(),
        );
        let gate = Gate::open(GateOptions {
            audit: Some((Arc::new(audit.try_clone().unwrap()), SigningKey::generate().unwrap().0)),
            credential_config: CredentialConfig {
                platform: Some(platform_at),
                placeholders: vec![(OURS.parse().unwrap(), "one".parse().unwrap())],
                ..CredentialConfig::default()
            },
            ..options_for(&policy)
        })
        .unwrap();
        let (via, request) = asks(at);
        let (ours, mut agent) = UnixStream::pair().unwrap();
        let agent = async {
            agent.write_all(request.as_bytes()).await.unwrap();
            let mut read = String::new();
            agent.read_to_string(&mut read).await.unwrap();
            read
        };
        let (mut sent, mut fetched, mut reported) = (0, 0, 0);
        let read = {
            let upstream = answers(upstream, |_| {
                sent += 1;
                let status = if sent == 1 { "401 Unauthorized" } else { "200 OK" };
                format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            });
            let platform = answers(platform, |question| {
                if question.starts_with("POST /internal/credentials/one/refused ") {
                    reported += 1;
                    return "HTTP/1.1 204 No Content\r\n\r\n".to_owned();
                }
                let body = format!("{{\"fields\":{}}}", fields[fetched]);
                fetched += 1;
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            });
            let served = serve_requests(Rc::clone(&gate), via, AgentStream::Unix(ours), BytesMut::new());
            let exchanged = async { tokio::join!(agent, served).0 };
            LocalSet::new()
                .run_until(async {
                    tokio::select! {
                        read = exchanged => read,
                        _ = async { tokio::join!(upstream, platform) } => unreachable!("they go on"),
                    }
                })
                .await
        };
        gate.close().unwrap();
        let records = records_in(&mut audit);
        Exchanged { gate, read, sent, fetched, reported, records }
    }

    const IN_A_HEADER: &str = "inject = { header = \"x-key\", value = \"{{access_token}}\" }\n";

    #[tokio::test]
    async fn a_second_attempt_takes_its_share_of_a_rate() {
        for (burst, attempts, answered) in [(1, 1, "401"), (2, 2, "200")] {
            let settings = format!("rate = {{ requests_per_minute = 1, burst = {burst} }}\n{IN_A_HEADER}");
            let keys = ["{\"access_token\":\"key-number-1\"}", "{\"access_token\":\"key-number-2\"}"];
            let Exchanged { read, sent, fetched, .. } = exchanged_with(&settings, &keys, |at| {
                let get = format!("GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n");
                (Via::Proxy, get)
            })
            .await;
            assert!(read.starts_with(&format!("HTTP/1.1 {answered} ")), "{read}");
            // The credential is fetched anew either way: without a second attempt it counts from the next request on.
            assert_eq!((sent, fetched), (attempts, 2), "{read}");
        }
    }

    #[tokio::test]
    async fn a_request_is_not_sent_again_with_a_credential_that_the_upstream_refused() {
        let settings = format!("rate = {{ requests_per_minute = 1, burst = 2 }}\n{IN_A_HEADER}");
        let fields = ["{\"access_token\":\"key-number-1\"}", "{\"other\":\"key-number-2\"}"];
        let Exchanged { gate, read, sent, reported, records, .. } =
            exchanged_with(&settings, &fields, |at| {
                let head = format!("POST http://{at}/ HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n");
                (Via::Proxy, format!("{head}Content-Length: 5\r\n\r\nonce!"))
            })
            .await;
        let why = "the upstream refused the credential, and the one fetched anew does not fit: \
            the credential of `one` has no field `access_token`";
        assert!(read.starts_with("HTTP/1.1 400 ") && read.contains(why), "{read}");
        let record = records.lines().find(|line| line.contains("\"POST\"")).unwrap();
        for told in [why, "\"denied\"", "\"placeholder_unresolved\"", "\"status\":401"] {
            assert!(record.contains(told), "{told}: {record}");
        }
        assert_eq!((sent, reported), (1, 1));
        // What was not sent used up nothing of the rate.
        let provider = gate.policy().providers().next().unwrap();
        gate.rates().admit(provider, std::time::Instant::now).unwrap().spend();
        assert!(gate.rates().admit(provider, std::time::Instant::now).is_err());
    }

    #[tokio::test]
    async fn a_value_leads_no_request_to_where_a_rule_denies_it() {
        const GUEST: &str = "{\"access_token\":\"guest\"}";
        const OTHER: &str = "{\"access_token\":\"other\"}";
        const ADMIN: &str = "{\"access_token\":\"admin\"}";
        type Asks = fn(SocketAddr) -> (Via, String);
        let planes: [(&str, Asks); 7] = [
            ("forward", |at| (Via::Proxy, format!("GET http://{at}/{OURS} HTTP/1.1\r\nHost: {at}\r\n"))),
            ("transparent", |at| {
                let (host, port) = (Host::Address(at.ip()), Port::new(at.port()).unwrap());
                let via = Via::Bound { plane: Plane::Transparent, scheme: Scheme::Http, host, port };
                (via, format!("GET /{OURS} HTTP/1.1\r\nHost: {at}\r\n"))
            }),
            ("gateway", |at| (Via::Gateway, format!("GET http://{at}/{OURS} HTTP/1.1\r\nHost: {at}\r\n"))),
            ("/proxy, by a placeholder", |at| {
                (
                    Via::Gateway,
                    format!("GET /proxy HTTP/1.1\r\nX-Provider: one\r\nX-Target: http://{at}/{OURS}\r\n"),
                )
            }),
            ("/proxy, by a template", |at| {
                let target = format!("http://{at}/{{{{access_token}}}}");
                (Via::Gateway, format!("GET /proxy HTTP/1.1\r\nX-Provider: one\r\nX-Target: {target}\r\n"))
            }),
            ("/llm", |_| (Via::Gateway, format!("GET /llm/v1/{OURS} HTTP/1.1\r\n"))),
            ("a header by which servers take another path", |at| {
                let head = format!("GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\nX-Original-URL: /{OURS}\r\n");
                (Via::Proxy, head)
            }),
        ];
        for (plane, asks) in planes {
            for (fields, answered, attempts) in
                [(&[ADMIN][..], "403", 0), (&[GUEST, ADMIN], "403", 1), (&[GUEST, OTHER], "200", 2)]
            {
                let asked = |at| {
                    let (via, head) = asks(at);
                    let host = if head.contains("\r\nHost") { "" } else { "Host: gate\r\n" };
                    (via, format!("{head}{host}Connection: close\r\n\r\n"))
                };
                let settings = "placeholders = \"anywhere\"\nllm = \"openai\"\n";
                let Exchanged { read, sent, records, .. } = exchanged_with(settings, fields, asked).await;
                assert!(read.starts_with(&format!("HTTP/1.1 {answered} ")), "{plane} {fields:?}: {read}");
                assert_eq!(sent, attempts, "{plane} {fields:?}");
                assert_eq!(
                    records.contains("\"deny_rule\""),
                    answered == "403",
                    "{plane} {fields:?}: {records}"
                );
                // Nobody is told the value.
                assert!(!read.contains("admin") && !records.contains("admin"), "{plane}: {read} {records}");
            }
        }
    }

    #[tokio::test]
    async fn a_body_is_kept_where_an_upstream_may_give_it_back_unread() {
        let url = "http://127.0.0.1:9/";
        let gate = gate_for(&format!("[egress]\nallow = [{{ url = \"{url}*\" }}]\n"), Vec::new(), None);
        let exchange = crate::exchange::tests::ready(&gate, url).await;
        let (reader, _writer) = AgentStream::Unix(UnixStream::pair().unwrap().0).split();
        let mut reader = Buffered::new(reader);
        let length = BodyLength::Sized(5);
        let framing = Framing::of(length, ChunkSyntax::Strict);
        let body = Incoming::Version1 { reader: &mut reader, framing };
        let kept = |offer| {
            let replay = replayable(&exchange, &body, length, Terms::default(), offer);
            replay.record(b"hello");
            replay.mark_complete();
            replay.is_complete()
        };
        assert!(kept(Offer::Version2) && !kept(Offer::Version1));
    }
}
