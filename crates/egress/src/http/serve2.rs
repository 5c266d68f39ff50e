//! Serves a connection of HTTP/2: its streams are requests, served concurrently, each an exchange of its own.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use policy::{Denial, Guard, Method};

use super::answer::{Answer, Extent};
use super::fields::Fields;
use super::grpc_status::RefusalForm;
use super::handle::handle;
use super::head::{BodyLength, RequestHead, Version};
use super::incoming::Incoming;
use super::problem::{self, After};
use super::request::{Request, UNREADABLE, Via};
use super::stream::AgentStream;
use super::{http2_limits, version2};
use crate::audit;
use crate::gate::Gate;
use crate::opened::Opened;

/// How long a connection may be without a stream, and then take to end.
const IDLE: Duration = Duration::from_secs(120);

/// Serves the streams of one connection until either side ends it.
///
/// It is recorded itself if no request is taken.
pub(crate) async fn serve_streams(
    gate: Rc<Gate>,
    mut opened: Opened,
    via: Via,
    stream: AgentStream,
) -> io::Result<()> {
    let served = version2::serve(stream).await;
    let (mut connection, _window) = served.inspect_err(|error| note_failure(&mut opened, error))?;
    let via = Rc::new(via);
    let going = Rc::new(());
    let mut is_ending = false;
    loop {
        let next = tokio::time::timeout(IDLE, connection.accept()).await;
        let (request, respond) = match next {
            Ok(Some(Ok(stream))) => stream,
            Ok(Some(Err(error))) => {
                if error.is_library() {
                    opened.has_request();
                    let denial = Denial::new(Guard::Framing, version2::misdeed(&error));
                    let shown = via.shown(None);
                    audit::record_refused_unasked(
                        &gate,
                        via.plane(),
                        shown.as_deref().unwrap_or(UNREADABLE),
                        denial,
                    );
                }
                let error = version2::broken(error);
                note_failure(&mut opened, &error);
                return Err(error);
            }
            Ok(None) => return Ok(()),
            // A stream that is still being served keeps its connection.
            Err(_) if Rc::strong_count(&going) > 1 => continue,
            Err(late) if is_ending => return Err(late.into()),
            Err(_) => {
                // What the agent sends before it hears of that is served (RFC 9113 §6.8).
                connection.graceful_shutdown();
                is_ending = true;
                continue;
            }
        };
        // A stream that the agent resets leaves the library's count but is still served here: both counts are bounded (CVE-2023-44487).
        let has_room = Rc::strong_count(&going) <= version2::MOST_STREAMS as usize;
        let permit = http2_limits::stream_permit().filter(|_| has_room && !gate.ending().has_begun());
        let Some(permit) = permit else {
            let mut respond = respond;
            respond.send_reset(h2::Reason::REFUSED_STREAM);
            continue;
        };
        opened.has_request();
        let (gate, via, going) = (Rc::clone(&gate), Rc::clone(&via), Rc::clone(&going));
        tokio::task::spawn_local(async move {
            let _ = serve_stream(&gate, &via, request, respond).await;
            drop((going, permit));
        });
    }
}

/// Notes that the connection failed, if that is not for what it carries.
fn note_failure(opened: &mut Opened, error: &io::Error) {
    if version2::is_of_transport(error) {
        opened.broke_off(error);
    }
}

async fn serve_stream(
    gate: &Rc<Gate>,
    via: &Via,
    request: http::Request<RecvStream>,
    respond: SendResponse<Bytes>,
) -> io::Result<()> {
    // Until the answer is handed to the connection, which its record does not always outlast.
    let _under_way = gate.ending().begin();
    let (parts, body) = request.into_parts();
    let fields = version2::fields(&parts.headers);
    let extent = Extent::asked_by(parts.method.as_str(), Version::Http2, &fields);
    let refusals = RefusalForm::asked_by(parts.method.as_str(), &fields);
    let answer = Answer::Version2 { stream: respond, extent, refusals };
    let head = match head_of(&parts, fields, body.is_end_stream()) {
        Ok(head) => head,
        Err(why) => {
            let denial = Denial::new(Guard::Framing, why);
            let shown = via.shown(parts.uri.path_and_query().map(http::uri::PathAndQuery::as_str));
            let recorded = shown.as_deref().unwrap_or(UNREADABLE);
            let denial = audit::record_refused_unasked(gate, via.plane(), recorded, denial);
            let reply = problem::denied(&denial, &shown.unwrap_or_default(), gate.run(), 400);
            return answer.reply(reply, After::KeepAlive).await.map(drop);
        }
    };
    handle(gate, via, Request { head, body: Incoming::Version2(body) }, answer).await.map(drop)
}

/// Converts a head of HTTP/2: `:authority` becomes `Host`, and a `host` field beside it must be the same.
fn head_of(
    parts: &http::request::Parts,
    mut fields: Fields,
    ended: bool,
) -> Result<RequestHead, &'static str> {
    let method = Method::parse(parts.method.as_str()).ok_or("the method is none")?;
    if method.as_str() == "CONNECT" {
        return Err("CONNECT is for the proxy at port 8081");
    }
    let target = parts.uri.path_and_query().ok_or("there is no path")?.as_str().to_owned();
    let authority = parts.uri.authority().map(http::uri::Authority::as_str);
    // The library drops the scheme where there is no `:authority`: a request may have `host` in its place (RFC 9113 §8.3.1).
    if authority.is_some() && parts.uri.scheme_str() != Some("https") {
        return Err("the scheme is not https, as this connection's is");
    }
    match (authority, fields.values("host").count()) {
        (None, 1) => {}
        (Some(authority), 0) => fields.push("host", authority.as_bytes()),
        (Some(authority), 1) if fields.text("host") == Some(authority) => {}
        _ => return Err("there must be exactly one authority"),
    }
    join_cookies(&mut fields);
    let length = fields.text("content-length").and_then(|text| text.parse().ok());
    let body = match length {
        _ if ended => BodyLength::None,
        Some(size) => BodyLength::Sized(size),
        None => BodyLength::Chunked,
    };
    Ok(RequestHead { method, target, fields, body, version: Version::Http2, keep_alive: true })
}

/// Joins cookies into one field: only HTTP/2 allows one field for each (RFC 9113 §8.2.3).
fn join_cookies(fields: &mut Fields) {
    let crumbs: Vec<&[u8]> = fields.values("cookie").collect();
    if crumbs.len() > 1 {
        let joined = crumbs.join(&b"; "[..]);
        fields.set("cookie", &joined);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, UnixStream};
    use tokio::task::LocalSet;

    use super::*;
    use crate::fixture::{gate_for, records_in};
    use crate::opened::NoRequest;

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_does_not_hear_that_its_connection_ends_loses_it() {
        let (ours, mut agent) = UnixStream::pair().unwrap();
        // The preface and an empty SETTINGS (RFC 9113 §3.4).
        agent.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let served = serve_streams(
            gate_for("", Vec::new(), None),
            Opened::unrecorded(),
            Via::Proxy,
            AgentStream::Unix(ours),
        );
        let served = LocalSet::new().run_until(tokio::time::timeout(3 * IDLE, served)).await;
        assert_eq!(served.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_crosses_the_end_of_its_connection_is_answered() {
        let (ours, mut agent) = UnixStream::pair().unwrap();
        // The preface and an empty SETTINGS (RFC 9113 §3.4).
        agent.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let served = serve_streams(
            gate_for("", Vec::new(), None),
            Opened::unrecorded(),
            Via::Proxy,
            AgentStream::Unix(ours),
        );
        let crosses = async {
            let (mut reads, mut writes) = agent.split();
            let mut until = async |wanted| {
                loop {
                    let mut head = [0; 9];
                    reads.read_exact(&mut head).await.expect("the connection goes on");
                    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
                    reads.read_exact(&mut vec![0; length as usize]).await.unwrap();
                    if head[3] == wanted {
                        return;
                    }
                }
            };
            const GOAWAY: u8 = 7;
            const HEADERS: u8 = 1;
            until(GOAWAY).await;
            // GET https://a.test/ in a stream of its own, that ends with its HEADERS (RFC 7541 §6).
            writes.write_all(b"\0\0\x0b\x01\x05\0\0\0\x01\x82\x87\x84\x01\x06a.test").await.unwrap();
            until(HEADERS).await;
        };
        let answered = async {
            tokio::task::spawn_local(served);
            crosses.await;
        };
        LocalSet::new().run_until(answered).await;
    }

    #[tokio::test]
    async fn streams_beyond_those_allowed_are_refused_and_all_others_answered() {
        const ASKED: u32 = 3 * version2::MOST_STREAMS / 2;
        let (ours, mut agent) = UnixStream::pair().unwrap();
        let mut asked = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        for number in 0..ASKED {
            // GET https://a.test/, as above.
            asked.extend(b"\0\0\x0b\x01\x05");
            asked.extend((2 * number + 1).to_be_bytes());
            asked.extend(b"\x82\x87\x84\x01\x06a.test");
        }
        agent.write_all(&asked).await.unwrap();
        let served = serve_streams(
            gate_for("", Vec::new(), None),
            Opened::unrecorded(),
            Via::Proxy,
            AgentStream::Unix(ours),
        );
        let counted = async {
            tokio::task::spawn_local(served);
            let (mut answered, mut refused) = (0, 0);
            while answered + refused < ASKED {
                let mut head = [0; 9];
                agent.read_exact(&mut head).await.expect("the connection goes on");
                let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
                agent.read_exact(&mut payload).await.unwrap();
                match head[3] {
                    1 => answered += 1,                           // HEADERS
                    3 if payload == [0, 0, 0, 7] => refused += 1, // RST_STREAM, REFUSED_STREAM
                    kind => assert!(kind != 3 && kind != 7, "{kind} {payload:?}"),
                }
            }
            refused
        };
        assert_eq!(LocalSet::new().run_until(counted).await, ASKED - version2::MOST_STREAMS);
    }

    #[tokio::test]
    async fn a_connection_that_breaks_the_protocol_is_recorded() {
        // An empty PING, and a HEADERS that reserves no room for what it says (RFC 9113 §6.7, §6.2); and an end, which is none.
        for (frame, recorded) in
            [(&b"\0\0\0\x06\0\0\0\0\0"[..], 1), (b"\0\0\0\x01\x08\0\0\0\x01", 1), (b"", 0)]
        {
            let mut audit = tempfile::tempfile().unwrap();
            let gate = gate_for("", Vec::new(), Some(audit.try_clone().unwrap()));
            let (ours, mut agent) = UnixStream::pair().unwrap();
            agent.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
            agent.write_all(frame).await.unwrap();
            agent.shutdown().await.unwrap();
            let served =
                serve_streams(Rc::clone(&gate), Opened::unrecorded(), Via::Proxy, AgentStream::Unix(ours));
            let ended = LocalSet::new().run_until(served).await;
            assert!(recorded == 0 || ended.is_err());
            gate.close().unwrap();
            let records = records_in(&mut audit);
            assert_eq!(records.matches("unreadable request").count(), recorded, "{frame:?}: {records}");
        }
    }

    #[tokio::test]
    async fn a_connection_of_which_no_request_was_taken_is_recorded_itself() {
        // The library refuses the long head, and the sidecar none but while it drains.
        for (length, drains, recorded) in [
            (1, false, None),
            (1, true, Some("the sidecar ended before a request was taken")),
            (20_000, false, Some(NoRequest::NoneTaken.text())),
        ] {
            let mut audit = tempfile::tempfile().unwrap();
            let rule = "[egress]\nallow = [{ url = \"https://a.test/*\" }]\n";
            let gate = gate_for(rule, Vec::new(), Some(audit.try_clone().unwrap()));
            let (name, port) = (policy::Host::parse("a.test").unwrap(), policy::Port::new(443).unwrap());
            let asked = policy::Asked::connection(policy::Plane::Forward, name, port, policy::View::Tls);
            let exchange = crate::exchange::Exchange::begin(&gate, "CONNECT", "a.test:443".into(), asked);
            let granted = exchange.authorize(&gate).unwrap();
            let opened = Opened::granted(&gate, granted, NoRequest::NoneTaken);
            if drains {
                gate.ending().drain().await;
            }
            let (ours, theirs) = UnixStream::pair().unwrap();
            let served = serve_streams(Rc::clone(&gate), opened, Via::Proxy, AgentStream::Unix(ours));
            let asks = async {
                let (mut agent, connection) = h2::client::handshake(theirs).await.unwrap();
                tokio::task::spawn_local(connection);
                let request = http::Request::get("https://a.test/").header("x", "y".repeat(length));
                let (answer, _) = agent.send_request(request.body(()).unwrap(), true).unwrap();
                answer.await.map(|answer| answer.status().as_u16()).ok()
            };
            let (_, status) = LocalSet::new().run_until(async { tokio::join!(served, asks) }).await;
            assert_eq!((status.is_none(), status == Some(431)), (drains, length > 1), "{status:?}");
            gate.close().unwrap();
            let records = records_in(&mut audit);
            let record = records.lines().find(|line| line.contains("\"CONNECT\""));
            assert_eq!(record.is_some(), recorded.is_some(), "{records}");
            assert!(record.is_none_or(|it| it.contains(recorded.unwrap())), "{record:?}");
        }
    }

    #[tokio::test]
    async fn a_call_of_grpc_is_told_its_denial_by_a_status() {
        for (method, content_type, status) in [
            ("POST", "application/grpc+proto", 200),
            ("GET", "application/grpc+proto", 403),
            ("HEAD", "application/grpc", 403),
            ("POST", "application/json", 403),
        ] {
            let gate = gate_for("", Vec::new(), None);
            let (ours, theirs) = UnixStream::pair().unwrap();
            let (host, port) = policy::Authority::parse_tunnel("a.test:443").unwrap();
            let via =
                Via::Bound { plane: policy::Plane::Transparent, scheme: policy::Scheme::Https, host, port };
            let asks = async {
                tokio::task::spawn_local(serve_streams(
                    gate,
                    Opened::unrecorded(),
                    via,
                    AgentStream::Unix(ours),
                ));
                let (mut agent, connection) = h2::client::handshake(theirs).await.unwrap();
                tokio::task::spawn_local(connection);
                let request = http::Request::builder()
                    .method(method)
                    .uri("https://a.test/a.Service/Call")
                    .header("content-type", content_type)
                    .header("te", "trailers");
                let (answer, _) = agent.send_request(request.body(()).unwrap(), true).unwrap();
                answer.await.unwrap()
            };
            let answer = LocalSet::new().run_until(asks).await;
            let fields = version2::fields(answer.headers());
            let is_call = status == 200;
            assert_eq!(answer.status().as_u16(), status, "{content_type}");
            assert_eq!(answer.body().is_end_stream(), is_call || method == "HEAD", "{content_type}");
            assert_eq!(fields.text("x-lockgate-denied"), Some("host_not_allowed"), "{content_type}");
            assert_eq!(fields.text("grpc-status"), is_call.then_some("7"), "{content_type}");
            let why = "no rule allows a.test; lockgate policy allow a.test:443";
            assert_eq!(fields.text("grpc-message"), is_call.then_some(why), "{content_type}");
        }
    }

    #[tokio::test]
    async fn a_stream_that_is_reset_has_its_upstream_dialled_no_longer() {
        let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = upstream.local_addr().unwrap();
        let mut audit = tempfile::tempfile().unwrap();
        let rule = format!("[egress]\nallow = [{{ url = \"https://{at}/*\" }}]\n");
        let gate = gate_for(&rule, Vec::new(), Some(audit.try_clone().unwrap()));
        let host = policy::Host::Address(at.ip());
        let port = policy::Port::new(at.port()).unwrap();
        let via = Via::Bound { plane: policy::Plane::Transparent, scheme: policy::Scheme::Https, host, port };
        let (ours, theirs) = UnixStream::pair().unwrap();
        let served = async {
            tokio::task::spawn_local(serve_streams(
                Rc::clone(&gate),
                Opened::unrecorded(),
                via,
                AgentStream::Unix(ours),
            ));
            let (mut agent, connection) = h2::client::handshake(theirs).await.unwrap();
            tokio::task::spawn_local(connection);
            let request = http::Request::get(format!("https://{at}/")).body(()).unwrap();
            let (_answer, mut stream) = agent.send_request(request, true).unwrap();
            // It shakes no hands, so that the upstream is dialled for 10 s.
            let (mut dialled, _) = upstream.accept().await.unwrap();
            stream.send_reset(h2::Reason::CANCEL);
            tokio::time::timeout(Duration::from_secs(5), dialled.read_to_end(&mut Vec::new())).await
        };
        LocalSet::new().run_until(served).await.expect("it is dialled no longer").unwrap();
        gate.close().unwrap();
        let records = records_in(&mut audit);
        assert!(records.contains("the agent gave the request up"), "{records}");
    }

    #[test]
    fn a_request_has_one_authority_in_either_field() {
        let head = |uri: &str, hosts: &[&str]| {
            let mut request = http::Request::get(uri);
            for host in hosts {
                request = request.header("host", *host);
            }
            let parts = request.body(()).unwrap().into_parts().0;
            let head = head_of(&parts, version2::fields(&parts.headers), true)?;
            Ok::<_, &str>(head.fields.text("host").unwrap().to_owned())
        };
        for (uri, hosts) in [
            ("https://a.example/x", &[][..]),
            ("https://a.example/x", &["a.example"]),
            ("/x", &["a.example"]), // what the library makes of a request without `:authority`
        ] {
            assert_eq!(head(uri, hosts), Ok("a.example".to_owned()), "{uri} {hosts:?}");
        }
        for (uri, hosts) in [
            ("/x", &[][..]),
            ("/x", &["a.example", "a.example"]),
            ("https://a.example/x", &["b.example"]),
            ("https://a.example/x", &["a.example", "b.example"]),
            ("http://a.example/x", &[]),
        ] {
            assert!(head(uri, hosts).is_err(), "{uri} {hosts:?}");
        }
    }
}
