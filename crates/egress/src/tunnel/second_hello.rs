//! Judges the second ClientHello of a connection, which a server of TLS 1.3 may ask for (HelloRetryRequest, RFC 8446 §4.1.4). It comes in
//! the clear, and servers go by the name in it, so it must carry the granted name as the first one did.
//!
//! Only the server's answer tells whether there is one. Until it has come, nothing behind the first ClientHello is passed on: a second one
//! that is sent at once would be read by the server before it were judged here. A client that waits for its answer loses nothing.

use std::time::Duration;
use std::{future, io};

use bytes::Buf;
use policy::{Denial, Host};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::agree;
use super::client_hello::{self, Hello, LARGEST_HELLO, ServerName};
use crate::exchange::Flow;
use crate::http::Buffered;
use crate::upstream::Dialled;

/// How long a server may take to answer the first ClientHello, and an agent to send the second one.
const PATIENCE: Duration = Duration::from_secs(120);
/// How many octets of the answer are looked at. A ServerHello has its random value among the first 43; each octet could have a record of
/// its own.
const LOOK: usize = 512;
/// The longest record (RFC 8446 §5.2), with its header.
const LONGEST_RECORD: usize = HEADER + 16384 + 256;
/// The size of a record's header.
const HEADER: usize = 5;

const CHANGE_CIPHER_SPEC: u8 = 0x14;
const ALERT: u8 = 0x15;
const HANDSHAKE: u8 = 0x16;
const APPLICATION_DATA: u8 = 0x17;

const HELLO_REQUEST: u8 = 0;
const SERVER_HELLO: u8 = 2;
/// The level of an alert that ends a connection.
const FATAL: u8 = 2;
/// The random value that makes a ServerHello a HelloRetryRequest (RFC 8446 §4.1.3).
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2,
    0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// What is known of a connection once no further name can come in the clear.
#[derive(Debug)]
pub(super) enum Judged {
    /// No name but the granted one was said.
    Agreed,
    /// The second ClientHello does not agree. It was not passed on.
    Denied(Denial),
    /// A side said nothing for too long.
    Silent,
}

/// Passes on the first ClientHello, which has agreed and is the first thing in `agent`, and whatever comes before a second one, if that is
/// asked for. What has agreed and is not passed on stays in `agent`.
pub(super) async fn judge(
    granted: &Host,
    agent: &mut Buffered<TcpStream>,
    upstream: &mut Dialled,
    flow: &Flow<'_>,
) -> io::Result<Judged> {
    let Some(end) = client_hello::end_of(&agent.ahead) else { return Ok(unread(granted)) };
    pass_there(agent, end, upstream, flow).await?;
    let judged = async {
        match is_another_asked_for(agent, upstream, flow).await? {
            true => judge_second(granted, agent, upstream, flow).await,
            false => Ok(Judged::Agreed),
        }
    };
    tokio::time::timeout(PATIENCE, judged).await.unwrap_or(Ok(Judged::Silent))
}

/// Waits for the server's answer, or for the agent to end its direction: then it can send no other ClientHello.
async fn is_another_asked_for(
    agent: &mut Buffered<TcpStream>,
    upstream: &mut Dialled,
    flow: &Flow<'_>,
) -> io::Result<bool> {
    let mut seen = Vec::new();
    let mut buffer = [0; LOOK];
    loop {
        let length = tokio::select! {
            length = upstream.look(&mut buffer[seen.len()..]) => length?,
            () = has_ended(agent) => return Ok(false),
        };
        if length == 0 {
            return Ok(false); // the server's end
        }
        let until = seen.len() + length;
        buffer[..seen.len()].copy_from_slice(&seen);
        match asks_for_another(&buffer[..until]) {
            Some(is_asked_for) => return Ok(is_asked_for),
            // Such an answer is no server's. What follows it must be a ClientHello that agrees.
            None if until == LOOK => return Ok(true),
            None => {}
        }
        // It is passed on, to be woken by what follows.
        let part = &mut buffer[seen.len()..until];
        upstream.read_exact(part).await?;
        pass_back(part, agent, flow).await?;
        seen = buffer[..until].to_vec();
    }
}

/// Waits until the agent has ended its direction and said nothing behind the first ClientHello. What it said may be a second one.
async fn has_ended(agent: &Buffered<TcpStream>) {
    if !agent.ahead.is_empty() || matches!(agent.reader.peek(&mut [0]).await, Ok(1..)) {
        future::pending().await
    }
}

/// Whether the octets of a server's answer ask for another ClientHello; `None` while more are needed.
fn asks_for_another(answer: &[u8]) -> Option<bool> {
    let mut rest = answer;
    let mut message = Vec::with_capacity(LOOK);
    loop {
        let (kind, length) = header(rest)?;
        let fragment = &rest[HEADER..];
        match kind {
            HANDSHAKE => message.extend_from_slice(&fragment[..length.min(fragment.len())]),
            ALERT if fragment.first() == Some(&FATAL) => return Some(false),
            ALERT | CHANGE_CIPHER_SPEC => {} // a warning, before the answer
            _ => return Some(false),
        }
        // A server may always send an empty HelloRequest, which a client that waits for an answer passes over (RFC 5246 §7.4.1.1).
        while message.starts_with(&[HELLO_REQUEST, 0, 0, 0]) {
            message.drain(..4);
        }
        match message.first() {
            Some(&SERVER_HELLO) => {
                if let Some(random) = message.get(6..38) {
                    return Some(random == RETRY);
                }
            }
            Some(&HELLO_REQUEST) | None => {}
            Some(_) => return Some(false),
        }
        rest = fragment.get(length..)?;
    }
}

/// Returns the type and the length of the record that begins here, if its header is whole.
fn header(octets: &[u8]) -> Option<(u8, usize)> {
    let &[kind, _, _, high, low, ..] = octets else { return None };
    Some((kind, u16::from_be_bytes([high, low]).into()))
}

/// Judges the second ClientHello. What the server says meanwhile is passed on, as is what may come before.
async fn judge_second(
    granted: &Host,
    agent: &mut Buffered<TcpStream>,
    upstream: &mut Dialled,
    flow: &Flow<'_>,
) -> io::Result<Judged> {
    let mut buffer = vec![0; 4096];
    loop {
        match next(&agent.ahead) {
            Next::Harmless(length) => {
                pass_there(agent, length, upstream, flow).await?;
                continue;
            }
            Next::Hello(name) => {
                return Ok(agree(granted, &name).map_or_else(Judged::Denied, |()| Judged::Agreed));
            }
            Next::Partial => {}
        }
        agent.ahead.reserve(2048);
        tokio::select! {
            length = upstream.read(&mut buffer) => match length? {
                0 => return Ok(Judged::Agreed), // there is no server any more
                length => pass_back(&buffer[..length], agent, flow).await?,
            },
            length = agent.reader.read_buf(&mut agent.ahead) => {
                if length? == 0 {
                    agent.ahead.clear(); // half a message, which no server reads
                    return Ok(Judged::Agreed);
                }
            }
        }
    }
}

/// What an agent says after it was asked for another ClientHello.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// A record of this length that names nobody: early data, which a server passes over then, a ChangeCipherSpec, or an alert.
    Harmless(usize),
    /// The ClientHello, as far as it can be read.
    Hello(ServerName),
    /// More is needed.
    Partial,
}

fn next(octets: &[u8]) -> Next {
    let Some((kind, length)) = header(octets) else { return Next::Partial };
    let end = HEADER + length;
    match kind {
        APPLICATION_DATA | CHANGE_CIPHER_SPEC | ALERT if end <= LONGEST_RECORD => {
            if octets.len() < end {
                Next::Partial
            } else {
                Next::Harmless(end)
            }
        }
        HANDSHAKE => match client_hello::read(octets) {
            Hello::Partial if octets.len() < LARGEST_HELLO => Next::Partial,
            Hello::Complete(name) if client_hello::end_of(octets).is_some() => {
                Next::Hello(name.map_or(ServerName::None, ServerName::Said))
            }
            Hello::Refused(lacking) => Next::Hello(ServerName::Refused(lacking)),
            Hello::Partial | Hello::Complete(_) | Hello::Malformed => Next::Hello(ServerName::Unread),
        },
        _ => Next::Hello(ServerName::Unread),
    }
}

fn unread(granted: &Host) -> Judged {
    agree(granted, &ServerName::Unread).map_or_else(Judged::Denied, |()| Judged::Agreed)
}

/// Passes the first octets of the agent on.
async fn pass_there(
    agent: &mut Buffered<TcpStream>,
    length: usize,
    upstream: &mut Dialled,
    flow: &Flow<'_>,
) -> io::Result<()> {
    upstream.write_all(&agent.ahead[..length]).await?;
    upstream.flush().await?;
    agent.ahead.advance(length);
    flow.sent.set(flow.sent.get() + length as u64);
    Ok(())
}

async fn pass_back(octets: &[u8], agent: &mut Buffered<TcpStream>, flow: &Flow<'_>) -> io::Result<()> {
    agent.reader.write_all(octets).await?;
    flow.received.set(flow.received.get() + octets.len() as u64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use policy::{Guard, Hostname, Plane};
    use rustls::crypto::{CryptoProvider, aws_lc_rs};
    use rustls::{ClientConfig, HandshakeKind, ServerConfig};
    use tokio::net::TcpListener;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::super::client_hello::tests::client_hello;
    use super::super::sniff::sniff;
    use super::*;
    use crate::audit::Record;
    use crate::fixture::gate_for;
    use crate::tls::{Leaves, RunAuthority};

    fn granted() -> Host {
        Host::Name(Hostname::parse("api.example.com").unwrap())
    }

    fn record(kind: u8, content: &[u8]) -> Vec<u8> {
        [&[kind, 3, 3][..], &(content.len() as u16).to_be_bytes(), content].concat()
    }

    /// The message that begins a server's answer, with this random value.
    fn server_hello(random: &[u8; 32]) -> Vec<u8> {
        let body = [&[3, 3][..], random, &[0, 0x13, 1, 0, 0, 6, 0, 0x33, 0, 2, 0, 24]].concat();
        [&[SERVER_HELLO, 0, 0, body.len() as u8][..], &body].concat()
    }

    /// Returns both ends of a connection.
    #[expect(clippy::disallowed_methods, reason = "a test on this machine")]
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    /// Judges a connection, and goes on with one that agrees until it ends.
    async fn carry(agent: TcpStream, upstream: TcpStream) -> io::Result<Judged> {
        let mut agent = Buffered::new(agent);
        sniff(&mut agent, PATIENCE).await;
        let mut upstream = Dialled::Tcp(upstream);
        let gate = gate_for("", Vec::new(), None);
        let mut record = Record::begin(&gate, Plane::Transparent, "TCP", "api.example.com:443".into());
        let flow = Flow::of(&mut record, 0);
        let judged = judge(&granted(), &mut agent, &mut upstream, &flow).await?;
        if let Judged::Agreed = judged {
            upstream.write_all(&agent.ahead).await?;
            upstream.flush().await?;
            tokio::io::copy_bidirectional(&mut agent.reader, &mut upstream).await?;
        }
        Ok(judged)
    }

    #[tokio::test]
    async fn an_agent_that_says_no_more_is_judged_all_the_same() {
        let first = client_hello(Some(b"api.example.com"));
        let both = [&first[..], &client_hello(Some(b"evil.example.org"))].concat();
        let ((mut agent, ours), (dialled, mut server)) = (pair().await, pair().await);
        agent.write_all(&both).await.unwrap();
        agent.shutdown().await.unwrap();
        let serve = async {
            let mut got = vec![0; first.len()];
            server.read_exact(&mut got).await.unwrap();
            // The sidecar knows by then that the agent has ended its direction.
            tokio::time::sleep(Duration::from_millis(50)).await;
            server.write_all(&record(HANDSHAKE, &server_hello(&RETRY))).await.unwrap();
            let _ = server.read_to_end(&mut got).await;
            got
        };
        let (got, judged) = tokio::join!(serve, carry(ours, dialled));
        assert!(matches!(judged.unwrap(), Judged::Denied(denial) if denial.guard == Guard::SniMismatch));
        assert_eq!(got, first);
    }

    /// What a server that answers the first ClientHello with this gets of an agent that says these things, and the verdict. The agent
    /// waits for the answer before it says the second of them.
    async fn talk(answer: &[u8], says: [&[u8]; 2]) -> (Vec<u8>, Judged) {
        let ((mut agent, ours), (dialled, mut server)) = (pair().await, pair().await);
        let talk = async {
            agent.write_all(says[0]).await.unwrap();
            let mut got = vec![0; client_hello(Some(b"api.example.com")).len()];
            server.read_exact(&mut got).await.unwrap();
            // What is denied is cut at once, so either end may find itself alone.
            for octet in answer {
                let _ = server.write_all(&[*octet]).await;
                tokio::task::yield_now().await;
            }
            let _ = agent.read_exact(&mut vec![0; answer.len()]).await;
            let _ = agent.write_all(says[1]).await;
            let _ = agent.shutdown().await;
            let _ = server.read_to_end(&mut got).await;
            drop((agent, server));
            got
        };
        let (got, judged) = tokio::join!(talk, carry(ours, dialled));
        (got, judged.unwrap())
    }

    #[tokio::test]
    async fn a_second_name_is_judged_as_the_first_was() {
        let first = client_hello(Some(b"api.example.com"));
        let retry = record(HANDSHAKE, &server_hello(&RETRY));
        let (spec, early) = (record(CHANGE_CIPHER_SPEC, &[1]), record(APPLICATION_DATA, &[7; 300]));
        let two = [&record(HANDSHAKE, &first[HEADER..])[..], b""].concat();
        let coalesced = record(
            HANDSHAKE,
            &[&first[HEADER..], &client_hello(Some(b"evil.example.org"))[HEADER..]].concat(),
        );
        for (second, guard) in [
            (client_hello(Some(b"evil.example.org")), Some(Guard::SniMismatch)),
            (client_hello(None), Some(Guard::NoSni)),
            (coalesced, Some(Guard::NoSni)),
            (record(HANDSHAKE, &[11, 0, 0, 3, 0, 0, 0]), Some(Guard::NoSni)),
            (b"GET / HTTP/1.1\r\n\r\n".to_vec(), Some(Guard::NoSni)),
            (two, None),
        ] {
            // A ChangeCipherSpec and early data may be before it. It may come at once, or when it is asked for.
            let more = [&spec[..], &early, &second].concat();
            for says in [[&first[..], &more], [&[&first[..], &more].concat(), b""], [&first[..], &second]] {
                let (got, judged) = talk(&retry, says).await;
                let denied = match &judged {
                    Judged::Denied(denial) => Some(denial.guard),
                    _ => None,
                };
                assert_eq!(denied, guard, "{second:x?}: {judged:?}");
                assert_eq!(got.ends_with(&second), guard.is_none(), "{second:x?}");
                assert!(got.starts_with(&first));
            }
        }
    }

    #[tokio::test]
    async fn what_follows_any_other_answer_is_carried_as_it_is() {
        let first = client_hello(Some(b"api.example.com"));
        let hello = server_hello(&[9; 32]);
        let split = [
            record(HANDSHAKE, &hello[..3]),
            record(HANDSHAKE, &hello[3..20]),
            record(HANDSHAKE, &hello[20..]),
        ];
        for answer in
            [record(HANDSHAKE, &hello), split.concat(), record(ALERT, &[2, 40]), b"HTTP/1.1 400\r\n".to_vec()]
        {
            let more = client_hello(Some(b"evil.example.org")); // as in a renegotiation, which no server takes in the clear
            let (got, judged) = talk(&answer, [&first, &more]).await;
            assert!(
                matches!(judged, Judged::Agreed) && got == [&first[..], &more].concat(),
                "{answer:x?}: {judged:?}"
            );
        }
    }

    #[test]
    fn only_one_answer_asks_for_another() {
        let (retry, hello) = (server_hello(&RETRY), server_hello(&[9; 32]));
        let warning = record(ALERT, &[1, 112]);
        for (before, message, is_asked_for) in [
            (&b""[..], &retry, true),
            (&warning, &retry, true),
            (&record(HANDSHAKE, &[HELLO_REQUEST, 0, 0, 0]), &retry, true),
            (&b""[..], &hello, false),
            (&warning, &hello, false),
        ] {
            let octets: Vec<u8> = message.iter().flat_map(|octet| record(HANDSHAKE, &[*octet])).collect();
            for answer in [[before, &record(HANDSHAKE, message)].concat(), [before, &octets].concat()] {
                assert_eq!(asks_for_another(&answer), Some(is_asked_for), "{answer:x?}");
                let decided = (0..answer.len()).find_map(|end| asks_for_another(&answer[..end]));
                assert_eq!(decided, Some(is_asked_for), "and no sooner otherwise: {answer:x?}");
            }
        }
        for answer in [&b""[..], b"\x16\x03", &record(ALERT, &[1, 112])] {
            assert_eq!(asks_for_another(answer), None, "{answer:x?}");
        }
        assert_eq!(asks_for_another(b"HTTP/1.1 400"), Some(false));
    }

    #[tokio::test]
    async fn real_ends_agree_whether_or_not_another_is_asked_for() {
        let authority = RunAuthority::make().unwrap();
        let roots = crate::trusted::Trusted::in_pem(authority.certificate_pem().as_bytes()).authorities;
        let leaf = Leaves::of(authority).config(&granted()).unwrap();
        let all = aws_lc_rs::default_provider();
        for (groups, kind) in [
            (vec![aws_lc_rs::kx_group::SECP384R1], HandshakeKind::FullWithHelloRetryRequest),
            (all.kx_groups.clone(), HandshakeKind::Full),
        ] {
            let provider = Arc::new(CryptoProvider { kx_groups: groups, ..all.clone() });
            let server =
                ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
            let server = server.with_no_client_auth().with_cert_resolver(leaf.cert_resolver.clone());
            let client = ClientConfig::builder_with_provider(Arc::new(all.clone()));
            let client = client.with_safe_default_protocol_versions().unwrap();
            let client = client.with_root_certificates(roots.clone()).with_no_client_auth();
            let ((agent, ours), (dialled, theirs)) = (pair().await, pair().await);
            let serve = async {
                let mut stream = TlsAcceptor::from(Arc::new(server)).accept(theirs).await.unwrap();
                stream.write_all(b"hello").await.unwrap();
                stream.shutdown().await.unwrap();
            };
            let ask = async {
                let name = "api.example.com".try_into().unwrap();
                let mut stream = TlsConnector::from(Arc::new(client)).connect(name, agent).await.unwrap();
                let mut said = String::new();
                stream.read_to_string(&mut said).await.unwrap();
                assert_eq!((said.as_str(), stream.get_ref().1.handshake_kind()), ("hello", Some(kind)));
            };
            let (_, (), ()) = tokio::join!(carry(ours, dialled), serve, ask);
        }
    }
}
