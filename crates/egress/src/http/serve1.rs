//! Serves a connection of HTTP/1: its requests one after the other, each a new exchange whatever the connection carried before (C21).

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use policy::{Authority, Carriage, Denial, Guard, Host, Plane, Port};
use tokio::net::TcpStream;

use super::answer::{Answer, Extent};
use super::chunk::{ChunkScanner, ChunkSyntax};
use super::handle::{handle, refuse_other_host};
use super::head::{BodyLength, Buffered, RequestHead, has_broken_line, parse_request_head};
use super::incoming::{Framing, Incoming};
use super::outgoing::{within_stall_limit, write_last_within_limit};
use super::problem::{self, After};
use super::request::{Request, Via};
use super::stream::{AgentReader, AgentStream, AgentWriter};
use crate::audit;
use crate::ending::UnderWay;
use crate::gate::Gate;
use crate::tunnel;

/// REQUIREMENTS: a connection may be idle for 120 s, and a head may take 10 s.
const IDLE: Duration = Duration::from_secs(120);
const WHOLE_HEAD: Duration = Duration::from_secs(10);

/// Serves the requests of one connection, of which `ahead` was read already.
pub(crate) async fn serve_requests(
    gate: Rc<Gate>,
    via: Via,
    stream: AgentStream,
    ahead: BytesMut,
) -> io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut agent = Buffered { ahead, reader };
    loop {
        agent.skip_empty_line(IDLE, WHOLE_HEAD).await?;
        let Some(bytes) = agent.read_head(IDLE, WHOLE_HEAD, has_broken_line).await? else { return Ok(()) };
        // A request without any answer may be sent again elsewhere, as its sender knows.
        if gate.ending().has_begun() {
            return Ok(());
        }
        let under_way = gate.ending().begin();
        let head = match parse_request_head(&bytes) {
            Ok(head) => head,
            Err(why) => {
                let why = format!("the request cannot be read beyond doubt: {why}");
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
        let RequestHead { version, keep_alive, body: head_body, .. } = head;
        let extent = Extent::asked_by(&head.method);
        let answer = Answer::Version1 { writer: &mut writer, version, keep_alive, extent };
        let body = Incoming::Version1 { reader: &mut agent, framing };
        // Boxed: a connection that waits for its next request takes no memory for handling one.
        match Box::pin(handle(&gate, &via, Request { head, body }, answer)).await? {
            After::KeepAlive => drop(under_way),
            After::Close => {
                within_stall_limit(writer.end()).await?;
                if head_body != BodyLength::None {
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
    let recorded = target.unwrap_or("unreadable request");
    let denial = audit::record_unreadable(gate, via.plane(), recorded, denial);
    let reply = problem::denied(&denial, target.unwrap_or_default(), gate.run(), 400);
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
    let granted = match connect_target(head, here) {
        Ok((host, port)) => tunnel::ask(gate, "CONNECT", head.target.clone(), host, port),
        Err(denial) => Err(audit::record_unreadable(gate, Plane::Forward, &head.target, denial)),
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
        Ok(exchange) => tunnel::after_connect(gate, exchange, agent, &head.target).await,
        Err(denial) => {
            let status = if denial.guard == Guard::NoAddress { 502 } else { gate.policy().denied_status() };
            let reply = problem::denied(&denial, &head.target, gate.run(), status);
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
    loop {
        let step = scanner.scan_whole(&agent.ahead[looked_at..])?;
        if step.data > 0 || scanner.is_done() {
            return Ok(());
        }
        looked_at = agent.ahead.len();
        match agent.fill(IDLE).await {
            Ok(1..) => {}
            Ok(0) => return Err("the body ended before it began"),
            Err(_) => return Err("the body did not begin in time"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::task::LocalSet;

    use super::*;
    use crate::local_addresses::tests::gate_for;

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
                reader.read_head(IDLE, WHOLE_HEAD, |_| false).await.unwrap();
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
                serves.read_head(IDLE, WHOLE_HEAD, |_| false).await.unwrap();
                while serves.ahead.len() < body.len() {
                    serves.fill(IDLE).await.unwrap();
                }
                let answer = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n";
                serves.reader.write_all(answer).await.unwrap();
                let head = Buffered::new(&mut agent).read_head(IDLE, WHOLE_HEAD, |_| false).await.unwrap();
                String::from_utf8(head.unwrap().to_vec()).unwrap()
            };
            let head = LocalSet::new().run_until(answered).await;
            assert!(head.starts_with("HTTP/1.1 413"), "{head}");
            assert_eq!(head.contains("connection: close"), ends, "{body}: {head}");
        }
    }
}
