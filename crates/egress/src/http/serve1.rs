//! Serves a connection of HTTP/1: its requests one after the other, each a new exchange whatever the connection carried before (C21).

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use credential::Placeholder;
use policy::{Authority, Carriage, Denial, Guard, Host, Plane, Port};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::answer::{Answer, Extent};
use super::chunk::{ChunkScanner, ChunkSyntax};
use super::handle::{handle, refuse_other_host};
use super::head::{BodyLength, Buffered, HeadError, RequestHead, is_hopeless_request, parse_request_head};
use super::incoming::{Framing, Incoming};
use super::outgoing::{within_stall_limit, write_last_within_limit};
use super::problem::{self, After};
use super::pump::KEY_IN_TRAILER;
use super::refuse::status_of;
use super::request::{Request, UNREADABLE, Via};
use super::response::trailers_of_version_1;
use super::stream::{AgentReader, AgentStream, AgentWriter};
use crate::audit;
use crate::ending::UnderWay;
use crate::gate::Gate;
use crate::inject::may_authenticate;
use crate::opened::Opened;
use crate::tunnel;

/// REQUIREMENTS: a connection may be idle for 120 s, and a head may take 10 s.
const IDLE: Duration = Duration::from_secs(120);
const WHOLE_HEAD: Duration = Duration::from_secs(10);

/// Serves the requests of one connection, of which `ahead` was read already.
pub(crate) fn serve_requests(
    gate: Rc<Gate>,
    via: Via,
    stream: AgentStream,
    ahead: BytesMut,
) -> impl Future<Output = io::Result<()>> {
    serve_opened(gate, Opened::unrecorded(), via, stream, ahead)
}

/// Serves the requests of one connection that is recorded itself if none comes.
pub(crate) async fn serve_opened(
    gate: Rc<Gate>,
    mut opened: Opened,
    via: Via,
    stream: AgentStream,
    ahead: BytesMut,
) -> io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut agent = Buffered { ahead, reader };
    loop {
        let read = match agent.skip_empty_line(IDLE, WHOLE_HEAD).await {
            Ok(()) => agent.read_head(IDLE, WHOLE_HEAD, is_hopeless_request).await,
            Err(error) => Err(error),
        };
        let Some(bytes) = read.inspect_err(|error| opened.broke_off(error))? else { return Ok(()) };
        // A request without any answer may be sent again elsewhere, as its sender knows.
        if gate.ending().has_begun() {
            return Ok(());
        }
        let under_way = gate.ending().begin();
        opened.has_request();
        let head = match parse_request_head(&bytes) {
            Ok(head) => head,
            Err(why) => {
                let may_be_other = matches!(why, HeadError::RequestLine | HeadError::Line);
                let hint = via.taken_for_http().filter(|_| may_be_other);
                let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
                let why = format!("the request cannot be read beyond doubt: {why}{hint}");
                refuse(&gate, &via, &mut writer, None, &why).await?;
                linger(&mut agent).await;
                return Ok(());
            }
        };
        if head.method.as_str() == "CONNECT" {
            return serve_connect(&gate, &via, &head, agent, writer, under_way).await;
        }
        if let Err(why) = first_chunks(&head, &mut agent).await {
            refuse(&gate, &via, &mut writer, Some(&head.target), why).await?;
            linger(&mut agent).await;
            return Ok(());
        }
        let framing = Framing::of(head.body, ChunkSyntax::Strict);
        let extent = Extent::asked_by(head.method.as_str(), head.version, &head.fields);
        let RequestHead { version, keep_alive, body: head_body, .. } = head;
        let answer = Answer::Version1 { writer: &mut writer, version, keep_alive, extent };
        let body = Incoming::Version1 { reader: &mut agent, framing };
        // Boxed: a connection that waits for its next request takes no memory for handling one. The box is there before the future, which is
        // ten kilobytes, so that it is made in its place and not copied.
        let handled = Box::write(Box::new_uninit(), handle(&gate, &via, Request { head, body }, answer));
        match Box::into_pin(handled).await? {
            After::KeepAlive => drop(under_way),
            After::Close => {
                within_stall_limit(writer.end()).await?;
                if head_body != BodyLength::None || !agent.ahead.is_empty() {
                    linger(&mut agent).await;
                }
                return Ok(());
            }
        }
    }
}

/// How much of an unread body is taken in after its answer, and how long that may take.
const MOST_LINGERED: usize = 16 * 1024 * 1024;
const LINGERING: Duration = Duration::from_secs(2);

/// Takes in what an agent still sends after its answer. If the connection were closed at once it would be reset, and most programs
/// then discard an answer that they have not read (RFC 9112 §9.6).
async fn linger(agent: &mut Buffered<AgentReader>) {
    let mut taken = 0;
    let rest = async {
        while let Ok(length @ 1..) = agent.fill(LINGERING).await {
            taken += length;
            agent.ahead.clear();
            if taken > MOST_LINGERED {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(LINGERING, rest).await;
}

/// Refuses a request that cannot be read: writes one record and one answer, and ends the connection. The target is none where the head
/// cannot be read.
async fn refuse(
    gate: &Rc<Gate>,
    via: &Via,
    writer: &mut AgentWriter,
    target: Option<&str>,
    why: &str,
) -> io::Result<()> {
    let denial = Denial::new(Guard::Framing, why);
    let shown = via.shown(target);
    let recorded = shown.as_deref().unwrap_or(UNREADABLE);
    let denial = audit::record_refused_unasked(gate, via.plane(), recorded, denial);
    let reply = problem::denied(&denial, &shown.unwrap_or_default(), gate.run(), 400);
    write_last_within_limit(writer, &reply.to_version_1(After::Close)).await
}

/// Serves `CONNECT` on a connection in the clear to the proxy or the gateway; refuses it elsewhere. The connection ends with it.
async fn serve_connect(
    gate: &Rc<Gate>,
    via: &Via,
    head: &RequestHead,
    agent: Buffered<AgentReader>,
    mut writer: AgentWriter,
    under_way: UnderWay<'_>,
) -> io::Result<()> {
    const ELSEWHERE: &str = "CONNECT is for the proxy at port 8081";
    if !matches!(via, Via::Proxy | Via::Gateway) {
        return refuse(gate, via, &mut writer, None, ELSEWHERE).await;
    }
    match agent.reader.unsplit(writer) {
        Some(AgentStream::Tcp(stream)) => {
            connect(gate, head, Buffered { ahead: agent.ahead, reader: stream }, under_way).await
        }
        Some(other) => {
            let (_, mut writer) = other.split();
            refuse(gate, via, &mut writer, None, ELSEWHERE).await
        }
        None => Ok(()),
    }
}

/// Serves `CONNECT host:port` (RFC 9110 §9.3.6): opens a tunnel if the policy allows it.
async fn connect(
    gate: &Rc<Gate>,
    head: &RequestHead,
    mut agent: Buffered<TcpStream>,
    under_way: UnderWay<'_>,
) -> io::Result<()> {
    let here = agent.reader.local_addr().ok().map(|address| address.port());
    let mut target = head.target.clone();
    let granted = match connect_target(head, here) {
        Ok((host, port)) => {
            // Some clients look up the name themselves, and give the address that stands for it.
            let meant = match host {
                Host::Address(address) => gate.names().borrow().host_at(address),
                Host::Name(_) => host.clone(),
            };
            if meant != host {
                target = format!("{meant}:{port}");
            }
            tunnel::ask(gate, "CONNECT", target.clone(), meant, port)
        }
        Err(denial) => Err(audit::record_refused_unasked(gate, Plane::Forward, &target, denial)),
    };
    let pinned = match granted {
        Ok(exchange) if exchange.grant().carriage() == Carriage::Terminated => {
            // Each request inside counts by itself. Between two of them the connection holds up no end.
            drop(under_way);
            return tunnel::terminate_after_connect(gate, exchange, agent).await;
        }
        Ok(exchange) => exchange.pin(gate).await,
        Err(denial) => Err(denial),
    };
    match pinned {
        Ok(exchange) => {
            // Its record counts as under way, until the requests inside count by themselves.
            drop(under_way);
            tunnel::after_connect(gate, exchange, agent, &target).await
        }
        Err(denial) => {
            let status = status_of(&denial, gate.policy());
            let reply = problem::denied(&denial, &target, gate.run(), status);
            write_last_within_limit(&mut agent.reader, &reply.to_version_1(After::Close)).await
        }
    }
}

/// Returns where a tunnel leads. `Host` may instead name the proxy itself, as some clients have it: by its port `here`, or by an address.
fn connect_target(head: &RequestHead, here: Option<u16>) -> Result<(Host, Port), Denial> {
    let (host, port) = Authority::parse_tunnel(&head.target)?;
    if head.body != BodyLength::None {
        return Err(Denial::new(Guard::Framing, "CONNECT has no body"));
    }
    if !names_proxy(head, here) {
        refuse_other_host(head, &host, port)?;
    }
    Ok((host, port))
}

fn names_proxy(head: &RequestHead, here: Option<u16>) -> bool {
    let named = head.fields.text("host").and_then(|text| Authority::parse(text).ok());
    named.is_some_and(|named| match named.host {
        Host::Address(_) => true,
        Host::Name(_) => named.port.is_some_and(|port| Some(port.number()) == here),
    })
}

/// Reads a chunked body up to its first data, and checks what came with it, before anything of the request goes on: a body that
/// begins malformed has its request refused. A body that waits for a 100 Continue is not read.
async fn first_chunks(head: &RequestHead, agent: &mut Buffered<AgentReader>) -> Result<(), &'static str> {
    if head.body != BodyLength::Chunked || head.waits_to_go_on() && agent.ahead.is_empty() {
        return Ok(());
    }
    let mut scanner = ChunkScanner::new(ChunkSyntax::Strict);
    let mut looked_at = 0;
    let deadline = Instant::now() + IDLE;
    loop {
        let step = scanner.scan_whole(&agent.ahead[looked_at..])?;
        if Placeholder::is_in(scanner.trailers()) || scanner.is_done() && has_key(scanner.trailers()) {
            return Err(KEY_IN_TRAILER);
        }
        if step.data > 0 || scanner.is_done() {
            return Ok(());
        }
        looked_at = agent.ahead.len();
        match agent.fill(deadline.saturating_duration_since(Instant::now())).await {
            Ok(1..) => {}
            Ok(0) => return Err("the body ended before it began"),
            Err(_) => return Err("the body did not begin in time"),
        }
    }
}

/// Whether a trailer section names a cookie, or what may be a key to any service (C08). That of the provider's own is known only later.
fn has_key(section: &[u8]) -> bool {
    trailers_of_version_1(section).iter().any(|(name, _)| name == "cookie" || may_authenticate(name))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::net::{Ipv4Addr, SocketAddr};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::task::LocalSet;

    use super::*;
    use crate::fixture::{gate_for, records_in};
    use crate::http::head::find;

    /// Both ends of a connection, the agent's first.
    #[expect(clippy::disallowed_methods, reason = "the agent's side, to a listener of the test's")]
    async fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let agent = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (agent, listener.accept().await.unwrap().0)
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_reads_no_answer_holds_no_connection() {
        let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = upstream.local_addr().unwrap();
        let closed = connection().await.0.local_addr().unwrap();
        let rules = format!(
            "[egress]\nallow = [{{ host = \"{}\", ports = [{}, {}] }}]\n",
            at.ip(),
            at.port(),
            closed.port()
        );
        let judged = format!("[egress]\nallow = [{{ url = \"https://{at}/x/*\" }}]\n");
        for (policy, request) in [
            (&rules, "GET / HTTP/1.1\r\nHost : x\r\n\r\n".to_owned()), // unreadable
            (&rules, "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n".to_owned()), // denied
            (&rules, "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n".to_owned()), // denied
            (&rules, format!("CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n")), // granted
            (&rules, format!("CONNECT {closed} HTTP/1.1\r\nHost: {closed}\r\n\r\n")), // unreachable
            (&judged, format!("CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n")), // its requests are judged
        ] {
            let gate = gate_for(policy, Vec::new(), None);
            let (mut agent, ours) = connection().await;
            agent.write_all(request.as_bytes()).await.unwrap();
            // What it asked before has filled the connection.
            while tokio::time::timeout(IDLE, ours.writable()).await.is_ok() {
                let _ = ours.try_write(&[0; 65536]);
            }
            let served = serve_requests(gate, Via::Proxy, AgentStream::Tcp(ours), BytesMut::new());
            let served = LocalSet::new().run_until(tokio::time::timeout(3 * IDLE, served)).await;
            let error = served.expect(&request).expect_err(&request);
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{request}");
        }
    }

    /// What an agent reads that sends these octets and waits for the end, and the records. Nothing may reach the upstream.
    async fn refused(asked: impl Fn(SocketAddr) -> (Via, String)) -> (String, String) {
        let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = upstream.local_addr().unwrap();
        let mut audit = tempfile::tempfile().unwrap();
        let rule = format!("[egress]\nallow = [{{ url = \"http://{at}/*\" }}]\n");
        let gate = gate_for(&rule, Vec::new(), Some(audit.try_clone().unwrap()));
        let (mut agent, ours) = connection().await;
        let (via, octets) = asked(at);
        let (serves, mut read) = (Rc::clone(&gate), Vec::new());
        let answered = async {
            let served = serve_requests(serves, via, AgentStream::Tcp(ours), BytesMut::new());
            tokio::task::spawn_local(served);
            agent.write_all(octets.as_bytes()).await.unwrap();
            let ended = tokio::time::timeout(WHOLE_HEAD / 2, agent.read_to_end(&mut read)).await;
            ended.unwrap_or_else(|_| panic!("the connection goes on behind {octets:?}")).unwrap();
            let reached = tokio::time::timeout(Duration::from_millis(20), upstream.accept()).await;
            assert!(reached.is_err(), "{octets:?}");
        };
        LocalSet::new().run_until(answered).await;
        gate.close().unwrap();
        let records = records_in(&mut audit);
        (String::from_utf8(read).unwrap(), records)
    }

    #[tokio::test]
    async fn a_400_comes_at_once_and_ends_the_connection() {
        for request in [
            "GET http://AT/a\r\n",
            "GET http://AT/a HTTP/3\r\n",
            "GET http://AT/%zz HTTP/1.1\r\nHost: AT\r\n\r\n",
            "GET http://AT/ HTTP/1.1\r\nHost: AT, evil.test\r\n\r\n",
            "OPTIONS http://AT/ HTTP/1.1\r\nHost: AT\r\nMax-Forwards: x\r\n\r\n",
            "trace http://AT/ HTTP/1.1\r\nHost: AT\r\n\r\n",
            "head http://AT/ HTTP/1.1\r\nHost: AT\r\n\r\n",
            "CONNECT AT HTTP/1.1\r\nHost: AT\r\nContent-Length: 1\r\n\r\n",
            "CONNECT AT HTTP/1.1\r\nHost: AT, evil.test\r\n\r\n",
        ] {
            let next = "GET http://AT/ HTTP/1.1\r\nHost: AT\r\n\r\n";
            let next = if request.ends_with("\r\n\r\n") { next } else { "" };
            let asked =
                |at: SocketAddr| (Via::Proxy, format!("{request}{next}").replace("AT", &at.to_string()));
            let (read, _) = refused(asked).await;
            assert!(
                read.starts_with("HTTP/1.1 400 ") && read.matches("HTTP/1.1 ").count() == 1,
                "{request}: {read}"
            );
            assert!(read.contains("connection: close"), "{request}: {read}");
        }
    }

    /// What an upstream gets of a chunked request whose body comes in these parts, what the agent reads, and the records.
    async fn chunked(parts: &[&str]) -> (String, String, String) {
        let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = upstream.local_addr().unwrap();
        let mut audit = tempfile::tempfile().unwrap();
        let rule = format!("[egress]\nallow = [{{ url = \"http://{at}/*\" }}]\n");
        let gate = gate_for(&rule, Vec::new(), Some(audit.try_clone().unwrap()));
        let (mut agent, ours) = connection().await;
        let got = RefCell::new(Vec::new());
        let serves = async {
            let Ok(accepted) = tokio::time::timeout(LINGERING, upstream.accept()).await else { return };
            let (mut stream, mut buffer) = (accepted.unwrap().0, [0; 1024]);
            while !got.borrow().ends_with(b"0\r\n\r\n")
                && let Ok(length @ 1..) = stream.read(&mut buffer).await
            {
                got.borrow_mut().extend_from_slice(&buffer[..length]);
            }
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
        };
        let asks = async {
            let head = format!(
                "POST http://{at}/ HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
            );
            agent.write_all(head.as_bytes()).await.unwrap();
            for (at, part) in parts.iter().enumerate() {
                while at > 0 && !got.borrow().ends_with(b"1\r\na\r\n") {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                agent.write_all(part.as_bytes()).await.unwrap();
            }
            let mut read = Vec::new();
            let _ = agent.read_to_end(&mut read).await;
            String::from_utf8(read).unwrap()
        };
        let served = serve_requests(Rc::clone(&gate), Via::Proxy, AgentStream::Tcp(ours), BytesMut::new());
        let all = async { tokio::join!(serves, asks, served) };
        let ((), read, _) = LocalSet::new().run_until(all).await;
        gate.close().unwrap();
        (String::from_utf8(got.into_inner()).unwrap(), read, records_in(&mut audit))
    }

    #[tokio::test]
    async fn trailers_are_left_out_and_their_request_goes_on() {
        for parts in [&["1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n"][..], &["1\r\na\r\n", "0\r\nX-Su", "m: 1\r\n\r\n"]]
        {
            let (got, read, records) = chunked(parts).await;
            assert!(got.ends_with("1\r\na\r\n0\r\n\r\n") && !got.contains("X-Sum"), "{got}");
            assert!(read.starts_with("HTTP/1.1 204 "), "{read}");
            assert!(records.contains("its trailers were left out"), "{records}");
        }
        // C08
        let trailer = "X-Key: lgph_0123456789abcdefghijklmnopqrstuvwxyz";
        let end = format!("0\r\n{trailer}\r\n\r\n");
        for end in [
            &*end,
            "0\r\nAuthorization: own\r\n\r\n",
            "0\r\nX_Api.Key: own\r\n\r\n",
            "0\r\nCookie: a=1\r\n\r\n",
        ] {
            for whole in [end, &format!("1\r\na\r\n{end}")] {
                let (got, read, records) = chunked(&[whole]).await;
                assert!(got.is_empty() && read.starts_with("HTTP/1.1 400 "), "{got} {read}");
                assert!(
                    read.contains(KEY_IN_TRAILER) && records.contains(KEY_IN_TRAILER),
                    "{read} {records}"
                );
            }
            let (got, read, records) = chunked(&["1\r\na\r\n", end]).await;
            assert!(got.ends_with("1\r\na\r\n") && read.is_empty(), "{got} {read}");
            assert!(records.contains("\"outcome\":\"failed\",\"guard\":\"http_framing\""), "{records}");
            assert!(records.contains(KEY_IN_TRAILER), "{records}");
        }
    }

    #[tokio::test]
    async fn a_body_that_is_malformed_behind_what_was_sent_is_recorded_by_its_guard() {
        for end in ["0x0\r\n\r\n", "0\r\nX : y\r\n\r\n"] {
            let (got, read, records) = chunked(&["1\r\na\r\n", end]).await;
            assert!(got.ends_with("1\r\na\r\n") && read.is_empty(), "{got} {read}");
            assert!(records.contains("\"outcome\":\"failed\",\"guard\":\"http_framing\""), "{records}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_comes_by_single_octets_begins_in_time_as_well() {
        let (ours, mut agent) = tokio::net::UnixStream::pair().unwrap();
        let begun = Instant::now();
        let asks = async {
            let head = "POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n1";
            agent.write_all(head.as_bytes()).await.unwrap();
            while agent.write_all(b";").await.is_ok() && begun.elapsed() < IDLE * 3 {
                tokio::time::sleep(IDLE / 3).await;
            }
        };
        let gate = gate_for("", Vec::new(), None);
        let served = async {
            serve_requests(gate, Via::Proxy, AgentStream::Unix(ours), BytesMut::new()).await.unwrap();
            begun.elapsed()
        };
        let (took, ()) = LocalSet::new().run_until(async { tokio::join!(served, asks) }).await;
        assert!(took >= IDLE && took < IDLE + LINGERING * 2, "{took:?}");
    }

    #[tokio::test]
    async fn a_denial_ends_no_connection_whatever_its_status_is() {
        let gate = gate_for("[egress]\ndenied_status = 400\n", Vec::new(), None);
        let (mut agent, ours) = connection().await;
        let asked = async {
            let served = serve_requests(gate, Via::Proxy, AgentStream::Tcp(ours), BytesMut::new());
            tokio::task::spawn_local(served);
            let denied = "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n";
            let both = format!("{denied}\r\n{denied}Connection: close\r\n\r\n");
            agent.write_all(both.as_bytes()).await.unwrap();
            let mut read = String::new();
            agent.read_to_string(&mut read).await.unwrap();
            read
        };
        let read = LocalSet::new().run_until(asked).await;
        assert_eq!(read.matches("HTTP/1.1 400 ").count(), 2, "{read}");
        assert_eq!(read.matches("connection: close").count(), 1, "{read}");
    }

    #[tokio::test]
    async fn what_is_refused_on_a_redirected_connection_has_its_destination() {
        for (request, target) in [
            ("GET /secret HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n", "/secret"),
            ("GET /%zz HTTP/1.1\r\nHost: AT\r\n\r\n", "/%zz"),
            ("GET /a?u=http://x/%zz HTTP/1.1\r\nHost: AT\r\n\r\n", "/a?u=http://x/%zz"),
            ("GET .evil.test/x HTTP/1.1\r\nHost: AT\r\n\r\n", " .evil.test/x"),
            (
                "GET http://evil.test/x HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n",
                " http://evil.test/x",
            ),
            ("GET / HTTP/1.1\r\nHost : AT\r\n\r\n", ""),
            ("GET /x\r\n", ""),
        ] {
            let seen = std::cell::Cell::new(None);
            let (read, records) = refused(|at| {
                seen.set(Some(at));
                let (host, port) = (Host::Address(at.ip()), Port::new(at.port()).unwrap());
                let via = Via::Bound { plane: Plane::Transparent, scheme: policy::Scheme::Http, host, port };
                (via, request.replace("AT", &at.to_string()))
            })
            .await;
            let target = format!("\"target\":\"http://{}{target}\"", seen.get().unwrap());
            assert!(records.contains(&target), "{request}: {target} in {records}");
            assert!(read.contains(&target), "{request}: {target} in {read}");
        }
    }

    #[tokio::test]
    async fn the_gateway_is_closed_to_web_pages_and_open_to_programs() {
        for (fields, status) in [
            ("Host: evil.example:8080", 403), // S0.26: programs call it sidecar
            ("Host: 127.0.0.1:8080\r\nSec-Fetch-Site: cross-site", 403),
            ("Host: sidecar:8080", 503),
            ("Host: 127.0.0.1:8080\r\nOrigin: null", 403),
            ("Host: 127.0.0.1:8080\r\nOrigin: http://localhost:3000", 503),
        ] {
            let request = format!("POST /llm/v1/messages HTTP/1.1\r\n{fields}\r\nConnection: close\r\n\r\n");
            let (read, records) = refused(|_| (Via::Gateway, request.clone())).await;
            assert!(read.starts_with(&format!("HTTP/1.1 {status} ")), "{fields}: {read}");
            let guard = if status == 403 { "source_not_allowed" } else { "provider_not_declared" };
            assert!(read.contains(guard) && records.contains(guard), "{fields}: {read} {records}");
        }
    }

    #[tokio::test]
    async fn a_request_that_may_not_be_forwarded_once_more_is_answered_here() {
        for (method, status, outcome) in [("OPTIONS", 200, "allowed"), ("TRACE", 501, "failed")] {
            let (read, records) = refused(|at| {
                let rest = "Max-Forwards: 0\r\nConnection: close\r\n\r\n";
                (Via::Proxy, format!("{method} http://{at}/ HTTP/1.1\r\nHost: {at}\r\n{rest}"))
            })
            .await;
            assert!(read.starts_with(&format!("HTTP/1.1 {status} ")), "{read}");
            let record = records.lines().find(|line| line.contains(method)).unwrap();
            let said = [format!("\"status\":{status}"), format!("\"outcome\":\"{outcome}\"")];
            assert!(said.iter().all(|said| record.contains(said)), "{record}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_paused_for_too_long_gets_no_octet_twice() {
        let whole: Vec<u8> = (0..4_000_000_u32).flat_map(u32::to_be_bytes).collect();
        for framing in [format!("Content-Length: {}", whole.len()), "Transfer-Encoding: chunked".into()] {
            let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let at = upstream.local_addr().unwrap();
            let rule = format!("[egress]\nallow = [{{ url = \"http://{at}/*\" }}]\n");
            let gate = gate_for(&rule, Vec::new(), None);
            let (mut agent, ours) = connection().await;
            let head = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n");
            let body = if framing.contains("chunked") {
                [format!("{:x}\r\n", whole.len()).as_bytes(), &whole, b"\r\n0\r\n\r\n"].concat()
            } else {
                whole.clone()
            };
            let answered = async {
                let stream = AgentStream::Tcp(ours);
                let begun = Instant::now();
                let served = tokio::task::spawn_local(async move {
                    let ended = serve_requests(gate, Via::Proxy, stream, BytesMut::new()).await;
                    (ended, begun.elapsed().as_secs())
                });
                agent
                    .write_all(format!("GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\n\r\n").as_bytes())
                    .await
                    .unwrap();
                let mut serves = Buffered::new(upstream.accept().await.unwrap().0);
                serves.read_head(IDLE, WHOLE_HEAD, |_, _| false).await.unwrap();
                tokio::task::spawn_local(async move {
                    let _ = serves.reader.write_all(&[head.as_bytes(), &body].concat()).await;
                });
                tokio::time::sleep(IDLE + IDLE / 2).await;
                let mut read = Vec::new();
                let ended = agent.read_to_end(&mut read).await;
                (read, ended.map_err(|error| error.kind()), served.await.unwrap())
            };
            let (read, ended, (served, seconds)) = LocalSet::new().run_until(answered).await;
            assert_eq!(ended, Err(io::ErrorKind::ConnectionReset), "{framing}");
            assert_eq!(served.unwrap_err().kind(), io::ErrorKind::TimedOut, "{framing}");
            assert!((120..125).contains(&seconds), "{framing}: {seconds}");
            let begins = find(&read, b"\r\n\r\n").unwrap() + 4;
            let mut come = BytesMut::from(&read[begins..]);
            let data = if framing.contains("chunked") { chunked_data(&mut come) } else { come.to_vec() };
            assert!(data.len() > 10_000 && data.len() < whole.len(), "{framing}: {}", data.len());
            assert!(whole.starts_with(&data), "{framing}");
        }
    }

    /// The data of as much of a chunked body as is there.
    fn chunked_data(body: &mut BytesMut) -> Vec<u8> {
        let (mut scanner, mut data) = (ChunkScanner::new(ChunkSyntax::Strict), Vec::new());
        while !body.is_empty() {
            let step = scanner.scan(body).unwrap();
            let _ = body.split_to(step.framing);
            data.extend(body.split_to(step.data));
        }
        data
    }

    #[tokio::test]
    async fn an_answer_that_ends_with_its_connection_is_whole_or_ends_with_a_reset() {
        for (body, is_whole) in [("4\r\nhalf\r\n", false), ("4\r\nhalf\r\n0\r\n\r\n", true)] {
            let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let at = upstream.local_addr().unwrap();
            let rule = format!("[egress]\nallow = [{{ url = \"http://{at}/*\" }}]\n");
            let gate = gate_for(&rule, Vec::new(), None);
            let (mut agent, ours) = connection().await;
            let answered = async {
                let stream = AgentStream::Tcp(ours);
                tokio::task::spawn_local(serve_requests(gate, Via::Proxy, stream, BytesMut::new()));
                agent.write_all(format!("GET http://{at}/ HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
                let (mut serves, _) = upstream.accept().await.unwrap();
                let mut reader = Buffered::new(&mut serves);
                reader.read_head(IDLE, WHOLE_HEAD, |_, _| false).await.unwrap();
                let answer = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
                serves.write_all(answer.as_bytes()).await.unwrap();
                drop(serves);
                let mut read = Vec::new();
                let ended = agent.read_to_end(&mut read).await;
                assert!(read.ends_with(b"half"), "{}", String::from_utf8_lossy(&read));
                ended.map(drop).map_err(|error| error.kind())
            };
            let ended = LocalSet::new().run_until(answered).await;
            let expected = if is_whole { Ok(()) } else { Err(io::ErrorKind::ConnectionReset) };
            assert_eq!(ended, expected);
        }
    }

    #[tokio::test]
    async fn an_answer_before_the_end_of_its_request_says_that_the_connection_ends() {
        for (body, ends) in [("half", true), ("the whole", false)] {
            let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let at = upstream.local_addr().unwrap();
            let rule = format!("[egress]\nallow = [{{ url = \"http://{at}/*\" }}]\n");
            let gate = gate_for(&rule, Vec::new(), None);
            let (mut agent, ours) = connection().await;
            let answered = async {
                let stream = AgentStream::Tcp(ours);
                tokio::task::spawn_local(serve_requests(gate, Via::Proxy, stream, BytesMut::new()));
                let length = "the whole".len();
                let head =
                    format!("POST http://{at}/ HTTP/1.1\r\nHost: {at}\r\nContent-Length: {length}\r\n\r\n");
                agent.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
                let mut serves = Buffered::new(upstream.accept().await.unwrap().0);
                serves.read_head(IDLE, WHOLE_HEAD, |_, _| false).await.unwrap();
                while serves.ahead.len() < body.len() {
                    serves.fill(IDLE).await.unwrap();
                }
                let answer = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n";
                serves.reader.write_all(answer).await.unwrap();
                let head = Buffered::new(&mut agent).read_head(IDLE, WHOLE_HEAD, |_, _| false).await.unwrap();
                String::from_utf8(head.unwrap().to_vec()).unwrap()
            };
            let head = LocalSet::new().run_until(answered).await;
            assert!(head.starts_with("HTTP/1.1 413"), "{head}");
            assert_eq!(head.contains("connection: close"), ends, "{body}: {head}");
        }
    }
}
