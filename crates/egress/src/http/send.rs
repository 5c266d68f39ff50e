//! Sends a request to an upstream, over HTTP/1 or HTTP/2, and keeps the connection for the next one.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use policy::Scheme;

use super::head::{BodyLength, Buffered};
use super::media_type::MediaType;
use super::outgoing::{Outgoing, TransferCoding, write_within_limit};
use super::pooled;
use super::response::FIRST_OCTET;
use super::session::{OpenStream, PendingHead, RequestSender, UNTAKEN};
use super::upstream_response::PendingResponse;
use super::version2;
use crate::exchange::{Exchange, Ready};
use crate::gate::Gate;
use crate::inject::Sending;
use crate::upstream::{self, Link, Offer, Upstream, UpstreamReader, UpstreamWriter};

/// How long the kernel of an upstream may leave a request unacknowledged on a connection that was idle for [`QUIET`]. Longer, and the
/// network between has gone.
const UNACKNOWLEDGED: Duration = Duration::from_secs(15);
/// From when on an idle connection may have lost its network unnoticed. One that is busy is spared the calls to the kernel.
const QUIET: Duration = Duration::from_secs(1);

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
        && let Some(sent) = over_pooled_session(gate, exchange, sending, body).await
    {
        return Ok(sent);
    }
    if reuse == Reuse::Allowed
        && let Some(sent) = over_pooled_connection(gate, exchange, sending, body).await?
    {
        return Ok(sent);
    }
    // Boxed: most requests find a connection that is open, and need no room for opening one.
    let opened = Box::pin(upstream::open(gate, exchange, sending.scheme, offer)).await?;
    bound_silence(&opened, body)?;
    match Box::pin(Link::over(opened)).await? {
        Link::Version1(reader, writer) => {
            let waiting = request_head(sending, body, None);
            exchange.record().count(waiting.len() as u64, 0);
            Ok(SentRequest::Version1 { reader, writer, waiting })
        }
        Link::Version2(session) => {
            pooled::share_session(gate, exchange, sending.scheme, &session);
            over_session(session, gate, exchange, sending, body)
        }
    }
}

/// Bounds how long a connection of HTTP/1 that may be kept can be dead unnoticed. The upstream of one for a body may have no room for
/// longer, which counts as well.
fn bound_silence(opened: &Upstream, body: BodyLength) -> io::Result<()> {
    match is_reusable_after(body) && !opened.chose_version_2() {
        true => opened.give_up_after(UNTAKEN),
        false => Ok(()),
    }
}

/// Sends a request over a session of HTTP/2 that is open already. None if there is none that has room for it, or the session has ended:
/// it then took nothing of the request.
async fn over_pooled_session(
    gate: &Gate,
    exchange: &mut Exchange<Ready>,
    sending: &Sending,
    body: BodyLength,
) -> Option<SentRequest> {
    let session = pooled::find_session(gate, exchange, sending.scheme, body).await?;
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
        Ok(_) => exchange.record().count(head_size(sending) as u64, 0),
        Err(_) => gate.pool().forget(&session.count_stream()),
    }
    sent
}

/// Sends a request over a connection of HTTP/1 that was used before. None if there is none, or the upstream has closed it, or
/// the network there has gone.
///
/// # Errors
/// The upstream does not answer in time. It may act on the request, which is therefore not sent twice.
async fn over_pooled_connection(
    gate: &Gate,
    exchange: &mut Exchange<Ready>,
    sending: &Sending,
    body: BodyLength,
) -> io::Result<Option<SentRequest>> {
    let Some((Link::Version1(mut reader, mut writer), idle)) =
        pooled::take_connection(gate, exchange, sending.scheme)
    else {
        return Ok(None);
    };
    let was_quiet = idle >= QUIET;
    if was_quiet {
        writer.give_up_after(UNACKNOWLEDGED)?;
    }
    let wire = request_head(sending, body, None);
    if write_within_limit(&mut writer, &wire).await.is_err() {
        return Ok(None);
    }
    exchange.record().count(wire.len() as u64, 0);
    let first = match was_quiet {
        true => first_octet_after_quiet(&mut reader, &writer).await,
        false => reader.fill(FIRST_OCTET).await,
    };
    match first {
        Ok(1..) => Ok(Some(SentRequest::Version1 { reader, writer, waiting: Vec::new() })),
        Err(error) if is_late(&error) => Err(error),
        Ok(0) | Err(_) => Ok(None),
    }
}

/// Awaits an answer on a connection whose kernel gives it up after [`UNACKNOWLEDGED`]. Once the request must have been acknowledged it does
/// so no longer: an upstream may think for longer than a question of the kernel's, whether it is there, may go astray.
async fn first_octet_after_quiet(
    reader: &mut Buffered<UpstreamReader>,
    writer: &UpstreamWriter,
) -> io::Result<usize> {
    let soon = 2 * UNACKNOWLEDGED;
    let first = reader.fill(soon).await;
    writer.give_up_after(UNTAKEN)?;
    match first {
        Err(error) if is_late(&error) => reader.fill(FIRST_OCTET - soon).await,
        first => first,
    }
}

/// Whether an upstream that is there has not answered in time. The kernel says `ETIMEDOUT` of one that acknowledges nothing.
fn is_late(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none()
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

/// Returns the size of what a request's head says, without what a version of HTTP puts around it.
fn head_size(sending: &Sending) -> usize {
    let Sending { method, authority, origin_form, fields, .. } = sending;
    let fields: usize = fields.iter().map(|(name, value)| name.len() + value.len()).sum();
    method.as_str().len() + authority.len() + origin_form.len() + fields
}

/// The most octets of a head of HTTP/1 that are of no field of the request's, and not in its first line.
const AROUND_FIELDS: usize = 256;

/// Returns a request head in its one form: origin-form, our `Host`, no hop-by-hop fields, one statement of length.
pub(super) fn request_head(sending: &Sending, body: BodyLength, upgrade: Option<&str>) -> Vec<u8> {
    let Sending { method, authority, origin_form, fields, .. } = sending;
    // At full size: a buffer that grows takes up to twice the room, and leaves copies of a credential behind.
    let mut out = Vec::with_capacity(head_size(sending) + 4 * fields.len() + AROUND_FIELDS);
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
    /// used again. `stream` is what [`Self::stream`] returned.
    pub(super) fn open<'a>(
        self,
        length: BodyLength,
        connection: &'a mut Option<Connection>,
        stream: Option<&'a OpenStream>,
    ) -> (Outgoing<'a, UpstreamWriter>, PendingResponse<'a>) {
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
                let backlog = stream.map(|stream| &**stream);
                let outgoing = body.map_or(Outgoing::Nothing, |body| Outgoing::Version2(body, backlog));
                (outgoing, PendingResponse::Version2(response))
            }
        }
    }
}

/// Whether a request may be sent again though the upstream may have acted on it.
pub(super) fn is_repeatable(method: &str, body: BodyLength) -> bool {
    body == BodyLength::None && matches!(method, "GET" | "HEAD" | "OPTIONS")
}

/// Whether the kernel has given a connection up: the network between has gone.
pub(super) fn is_given_up(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::TIMEDOUT.raw_os_error())
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
        pooled::keep_connection(gate, exchange, scheme, Link::Version1(reader, writer));
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::exchange::tests::ready;
    use crate::fixture::gate_for;
    use crate::http::fields::Fields;

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

    #[test]
    fn an_upstream_that_acknowledges_nothing_is_not_one_that_is_late() {
        assert!(is_late(&io::ErrorKind::TimedOut.into()));
        let gone = io::Error::from(rustix::io::Errno::TIMEDOUT);
        assert!(gone.kind() == io::ErrorKind::TimedOut && !is_late(&gone));
    }

    /// After how many milliseconds the kernel gives a connection up.
    fn given_up_after(stream: &impl std::os::fd::AsFd) -> u32 {
        nix::sys::socket::getsockopt(stream, nix::sys::socket::sockopt::TcpUserTimeout).unwrap()
    }

    /// A listener, and a request that may be sent to it.
    async fn upstream_of() -> (TcpListener, Rc<Gate>, Exchange<Ready>, Sending) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let rule = format!("[egress]\nallow = [{{ url = \"{url}*\" }}]\n");
        let gate = gate_for(&rule, Vec::new(), None);
        let exchange = ready(&gate, &url).await;
        let target = policy::Target::parse(&url).unwrap();
        let sending = Sending::new(policy::Method::parse("GET").unwrap(), &target, Fields::default());
        (listener, gate, exchange, sending)
    }

    #[tokio::test]
    async fn a_connection_that_may_be_kept_is_given_up_once_the_network_has_gone() {
        let (_listener, gate, mut exchange, _) = upstream_of().await;
        for (body, bound) in [(BodyLength::None, 120_000), (BodyLength::Chunked, 0)] {
            let opened = upstream::open(&gate, &mut exchange, Scheme::Http, Offer::Version1).await.unwrap();
            bound_silence(&opened, body).unwrap();
            let Upstream::Plain(upstream::Dialled::Tcp(stream)) = &opened else { panic!("it is direct") };
            assert_eq!(given_up_after(stream), bound);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_quiet_is_given_up_soon_until_its_request_was_acknowledged() {
        let seconds = Duration::from_secs;
        for (quiet, thinks, bounds) in [
            (seconds(0), seconds(0), [120_000, 120_000]),
            (QUIET, seconds(1), [15_000, 15_000]),
            (QUIET, seconds(90), [15_000, 120_000]),
        ] {
            let (listener, gate, mut exchange, sending) = upstream_of().await;
            let opened = upstream::open(&gate, &mut exchange, Scheme::Http, Offer::Version1).await.unwrap();
            bound_silence(&opened, BodyLength::None).unwrap();
            let Upstream::Plain(upstream::Dialled::Tcp(stream)) = &opened else { panic!("it is direct") };
            let twin = std::os::fd::AsFd::as_fd(stream).try_clone_to_owned().unwrap();
            let link = Link::over(opened).await.unwrap();
            pooled::keep_connection(&gate, &exchange, Scheme::Http, link);
            tokio::time::advance(quiet).await;
            let answers = async {
                let mut theirs = listener.accept().await.unwrap().0;
                theirs.read_exact(&mut [0; 4]).await.unwrap();
                let at_first = given_up_after(&twin);
                tokio::time::sleep(thinks).await;
                let at_last = given_up_after(&twin);
                theirs.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
                assert_eq!([at_first, at_last], bounds);
                theirs
            };
            let sends = over_pooled_connection(&gate, &mut exchange, &sending, BodyLength::None);
            let (sent, _theirs) = tokio::join!(sends, answers);
            assert!(sent.unwrap().is_some());
            assert_eq!(given_up_after(&twin), 120_000);
        }
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
            let (requests, mut connection) =
                h2::client::Builder::new().initial_max_send_streams(4).handshake(ours).await.unwrap();
            sessions.push(RequestSender::uncounted(requests, &mut connection));
            connections.push((connection, theirs));
            pooled::share_session(&gate, &exchange, Scheme::Http, &sessions[sessions.len() - 1]);
        }
        let mut asks = async || {
            let sent = over_pooled_session(&gate, &mut exchange, &sending, BodyLength::None).await?;
            let stream = sent.stream().unwrap();
            let of = sessions.iter().position(|session| session.has(&stream));
            of.map(|of| (of, stream))
        };
        let (of, first) = asks().await.unwrap();
        assert_eq!(of, 0);
        let mut full = Vec::new();
        while sessions[0].has_room_for(BodyLength::None) {
            full.push(sessions[0].count_stream());
        }
        let (of, second) = asks().await.unwrap();
        assert_eq!(of, 1);
        // What is of a stream alone ends no session, and what is of a session ends that one.
        pooled::report_session(&gate, &second, Some(&io::Error::other("of a stream")));
        pooled::report_session(&gate, &first, Some(&io::ErrorKind::TimedOut.into()));
        drop((full, first));
        let (of, third) = asks().await.unwrap();
        assert_eq!(of, 1);
        pooled::report_session(&gate, &third, Some(&io::ErrorKind::ConnectionReset.into()));
        assert!(asks().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_does_not_wait_behind_one_that_its_upstream_leaves_unread() {
        const BODY: BodyLength = BodyLength::Chunked;
        let (_listener, gate, mut exchange, sending) = upstream_of().await;
        let peer = exchange.destination().peers().next().unwrap();
        exchange.reach(peer);
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let upstream = async {
            let mut connection = h2::server::handshake(theirs).await.unwrap();
            let mut unread = Vec::new();
            while let Some(request) = connection.accept().await {
                unread.push(request.unwrap());
            }
        };
        let asks = async {
            let session = super::super::session::over(ours).await.unwrap();
            pooled::share_session(&gate, &exchange, Scheme::Http, &session);
            let first = over_pooled_session(&gate, &mut exchange, &sending, BODY).await.unwrap();
            let (stream, mut connection) = (first.stream(), None);
            let (mut outgoing, _pending) = first.open(BODY, &mut connection, stream.as_ref());
            let others = async {
                let mut asks =
                    async |body| over_pooled_session(&gate, &mut exchange, &sending, body).await.is_some();
                assert!(asks(BODY).await, "the first has only begun");
                tokio::time::sleep(Duration::from_secs(1)).await;
                assert!(!asks(BODY).await && asks(BodyLength::None).await);
            };
            tokio::select! {
                _ = outgoing.send(vec![0; 1 << 20].into()) => unreachable!("it is left unread"),
                () = others => {}
            }
            assert!(!session.has_room_for(BODY), "it was given up, and nothing has gone on");
            assert!(session.has_room_for(BodyLength::None));
        };
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                tokio::select! { () = upstream => unreachable!(), () = asks => {} }
            })
            .await;
    }
}
