//! Carries a granted connection: checks that what it carries is what the rule allows, then copies octets both ways.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use policy::{Carriage, Plane, Scheme};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::clear::serve_clear;
use super::client_hello::ServerName;
use super::refuse::{RefuseBy, refuse, unreachable};
use super::second_hello::{self, Judged};
use super::sniff::{self, Carried};
use super::terminate::terminate;
use super::{agree, copy, not_tls, preface};
use crate::cause::cause;
use crate::exchange::{Exchange, Flow, Pinned};
use crate::gate::Gate;
use crate::http::{Buffered, Via};
use crate::opened::Opened;
use crate::upstream::{self, Dialled};

/// How long a tunnel may be idle. Interactive sessions pause for long.
pub(super) const IDLE: Duration = Duration::from_secs(3600);
/// The length of the head of a frame of HTTP/2 (RFC 9113 §4.1).
const FRAME_HEAD: usize = 9;
/// How long the rest of a first frame's head may take from a server before what came is passed on, and how often it is looked for.
const REST_OF_FRAME: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(10);

/// Carries a redirected connection of any protocol, on a port where either side may speak first.
pub(super) async fn carry_any(
    gate: &Rc<Gate>,
    mut exchange: Exchange<Pinned>,
    agent: Buffered<TcpStream>,
) -> io::Result<()> {
    match upstream::dial(gate, &mut exchange).await {
        Ok(upstream) => carry_both(gate, Plane::Transparent, exchange, agent, upstream, IDLE).await,
        Err(error) => unreachable(exchange, agent, &error).await,
    }
}

/// Carries a redirected TLS connection, if its ClientHello names the granted host.
pub(super) async fn carry_tls(
    gate: &Gate,
    mut exchange: Exchange<Pinned>,
    agent: Buffered<TcpStream>,
    name: &ServerName,
) -> io::Result<()> {
    if let Err(denial) = agree(exchange.grant().host(), name) {
        exchange.refuse(denial);
        return refuse(agent, RefuseBy::TlsAlert).await;
    }
    match upstream::dial(gate, &mut exchange).await {
        Ok(upstream) => splice_tls(exchange, agent, upstream, IDLE).await,
        Err(error) => unreachable(exchange, agent, &error).await,
    }
}

/// Carries a redirected connection that is not TLS.
pub(super) async fn carry_other(
    gate: &Gate,
    mut exchange: Exchange<Pinned>,
    agent: Buffered<TcpStream>,
) -> io::Result<()> {
    match upstream::dial(gate, &mut exchange).await {
        Ok(upstream) => copy::both_ways(exchange, agent, upstream, IDLE).await,
        Err(error) => unreachable(exchange, agent, &error).await,
    }
}

/// Waits for either side to speak, and judges the agent's first octets before it forwards any of them.
pub(super) async fn carry_both(
    gate: &Rc<Gate>,
    plane: Plane,
    mut exchange: Exchange<Pinned>,
    mut agent: Buffered<TcpStream>,
    mut upstream: Dialled,
    idle: Duration,
) -> io::Result<()> {
    if exchange.grant().is_companion() {
        // A companion serves one host, so the octets cannot name a neighbour of it, and no credential is bound to it.
        return copy::both_ways(exchange, agent, upstream, idle).await;
    }
    let only_tls = exchange.grant().carriage() == Carriage::Tls;
    let mut has_left = false; // the upstream, before anything was judged
    let carried = tokio::select! {
        biased;
        carried = sniff::sniff(&mut agent, idle) => carried,
        // The upstream speaks first: SSH, SMTP, MySQL. A rule for TLS waits for the agent.
        spoken = spoken_first(&mut upstream), if !only_tls => {
            let spoken = match spoken {
                Ok(Spoken::InPart) => {
                    let flow = Flow::of(exchange.record(), 0);
                    Box::pin(pass_back_until_told(&mut agent, &mut upstream, &flow.received, idle)).await
                }
                Ok(Spoken::Whole(carried)) => {
                    has_left = carried == Carried::Nothing;
                    Ok(carried)
                }
                Err(error) => Err(error),
            };
            match spoken {
                Ok(carried) => carried,
                Err(error) => return unreachable(exchange, agent, &error).await,
            }
        }
    };
    let checked = match carried {
        // Whichever port it is: what is bound may be answered at each. Its requests are dialled for by themselves.
        Carried::Tls(_) if exchange.grant().is_bound() => {
            drop(upstream);
            let granted = exchange.into_granted();
            return Box::pin(terminate(gate, plane, granted, agent, carried)).await;
        }
        Carried::Tls(name) => match agree(exchange.grant().host(), &name) {
            Ok(()) => return splice_tls(exchange, agent, upstream, idle).await,
            Err(denial) => Err((denial, RefuseBy::TlsAlert)),
        },
        // A client that only listens, as to a server that speaks first.
        Carried::End if !only_tls => Ok(()),
        Carried::End | Carried::Nothing | Carried::Late(_) => {
            match agent.ahead.len() {
                held if held > 0 && has_left => exchange.record().upstream_failed(&held_back(held)),
                _ => exchange.record().fail(&carried.unsaid()),
            }
            return Ok(());
        }
        Carried::Preface => Err((preface(), RefuseBy::Reset)),
        Carried::Http | Carried::Other if only_tls => Err((not_tls(), RefuseBy::Reset)),
        Carried::Http => {
            drop(upstream);
            return serve_clear_requests(gate, plane, exchange, agent).await;
        }
        Carried::Other => Ok(()),
    };
    match checked {
        Ok(()) => copy::both_ways(exchange, agent, upstream, idle).await,
        Err((denial, by)) => {
            exchange.refuse(denial);
            refuse(agent, by).await
        }
    }
}

/// What is known of a server that spoke first.
#[derive(Debug, PartialEq, Eq)]
enum Spoken {
    /// What it and its client carry.
    Whole(Carried),
    /// It has begun what may be a first frame of HTTP/2, and says no more for now.
    InPart,
}

/// Says that octets were held back to the end: what says too little may wait for a server that waits for it.
fn held_back(held: usize) -> io::Error {
    let octets = if held == 1 { "octet was" } else { "octets were" };
    io::Error::other(format!(
        "{held} {octets} held back until it would be clear what they begin, as by the end of a line, and no more came"
    ))
}

/// Judges what a server says that speaks first. Many of HTTP/2 begin with their SETTINGS (RFC 9113 §3.4); a client's requests to one name
/// their host, as those do of a client that was faster.
async fn spoken_first(upstream: &mut Dialled) -> io::Result<Spoken> {
    let mut head = [0; FRAME_HEAD];
    let mut since = None;
    loop {
        match upstream.look(&mut head).await? {
            0 => return Ok(Spoken::Whole(Carried::Nothing)),
            said => match judge_server(&head[..said]) {
                Some(carried) => return Ok(Spoken::Whole(carried)),
                // What came stays to be read, so a socket tells nothing of more.
                None if since.get_or_insert_with(Instant::now).elapsed() < REST_OF_FRAME => {
                    tokio::time::sleep(LOOK).await;
                }
                None => return Ok(Spoken::InPart),
            },
        }
    }
}

/// Passes on to the agent what the server says, who may wait for it, until that is judged. The agent's own first octets are judged as if
/// it had spoken first: none of them goes out before.
async fn pass_back_until_told(
    agent: &mut Buffered<TcpStream>,
    upstream: &mut Dialled,
    received: &Cell<u64>,
    idle: Duration,
) -> io::Result<Carried> {
    let (reader, mut writer) = agent.reader.split();
    let mut from_agent = Buffered { ahead: std::mem::take(&mut agent.ahead), reader };
    let judged = async {
        let (mut head, mut said) = ([0; FRAME_HEAD], 0);
        loop {
            let until = said + upstream.read(&mut head[said..]).await?;
            if until == said {
                return Ok(Carried::Other); // a server of HTTP/2 that has ended answers nothing
            }
            writer.write_all(&head[said..until]).await?;
            received.set(until as u64);
            said = until;
            if let Some(carried) = judge_server(&head[..said]) {
                return Ok(carried);
            }
        }
    };
    let carried = tokio::select! {
        biased;
        carried = sniff::sniff(&mut from_agent, idle) => Ok(carried),
        judged = judged => judged,
    };
    agent.ahead = from_agent.ahead;
    carried
}

/// Judges the first octets that a server says, as far as they go. Returns `None` while more are needed.
fn judge_server(said: &[u8]) -> Option<Carried> {
    match begins_settings(said) {
        false => Some(Carried::Other),
        true => (said.len() == FRAME_HEAD).then_some(Carried::Http),
    }
}

/// Whether octets are the first ones, as far as they go, of the head of a frame of SETTINGS (RFC 9113 §6.5).
fn begins_settings(said: &[u8]) -> bool {
    // As many pairs of an identifier and a value as fit in the least that a frame may hold.
    let (length, rest) = said.split_at(said.len().min(3));
    let is_length = match *length {
        [0, high, low] => u16::from_be_bytes([high, low]) % 6 == 0,
        _ => length.first() == Some(&0),
    };
    is_length && [4, 0, 0, 0, 0, 0].starts_with(rest)
}

/// Carries TLS whose ClientHello agrees with the grant, if a second one does as well.
async fn splice_tls(
    mut exchange: Exchange<Pinned>,
    mut agent: Buffered<TcpStream>,
    mut upstream: Dialled,
    idle: Duration,
) -> io::Result<()> {
    let granted = exchange.grant().host().clone();
    let flow = Flow::of(exchange.record(), 0);
    // In a box, so that a connection that goes on does not hold the room for this.
    let judged = Box::pin(second_hello::judge(&granted, &mut agent, &mut upstream, &flow)).await;
    drop(flow);
    let judged = match judged {
        Ok(judged) => judged,
        Err(error) => {
            exchange
                .record()
                .note(&format!("the connection broke off before TLS was agreed: {}", cause(&error)));
            agent.reader.set_zero_linger()?;
            return Err(error);
        }
    };
    match judged {
        Judged::Agreed => copy::both_ways(exchange, agent, upstream, idle).await,
        Judged::Denied(denial) => {
            exchange.refuse(denial);
            refuse(agent, RefuseBy::TlsAlert).await
        }
        Judged::Silent => {
            exchange.record().note("nothing moved for too long");
            Ok(())
        }
    }
}

/// Serves requests in the clear. Each is judged by itself, or `Host` could name a neighbour of the granted host (E10).
async fn serve_clear_requests(
    gate: &Rc<Gate>,
    plane: Plane,
    exchange: Exchange<Pinned>,
    agent: Buffered<TcpStream>,
) -> io::Result<()> {
    let grant = exchange.grant();
    let (host, port) = (grant.host().clone(), grant.port());
    let via = Via::Bound { plane, scheme: Scheme::Http, host, port };
    serve_clear(gate, Opened::reached(exchange), via, agent).await
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use policy::{Host, Port};

    use super::*;
    use crate::fixture::{gate_for, options_for, records_in};
    use crate::tls::RunAuthority;
    use crate::trusted::Trusted;
    use crate::upstream::Entrance;
    use crate::{GateOptions, SigningKey};

    /// Returns a client, what is read of it, and its granted tunnel to a host.
    async fn tunnel_to(
        gate: &Rc<Gate>,
        host: &str,
        port: u16,
    ) -> (TcpStream, Buffered<TcpStream>, Exchange<Pinned>) {
        let agents = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = Port::new(agents.local_addr().unwrap().port()).unwrap();
        let client = Entrance::at([127, 0, 0, 1].into()).connect(at).await.unwrap();
        let agent = Buffered::new(agents.accept().await.unwrap().0);
        let (name, port) = (Host::parse(host).unwrap(), Port::new(port).unwrap());
        let granted = super::super::ask(gate, "CONNECT", format!("{host}:{port}"), name, port).unwrap();
        (client, agent, granted.pin(gate).await.unwrap())
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_request_in_the_clear_has_the_only_record() {
        let upstream = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = upstream.local_addr().unwrap().port();
        let rule =
            format!("[egress]\nallow = [{{ host = \"a.example:{port}\", addresses = [\"127.0.0.1\"] }}]\n");
        let mut audit = tempfile::tempfile().unwrap();
        let gate = gate_for(&rule, Vec::new(), Some(audit.try_clone().unwrap()));
        let (mut client, agent, exchange) = tunnel_to(&gate, "a.example", port).await;
        // A neighbour of the granted host.
        client.write_all(b"GET /x HTTP/1.1\r\nHost: b.example\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        let served = carry_any(&gate, exchange, agent);
        let (served, read) = tokio::join!(served, client.read_to_end(&mut answer));
        served.and(read.map(drop)).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&answer));
        gate.close().unwrap();
        let records = records_in(&mut audit);
        let told: Vec<&str> = records.lines().filter(|line| line.contains(".example")).collect();
        assert!(
            matches!(told[..], [only] if only.contains("\"denied\"") && only.contains("/x")),
            "{told:#?}"
        );
    }

    /// What a server reads that says this, the rest after a pause, of a client that says this after a while; and what the client reads, and
    /// the records.
    async fn both_say(
        (first, pause, rest): (&[u8], Duration, &[u8]),
        (wait, says): (Duration, &[u8]),
    ) -> (Vec<u8>, Vec<u8>, String) {
        let upstream = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = upstream.local_addr().unwrap().port();
        let rule =
            format!("[egress]\nallow = [{{ host = \"a.example:{port}\", addresses = [\"127.0.0.1\"] }}]\n");
        let mut audit = tempfile::tempfile().unwrap();
        let gate = gate_for(&rule, Vec::new(), Some(audit.try_clone().unwrap()));
        let (mut client, agent, exchange) = tunnel_to(&gate, "a.example", port).await;
        let inside = async {
            tokio::time::sleep(wait).await;
            client.write_all(says).await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = Vec::new();
            let _ = client.read_to_end(&mut answer).await;
            answer
        };
        let outside = async {
            let (mut stream, mut seen) = (upstream.accept().await.unwrap().0, Vec::new());
            stream.write_all(first).await.unwrap();
            tokio::time::sleep(pause).await;
            let _ = stream.write_all(rest).await;
            let _ = stream.read_to_end(&mut seen).await;
            seen
        };
        let (_, answer, seen) = tokio::join!(carry_any(&gate, exchange, agent), inside, outside);
        gate.close().unwrap();
        (seen, answer, records_in(&mut audit))
    }

    #[tokio::test(flavor = "current_thread")]
    async fn http_2_in_the_clear_is_refused_whoever_speaks_first() {
        const SETTINGS: &[u8] = b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64";
        let soon = 4 * LOOK;
        let (begun, rest) = SETTINGS.split_at(4);
        // In two segments at last, of which the second is late, or comes after the client has spoken.
        for (server, wait) in [
            ((&b""[..], soon, &b""[..]), Duration::ZERO),
            ((SETTINGS, soon, b""), 5 * soon),
            ((begun, soon, rest), 5 * soon),
            ((begun, 2 * REST_OF_FRAME, rest), 3 * REST_OF_FRAME),
            ((begun, 3 * REST_OF_FRAME, rest), 2 * REST_OF_FRAME),
        ] {
            let (seen, _, records) = both_say(server, (wait, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")).await;
            assert!(seen.is_empty(), "{}", seen.escape_ascii());
            let denied = records.lines().find(|line| line.contains("\"denied\"")).expect("it is denied");
            assert!(denied.contains("http_framing") && denied.contains("HTTP/2 in the clear"), "{denied}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_first_record_in_the_tls_of_a_proxy_may_be_short() {
        let made = rcgen::generate_simple_self_signed(["proxy.example".to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let config = rustls::ServerConfig::builder_with_provider(crate::tls::provider());
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = config.with_single_cert(vec![certificate.clone()], key).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate).unwrap();
        let config = rustls::ClientConfig::builder_with_provider(crate::tls::provider());
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));

        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = Port::new(listener.local_addr().unwrap().port()).unwrap();
        let proxy = async {
            let mut stream = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
            for record in [&b"\0\0\0\x04"[..], b"\0\0\0\0\0"] {
                stream.write_all(record).await.unwrap();
                stream.flush().await.unwrap();
            }
            let _ = stream.read(&mut [0]).await;
        };
        let sidecar = async {
            let stream = Entrance::at([127, 0, 0, 1].into()).connect(at).await.unwrap();
            let stream = connector.connect("proxy.example".try_into().unwrap(), stream).await.unwrap();
            let mut upstream = Dialled::Tls(Box::new(stream));
            let spoken = spoken_first(&mut upstream).await.unwrap();
            assert_eq!(spoken, Spoken::InPart, "the second record is not read before the first");
            let agents = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let at = Port::new(agents.local_addr().unwrap().port()).unwrap();
            let _client = Entrance::at([127, 0, 0, 1].into()).connect(at).await.unwrap();
            let mut agent = Buffered::new(agents.accept().await.unwrap().0);
            pass_back_until_told(&mut agent, &mut upstream, &Cell::new(0), IDLE).await.unwrap()
        };
        assert_eq!(tokio::join!(sidecar, proxy).0, Carried::Http);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn who_speaks_another_protocol_is_carried_though_the_server_began_like_http_2() {
        for (pause, wait) in [(1, 3), (3, 2)] {
            let server = (&b"\0\0\0"[..], pause * REST_OF_FRAME, &b"\x01x"[..]);
            let (seen, answer, records) = both_say(server, (wait * REST_OF_FRAME, b"\x01y")).await;
            assert_eq!((&seen[..], &answer[..]), (&b"\x01y"[..], &b"\0\0\0\x01x"[..]), "{records}");
            assert!(records.contains("\"received\":5") && records.contains("\"allowed\""), "{records}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn octets_that_a_server_has_not_said_make_no_frame() {
        let (in_part, other) = (|| Spoken::InPart, || Spoken::Whole(Carried::Other));
        for (said, then, expected) in [
            (&b"\0\0\0\x04"[..], &b""[..], in_part()),
            (b"\0\0\x06\x04", b"", in_part()),
            (b"\0", b"\0\0\x04\0\0\0\0\0", Spoken::Whole(Carried::Http)),
            (b"\0\0\0\x04", b"\0\0\0\0\x01", other()),
            (b"\0\0\x07\x04\0\0\0\0\0", b"", other()),
            (b"SSH-2.0-x\r\n", b"", other()),
        ] {
            let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let at = Port::new(listener.local_addr().unwrap().port()).unwrap();
            let stream = Entrance::at([127, 0, 0, 1].into()).connect(at).await.unwrap();
            let (mut server, mut upstream) = (listener.accept().await.unwrap().0, Dialled::Tcp(stream));
            let says = async {
                server.write_all(said).await.unwrap();
                tokio::time::sleep(4 * LOOK).await;
                server.write_all(then).await.unwrap();
            };
            let (carried, ()) = tokio::join!(spoken_first(&mut upstream), says);
            assert_eq!(carried.unwrap(), expected, "{} {}", said.escape_ascii(), then.escape_ascii());
        }
    }

    /// What becomes of a connection to a port of this host, where a credential is bound to another port of `a.example`: what the program
    /// inside reads of it, what the upstream reads, and the records.
    async fn carried(host: &str, says: Says) -> (String, Vec<u8>, String) {
        let upstream = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = upstream.local_addr().unwrap().port();
        let policy = format!(
            "[[provider]]\nid = \"one\"\nauthorized_uris = [\"http://a.example:1/*\"]\n[egress]\nallow = [\
             {{ host = \"a.example:{port}\", addresses = [\"127.0.0.1\"] }}, {{ host = \"b.example:{port}\", addresses = [\"127.0.0.1\"] }}]\n"
        );
        let mut audit = tempfile::tempfile().unwrap();
        let authority = RunAuthority::make().unwrap();
        let roots = Trusted::in_pem(authority.certificate_pem().as_bytes()).authorities;
        let signed = (Arc::new(audit.try_clone().unwrap()), SigningKey::generate().unwrap().0);
        let options = options_for(&policy);
        let options = GateOptions { authority: Some(authority), audit: Some(signed), ..options };
        let gate = Gate::open(options).unwrap();
        let (mut client, agent, exchange) = tunnel_to(&gate, host, port).await;
        let is_held = matches!(says, Says::Held(_));
        let inside = async {
            let mut answer = Vec::new();
            let octets = match says {
                Says::Held(octets) => {
                    client.write_all(octets).await.unwrap();
                    let _ = client.read_to_end(&mut answer).await;
                    return answer;
                }
                Says::Clear(octets) => {
                    client.write_all(octets).await.unwrap();
                    client.shutdown().await.unwrap();
                    let _ = client.read_to_end(&mut answer).await;
                    return answer;
                }
                Says::Tls(text) => text.replace("PORT", &port.to_string()),
            };
            let config = rustls::ClientConfig::builder_with_provider(crate::tls::provider());
            let config = config.with_safe_default_protocol_versions().unwrap();
            let config = config.with_root_certificates(roots).with_no_client_auth();
            let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
            if let Ok(mut client) = connector.connect(host.to_owned().try_into().unwrap(), client).await {
                client.write_all(octets.as_bytes()).await.unwrap();
                client.shutdown().await.unwrap();
                let _ = client.read_to_end(&mut answer).await;
            }
            answer
        };
        let outside = async {
            let mut seen = vec![0; 64];
            let mut stream = upstream.accept().await.unwrap().0;
            if is_held {
                tokio::time::sleep(4 * LOOK).await;
                stream.shutdown().await.unwrap();
            }
            let length = stream.read(&mut seen).await.unwrap();
            seen.truncate(length);
            seen
        };
        let served = carry_any(&gate, exchange, agent);
        let (_, answer, seen) = tokio::join!(served, inside, outside);
        gate.close().unwrap();
        (String::from_utf8(answer).unwrap(), seen, records_in(&mut audit))
    }

    /// What a program says: in the clear, and no more, or while it waits for a server that gives it up; or in TLS, there with the port of
    /// its upstream.
    enum Says {
        Clear(&'static [u8]),
        Held(&'static [u8]),
        Tls(&'static str),
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_was_held_back_until_the_server_gave_up_is_told() {
        let (_, seen, records) = carried("a.example", Says::Held(b"JDWP-Handshake")).await;
        assert!(seen.is_empty() && records.contains("14 octets were held back"), "{records}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn why_a_line_of_another_protocol_is_read_as_http_is_told() {
        let (answer, seen, records) = carried("a.example", Says::Clear(b"get /views/home\r\n\r\n")).await;
        assert!(seen.is_empty() && answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(records.contains("is read as HTTP"), "{records}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn tls_is_opened_at_every_port_of_a_host_that_a_credential_is_bound_to() {
        // C22: the agent's own key, in TLS.
        const OWN_KEY: &str = "GET /x HTTP/1.1\r\nHost: a.example:PORT\r\nAuthorization: Bearer own\r\n\r\n";
        let (answer, seen, records) = carried("a.example", Says::Tls(OWN_KEY)).await;
        assert!(seen.is_empty(), "{}", seen.escape_ascii());
        assert!(answer.starts_with("HTTP/1.1 4") && records.contains("\"pinned\""), "{answer}{records}");
        // Another protocol in TLS: no answer but why.
        let (answer, seen, records) = carried("a.example", Says::Tls("*1\r\n$4\r\nPING\r\n")).await;
        assert!(seen.is_empty() && answer.contains("only HTTP is understood"), "{answer}");
        assert!(records.contains("http_framing"), "{records}");
        // Controls: SSH, what begins in the clear, and TLS to a host without a credential, which the upstream's certificate is for.
        for octets in [&b"SSH-2.0-x\r\n"[..], b"\0\0\0\x08\x04\xd2\x16\x2f", b"a1 STARTTLS\r\n"] {
            let (_, seen, records) = carried("a.example", Says::Clear(octets)).await;
            assert!(seen == octets && records.contains("\"allowed\""), "{}: {records}", seen.escape_ascii());
        }
        let (_, seen, _) = carried("b.example", Says::Tls(OWN_KEY)).await;
        assert_eq!(seen.first(), Some(&0x16), "{}", seen.escape_ascii());
    }
}
