//! Sends a request to an upstream, over HTTP/1 or HTTP/2, and awaits its response.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use policy::Scheme;

use super::chunk::ChunkSyntax;
use super::fields::Fields;
use super::head::{BodyLength, Buffered};
use super::incoming::{Framing, Incoming};
use super::interim::InterimAnswers;
use super::media_type::MediaType;
use super::outgoing::{Outgoing, TransferCoding, write_within_limit};
use super::response::{FIRST_OCTET, ResponseBody, ResponseHead, has_no_body};
use super::session::{OpenStream, PendingHead, RequestSender};
use super::version2;
use crate::exchange::{Exchange, Ready};
use crate::gate::Gate;
use crate::inject::Sending;
use crate::patience::within_once;
use crate::upstream::{Link, Offer, Upstream, UpstreamReader, UpstreamWriter};

/// Which connections that are open already a request may be sent over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reuse {
    /// All. The upstream may have closed one, which only sending shows: the request must then be repeatable.
    Allowed,
    /// Sessions of HTTP/2 alone, which tell whether the upstream took the request.
    OfSessions,
    /// None: the upstream has left the request unread on one, and might do the same on others.
    Forbidden,
}

/// A request whose head has been sent, or is about to be.
pub(super) enum SentRequest {
    /// `waiting` holds the head if it is still to be written; otherwise the response has begun.
    Version1 { reader: Buffered<UpstreamReader>, writer: UpstreamWriter, waiting: Vec<u8> },
    /// The stream of the request is open.
    Version2 { body: Option<h2::SendStream<Bytes>>, response: PendingHead, stream: OpenStream },
}

/// Finds or opens a connection, and sends the head of a request over it.
pub(super) async fn send(
    gate: &Gate,
    exchange: &mut Exchange<Ready>,
    sending: &Sending,
    body: BodyLength,
    offer: Offer,
    reuse: Reuse,
) -> io::Result<SentRequest> {
    if offer == Offer::Version2
        && reuse != Reuse::Forbidden
        && let Some(sent) = over_pooled_session(gate, exchange, sending, body)
    {
        return Ok(sent);
    }
    if reuse == Reuse::Allowed
        && let Some(sent) = over_pooled_connection(gate, exchange, sending, body).await?
    {
        return Ok(sent);
    }
    // Boxed: most requests find a connection that is open, and need no room for opening one.
    let opened = Box::pin(Upstream::open(gate, exchange, sending.scheme, offer)).await?;
    match Box::pin(Link::over(opened)).await? {
        Link::Version1(reader, writer) => {
            let waiting = request_head(sending, body, None);
            exchange.record().count(waiting.len() as u64, 0);
            Ok(SentRequest::Version1 { reader, writer, waiting })
        }
        Link::Version2(session) => {
            gate.pool().share(exchange, sending.scheme, &session);
            over_session(session, gate, exchange, sending, body)
        }
    }
}

/// Sends a request over a session of HTTP/2 that is open already. None if there is none that has room for it, or the session has ended:
/// it then took nothing of the request.
fn over_pooled_session(
    gate: &Gate,
    exchange: &mut Exchange<Ready>,
    sending: &Sending,
    body: BodyLength,
) -> Option<SentRequest> {
    let session = gate.pool().session(exchange, sending.scheme)?;
    over_session(session, gate, exchange, sending, body).ok()
}

/// Sends a request over a session of HTTP/2. Forgets a session that does not take it.
fn over_session(
    mut session: RequestSender,
    gate: &Gate,
    exchange: &mut Exchange<Ready>,
    sending: &Sending,
    body: BodyLength,
) -> io::Result<SentRequest> {
    let sent = send_version_2(&mut session, sending, body);
    match &sent {
        Ok(_) => exchange.record().count(head_size(sending), 0),
        Err(_) => gate.pool().forget(&session.count_stream()),
    }
    sent
}

/// Sends a request over a connection of HTTP/1 that was used before. None if there is none, or the upstream has closed it.
///
/// # Errors
/// The upstream does not answer in time. It may act on the request, which is therefore not sent twice.
async fn over_pooled_connection(
    gate: &Gate,
    exchange: &mut Exchange<Ready>,
    sending: &Sending,
    body: BodyLength,
) -> io::Result<Option<SentRequest>> {
    let Some(Link::Version1(mut reader, mut writer)) = gate.pool().take(exchange, sending.scheme) else {
        return Ok(None);
    };
    let wire = request_head(sending, body, None);
    if write_within_limit(&mut writer, &wire).await.is_err() {
        return Ok(None);
    }
    match reader.fill(FIRST_OCTET).await {
        Ok(1..) => {
            exchange.record().count(wire.len() as u64, 0);
            Ok(Some(SentRequest::Version1 { reader, writer, waiting: Vec::new() }))
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(error),
        Ok(0) | Err(_) => Ok(None),
    }
}

fn send_version_2(
    session: &mut RequestSender,
    sending: &Sending,
    body: BodyLength,
) -> io::Result<SentRequest> {
    let uri = http::Uri::builder()
        .scheme(sending.scheme.as_str())
        .authority(sending.authority.as_str())
        .path_and_query(sending.origin_form.as_str())
        .build()
        .map_err(io::Error::other)?;
    let mut request = http::Request::builder()
        .method(sending.method.as_str())
        .uri(uri)
        .body(())
        .map_err(io::Error::other)?;
    let mut fields = sending.fields.clone();
    if let BodyLength::Sized(size) = body {
        fields.push("content-length", size.to_string().as_bytes());
    }
    if sending
        .fields
        .text("content-type")
        .map(MediaType::of)
        .is_some_and(|kind| kind.begins_with("application/grpc"))
    {
        fields.set("te", b"trailers"); // gRPC requires it, and it concerns this hop alone
    }
    *request.headers_mut() = version2::header_map(&fields)?;
    let (response, body) = session.send(request, body)?;
    Ok(SentRequest::Version2 { body, response, stream: session.count_stream() })
}

/// Returns the size of a head over HTTP/2, before it is compressed.
fn head_size(sending: &Sending) -> u64 {
    let Sending { method, authority, origin_form, fields, .. } = sending;
    let fields: usize = fields.iter().map(|(name, value)| name.len() + value.len()).sum();
    (method.as_str().len() + authority.len() + origin_form.len() + fields) as u64
}

/// Returns a request head in its one form: origin-form, our `Host`, no hop-by-hop fields, one statement of length.
pub(super) fn request_head(sending: &Sending, body: BodyLength, upgrade: Option<&str>) -> Vec<u8> {
    let Sending { method, authority, origin_form, fields, .. } = sending;
    let mut out = Vec::with_capacity(512);
    for part in [method.as_str(), " ", origin_form, " HTTP/1.1\r\nhost: ", authority, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    fields.write(&mut out);
    match body {
        BodyLength::None if expects_body(method.as_str()) => {
            out.extend(b"content-length: 0\r\n");
        }
        BodyLength::None => {}
        BodyLength::Sized(size) => out.extend(format!("content-length: {size}\r\n").bytes()),
        BodyLength::Chunked => out.extend(b"transfer-encoding: chunked\r\n"),
    }
    if !is_reusable_after(body) {
        out.extend(b"connection: close\r\n");
    }
    if let Some(protocol) = upgrade {
        out.extend(format!("connection: upgrade\r\nupgrade: {protocol}\r\n").bytes());
    }
    out.extend(b"\r\n");
    out
}

/// Whether some server waits for the length of a body that is not there (RFC 9110 §8.6), also one that reads methods without their case.
fn expects_body(method: &str) -> bool {
    ["POST", "PUT", "PATCH"].iter().any(|it| method.eq_ignore_ascii_case(it))
}

/// A connection of HTTP/1.
pub(super) struct Connection {
    reader: Buffered<UpstreamReader>,
    writer: UpstreamWriter,
}

impl SentRequest {
    /// Returns its stream of HTTP/2, to be held until the response is over and the pool was told.
    pub(super) fn stream(&self) -> Option<OpenStream> {
        match self {
            Self::Version1 { .. } => None,
            Self::Version2 { stream, .. } => Some(Rc::clone(stream)),
        }
    }

    /// Returns where the request's body goes and where the response comes from. A connection of HTTP/1 is left in `connection`, to be
    /// used again.
    pub(super) fn open(
        self,
        length: BodyLength,
        connection: &mut Option<Connection>,
    ) -> (Outgoing<'_, UpstreamWriter>, PendingResponse<'_>) {
        match self {
            Self::Version1 { reader, writer, waiting } => {
                let Connection { reader, writer } = connection.insert(Connection { reader, writer });
                let coding = match length {
                    BodyLength::Chunked => TransferCoding::Chunked,
                    BodyLength::None | BodyLength::Sized(_) => TransferCoding::Identity,
                };
                (Outgoing::Version1 { writer, coding, waiting }, PendingResponse::Version1(reader))
            }
            Self::Version2 { body, response, .. } => {
                let outgoing = body.map_or(Outgoing::Nothing, Outgoing::Version2);
                (outgoing, PendingResponse::Version2(response))
            }
        }
    }
}

/// A response that has not come yet.
pub(super) enum PendingResponse<'a> {
    Version1(&'a mut Buffered<UpstreamReader>),
    Version2(PendingHead),
}

/// A response whose head has arrived.
pub(super) struct UpstreamResponse<'a> {
    pub(super) head: ResponseHead,
    pub(super) length: ResponseBody,
    pub(super) body: Incoming<'a, UpstreamReader>,
}

impl<'a> PendingResponse<'a> {
    /// Awaits the final response to a request of the given method; interim ones go to `interim`. The time that an upstream has counts
    /// from when the whole request `is_sent`: until then it may be waiting for the rest.
    pub(super) async fn receive(
        self,
        method: &str,
        is_sent: &Cell<bool>,
        mut interim: InterimAnswers<'_, '_>,
    ) -> io::Result<UpstreamResponse<'a>> {
        match self {
            Self::Version1(reader) => {
                let head = interim.read_final(reader, is_sent).await?;
                UpstreamResponse::of_version_1(head, reader, method)
            }
            Self::Version2(mut response) => {
                let received = interim.until_final(async || poll_fn(|cx| response.poll_next(cx)).await);
                let response = within_once(|| is_sent.get(), FIRST_OCTET, received).await?;
                UpstreamResponse::of_version_2(response, method, is_sent.get())
            }
        }
    }
}

impl<'a> UpstreamResponse<'a> {
    /// Creates the response to a request of the given method, whose body follows its head.
    pub(super) fn of_version_1(
        head: ResponseHead,
        reader: &'a mut Buffered<UpstreamReader>,
        method: &str,
    ) -> io::Result<Self> {
        let length = head.body(method).map_err(io::Error::other)?;
        let framing = match length {
            ResponseBody::Framed(length) => Framing::of(length, ChunkSyntax::Lenient),
            ResponseBody::ToEnd => Framing::ToEnd,
        };
        Ok(Self { head, length, body: Incoming::Version1 { reader, framing } })
    }

    fn of_version_2(
        response: http::Response<h2::RecvStream>,
        method: &str,
        is_sent: bool,
    ) -> io::Result<Self> {
        let (parts, stream) = response.into_parts();
        let head = ResponseHead::of_version_2(&parts)?;
        let length = if stream.is_end_stream() {
            ResponseBody::Framed(BodyLength::None)
        } else {
            match head.body(method).map_err(io::Error::other)? {
                ResponseBody::ToEnd => ResponseBody::Framed(BodyLength::Chunked),
                framed => framed,
            }
        };
        // As over HTTP/1, such an answer ends with its head, whether or not the upstream ends the stream. Without the stream the rest of a
        // request would not be sent.
        let is_over = is_sent && has_no_body(method, head.status);
        let body = if is_over { Incoming::Whole(None) } else { Incoming::Version2(stream) };
        Ok(Self { head, length, body })
    }
}

/// Whether a connection of HTTP/1 may be used again after a request with such a body. Some servers do not read a body that they did
/// not expect, and take it for a request: no other request follows it, and the upstream is told to close.
pub(super) fn is_reusable_after(body: BodyLength) -> bool {
    body == BodyLength::None
}

/// Keeps a connection in the pool for the next request.
pub(super) fn keep_connection(
    gate: &Gate,
    exchange: &Exchange<Ready>,
    scheme: Scheme,
    Connection { reader, writer }: Connection,
) {
    if reader.ahead.is_empty() {
        gate.pool().keep(exchange, scheme, Link::Version1(reader, writer));
    }
}

/// Tells the pool what came of a request on a stream of HTTP/2; forgets a session that failed, or gave the request back.
pub(super) fn report_session(gate: &Gate, stream: &OpenStream, failure: Option<&io::Error>) {
    match failure {
        None => gate.pool().heard(stream),
        Some(error) if version2::is_of_session(error) || version2::is_unprocessed(error) => {
            gate.pool().forget(stream);
        }
        Some(_) => {}
    }
}

/// Removes hop-by-hop fields from trailers.
pub(super) fn without_hop_fields(mut trailers: Fields) -> Fields {
    trailers.leave_hop();
    trailers
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::exchange::tests::ready;
    use crate::http::answer::{Answer, Extent};
    use crate::http::head::Version;
    use crate::http::interim::MOST_INTERIM;
    use crate::http::session;
    use crate::http::stream::AgentStream;
    use crate::local_addresses::tests::gate_for;

    /// The result of a response over HTTP/2 behind this many interim ones, and how many of those the agent was sent.
    async fn after(interims: usize, status: u16) -> (io::Result<u16>, usize) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let upstream = async move {
            let mut connection = h2::server::handshake(theirs).await.unwrap();
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            let head = |status: u16| http::Response::builder().status(status).body(()).unwrap();
            for _ in 0..interims {
                respond.send_informational(head(status)).unwrap();
            }
            // The stream is reset by now if an interim response was refused.
            let _ = respond.send_response(head(204), true);
            while connection.accept().await.is_some() {}
        };
        let agent = async move {
            let mut session = session::over(ours).await.unwrap();
            let request = http::Request::builder().uri("https://a.example/").body(()).unwrap();
            let (response, _) = session.send(request, BodyLength::None).unwrap();
            let (agent, mut seen) = tokio::net::UnixStream::pair().unwrap();
            let (_reader, mut writer) = AgentStream::Unix(agent).split();
            let mut answer = Answer::Version1 {
                writer: &mut writer,
                version: Version::Http11,
                keep_alive: true,
                extent: Extent::Whole,
            };
            let arrived = PendingResponse::Version2(response)
                .receive("GET", &Cell::new(true), InterimAnswers::passed_on(&mut answer, None))
                .await;
            let status = arrived.map(|arrived| arrived.head.status);
            drop((_reader, writer));
            let mut told = String::new();
            seen.read_to_string(&mut told).await.unwrap();
            (status, told.matches("HTTP/1.1 ").count())
        };
        tokio::select! {
            () = upstream => panic!("the upstream ended first"),
            seen = agent => seen,
        }
    }

    #[tokio::test]
    async fn of_answers_before_an_answer_so_many_are_passed_on_over_http_2_too() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                for few in [0, 1, MOST_INTERIM] {
                    let (status, told) = after(few, 103).await;
                    assert_eq!((status.unwrap(), told), (204, few));
                }
                let (status, told) = after(MOST_INTERIM + 1, 103).await;
                assert!(status.is_err() && told == MOST_INTERIM, "{status:?} {told}");
                // A stream of HTTP/2 cannot switch protocols.
                assert!(after(1, 101).await.0.is_err());
            })
            .await;
    }

    #[tokio::test]
    async fn an_answer_without_a_body_ends_with_its_head_whether_or_not_its_stream_does() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let upstream = async move {
            let mut connection = h2::server::handshake(theirs).await.unwrap();
            let mut open = Vec::new();
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let head = http::Response::builder().status(204).body(()).unwrap();
                open.push(respond.send_response(head, false).unwrap());
            }
        };
        let agent = async move {
            let mut session = session::over(ours).await.unwrap();
            let request = http::Request::builder().uri("https://a.example/").body(()).unwrap();
            let (response, _) = session.send(request, BodyLength::None).unwrap();
            let arrived = PendingResponse::Version2(response)
                .receive("GET", &Cell::new(true), InterimAnswers::dropped())
                .await;
            let arrived = arrived.unwrap();
            assert!(arrived.head.status == 204 && arrived.body.is_done());
        };
        let both = async {
            tokio::task::spawn_local(upstream);
            agent.await;
        };
        tokio::task::LocalSet::new().run_until(both).await;
    }

    #[test]
    fn a_body_that_is_not_there_has_its_length_told_where_one_is_usual() {
        let target = policy::Target::parse("http://a.example/").unwrap();
        let tells = |method: &str| {
            let method = policy::Method::parse(method).unwrap();
            let head =
                request_head(&Sending::new(method, &target, Fields::default()), BodyLength::None, None);
            String::from_utf8(head).unwrap().contains("\r\ncontent-length: 0\r\n")
        };
        assert!(["POST", "post", "Put", "patch"].into_iter().all(tells));
        assert!(!["GET", "DELETE", "posts"].into_iter().any(tells));
    }

    #[tokio::test]
    async fn a_request_goes_into_a_session_with_room_and_tells_of_that_one() {
        let url = "http://127.0.0.1:9/";
        let gate = gate_for(&format!("[egress]\nallow = [{{ url = \"{url}*\" }}]\n"), Vec::new(), None);
        let mut exchange = ready(&gate, url).await;
        let peer = exchange.destination().peers().next().unwrap();
        exchange.reach(peer);
        let sending = Sending::new(
            policy::Method::parse("GET").unwrap(),
            &policy::Target::parse(url).unwrap(),
            Fields::default(),
        );
        let (mut sessions, mut connections) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let (ours, theirs) = tokio::io::duplex(4096);
            let (requests, connection) =
                h2::client::Builder::new().initial_max_send_streams(4).handshake(ours).await.unwrap();
            connections.push((connection, theirs));
            sessions.push(RequestSender::uncounted(requests));
            gate.pool().share(&exchange, Scheme::Http, &sessions[sessions.len() - 1]);
        }
        let mut asks = || {
            let sent = over_pooled_session(&gate, &mut exchange, &sending, BodyLength::None)?;
            let stream = sent.stream().unwrap();
            let of = sessions.iter().position(|session| session.has(&stream));
            of.map(|of| (of, stream))
        };
        let (of, first) = asks().unwrap();
        assert_eq!(of, 0);
        let mut full = Vec::new();
        while sessions[0].has_room() {
            full.push(sessions[0].count_stream());
        }
        let (of, second) = asks().unwrap();
        assert_eq!(of, 1);
        // What is of a stream alone ends no session, and what is of a session ends that one.
        report_session(&gate, &second, Some(&io::Error::other("of a stream")));
        report_session(&gate, &first, Some(&io::ErrorKind::TimedOut.into()));
        drop((full, first));
        let (of, third) = asks().unwrap();
        assert_eq!(of, 1);
        report_session(&gate, &third, Some(&io::ErrorKind::ConnectionReset.into()));
        assert!(asks().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_over_http_2_is_late_once_the_whole_request_was_sent_too() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let upstream = async move {
            let mut connection = h2::server::handshake(theirs).await.unwrap();
            let _unanswered = connection.accept().await.unwrap().unwrap();
            while connection.accept().await.is_some() {}
        };
        let agent = async move {
            let mut session = session::over(ours).await.unwrap();
            let request = http::Request::post("https://a.example/").body(()).unwrap();
            let (response, _body) = session.send(request, BodyLength::Chunked).unwrap();
            let (begun, is_sent) = (tokio::time::Instant::now(), Cell::new(false));
            let sends = async {
                tokio::time::sleep(2 * FIRST_OCTET).await;
                is_sent.set(true);
                std::future::pending().await
            };
            let received =
                PendingResponse::Version2(response).receive("POST", &is_sent, InterimAnswers::dropped());
            let ended = tokio::select! {
                biased;
                ended = sends => ended,
                ended = received => ended.map(|response| response.head.status),
            };
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!(begun.elapsed().as_secs(), 3 * FIRST_OCTET.as_secs());
        };
        let both = async {
            tokio::select! {
                () = upstream => panic!("the upstream ended first"),
                () = agent => {}
            }
        };
        tokio::task::LocalSet::new().run_until(both).await;
    }
}
