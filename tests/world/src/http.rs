//! One HTTP connection from its first octet to its last: over TLS or not, in HTTP/1.1 or HTTP/2, and its records. A request is recorded
//! before it is answered.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::authority::{Authority, Face};
use crate::http1;
use crate::http2;
use crate::recorder::{Recorder, Visit};
use crate::response::Reaction;
use crate::routes::Services;
use crate::tap::Tap;
use crate::wire::{Body, Head, latin1};

/// The recorded part of a body or a frame: usually an agent's whole conversation.
pub(crate) const RECORDED_BODY: usize = 256 * 1024;
/// The time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// How long a peer may still send after the last answer.
pub(crate) const LINGER: Duration = Duration::from_secs(1);
/// The time limit of `/hang`.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// The shared parts of every web server of the world.
#[derive(Clone)]
pub(crate) struct Web {
    pub(crate) authority: Arc<Authority>,
    pub(crate) services: Arc<Services>,
    pub(crate) recorder: Recorder,
}

/// How a connection begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    Plain,
    Tls,
    /// By the first octet: 0x16 is a TLS handshake (RFC 8446 §5.1) and begins no request.
    Either,
}

/// The negotiated protocol.
#[derive(Debug, Clone, Copy)]
enum Protocol {
    Http1,
    Http2,
}

/// The shared properties of the requests of one connection.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) visit: Visit,
    pub(crate) scheme: &'static str,
    /// The server name of the TLS handshake, or null.
    pub(crate) sni: Value,
}

impl Web {
    /// Serves one connection to its end.
    pub(crate) async fn serve(&self, stream: TcpStream, visit: &Visit, opening: Opening) -> io::Result<()> {
        let tls = match opening {
            Opening::Plain => false,
            Opening::Tls => true,
            Opening::Either => {
                let mut first = [0];
                timeout(HANDSHAKE, stream.peek(&mut first)).await?? == 1 && first[0] == 0x16
            }
        };
        let session = |scheme, sni| Session { visit: visit.clone(), scheme, sni };
        if !tls {
            return self.converse(stream, Protocol::Http1, &session("http", Value::Null)).await;
        }
        match timeout(HANDSHAKE, self.shake_hands(stream, visit)).await {
            Ok(Some((stream, sni))) => {
                let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let protocol = if http2 { Protocol::Http2 } else { Protocol::Http1 };
                self.converse(stream, protocol, &session("https", sni)).await
            }
            Ok(None) => Ok(()),
            Err(_) => {
                self.recorder.visit(visit, "tls-failed", json!({ "error": "the handshake did not end" }));
                Ok(())
            }
        }
    }

    async fn shake_hands(&self, stream: TcpStream, visit: &Visit) -> Option<(TlsStream<TcpStream>, Value)> {
        let failed = |sni: &Value, error: String| {
            self.recorder.visit(visit, "tls-failed", json!({ "sni": sni, "error": error }));
        };
        let start = match LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream).await {
            Ok(start) => start,
            Err(error) => {
                failed(&Value::Null, error.to_string());
                return None;
            }
        };
        let hello = start.client_hello();
        let sni = hello.server_name().map_or(Value::Null, Value::from);
        let alpn: Vec<String> = hello.alpn().into_iter().flatten().map(latin1).collect();
        let face = match visit.server {
            "badname" => Face::OtherName,
            "expired" => Face::Expired,
            "selfsigned" => Face::SelfSigned,
            "unknownca" => Face::UnknownAuthority,
            "iponly" => Face::AddressOnly,
            _ => Face::Honest,
        };
        let config = match self.authority.offer(face, sni.as_str()) {
            Ok(config) => config,
            Err(error) => {
                failed(&sni, error.to_string());
                return None;
            }
        };
        match start.into_stream(config).await {
            Ok(stream) => {
                let session = stream.get_ref().1;
                let version = session.protocol_version().map(|version| format!("{version:?}"));
                let negotiated = session.alpn_protocol().map(latin1);
                let detail =
                    json!({ "sni": sni, "alpn": alpn, "negotiated": negotiated, "version": version });
                self.recorder.visit(visit, "tls", detail);
                Some((stream, sni))
            }
            Err(error) => {
                failed(&sni, error.to_string());
                None
            }
        }
    }

    /// Serves the peer in the protocol it chose, then records the connection as a whole.
    async fn converse<S>(&self, stream: S, protocol: Protocol, session: &Session) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let tap = Tap::default();
        let stream = tap.on(stream);
        let ended = match protocol {
            Protocol::Http1 => http1::serve(self, stream, session).await,
            Protocol::Http2 => http2::serve(self, stream, session).await,
        };
        let (received, raw) = tap.received();
        let detail = json!({ "scheme": session.scheme, "received": received, "raw": raw });
        self.recorder.visit(&session.visit, "closed", detail);
        ended
    }

    /// Records a request, and returns the reaction to it.
    pub(crate) async fn react(&self, session: &Session, head: &Head, body: &Body) -> Reaction {
        self.record_request(session, head, body);
        self.services.answer(session.visit.server, session.scheme, head, body).await
    }

    pub(crate) fn record_request(&self, session: &Session, head: &Head, body: &Body) {
        self.recorder.visit(&session.visit, "request", detail(session, head, body));
    }

    /// Records a request whose body did not arrive whole.
    pub(crate) fn record_cut(&self, session: &Session, head: &Head, why: String) {
        let mut detail = detail(session, head, &Body::default());
        detail["why"] = why.into();
        self.recorder.visit(&session.visit, "request-cut", detail);
    }

    /// Records octets that are no request.
    pub(crate) fn record_malformed(&self, session: &Session, why: &str) {
        let detail = json!({ "scheme": session.scheme, "sni": session.sni, "why": why });
        self.recorder.visit(&session.visit, "malformed", detail);
    }
}

fn detail(session: &Session, head: &Head, body: &Body) -> Value {
    json!({
        "scheme": session.scheme,
        "sni": session.sni,
        "line": head.line,
        "method": head.method,
        "path": head.target,
        "host": head.header("host"),
        "headers": head.headers,
        "body_length": body.length,
        "body": latin1(&body.kept[..body.kept.len().min(RECORDED_BODY)]),
        "trailers": body.trailers,
    })
}
