//! One HTTP connection, from its first byte to its last, over TLS or not: records what came, asks the routes, writes the
//! answer. A request is recorded before it is answered.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::authority::{Authority, Face};
use crate::recorder::{Recorder, Visit};
use crate::response::Response;
use crate::routes::Services;
use crate::wire::{Arrived, Body, Head, Wire, latin1};

/// How much of a body goes into the record.
const RECORDED_BODY: usize = 4096;
/// A handshake takes no longer than this.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// How long a peer may still send after the last answer.
const LINGER: Duration = Duration::from_secs(1);
/// `/hang` ends here at the latest.
const PATIENCE: Duration = Duration::from_secs(600);

/// What every web server of the world has at hand.
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
    /// By the first byte: 0x16 is a TLS handshake (RFC 8446 §5.1) and begins no request.
    Either,
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
        if !tls {
            return self.converse(stream, visit, "http", &Value::Null).await;
        }
        match timeout(HANDSHAKE, self.shake_hands(stream, visit)).await {
            Ok(Some((stream, sni))) => self.converse(stream, visit, "https", &sni).await,
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

    /// Answers requests until one side has enough, then records the connection as a whole.
    async fn converse<S>(&self, stream: S, visit: &Visit, scheme: &str, sni: &Value) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut wire = Wire::new(stream);
        let ended = self.requests(&mut wire, visit, scheme, sni).await;
        // Closing with bytes unread would reset the connection and lose the answer; and all that comes is recorded.
        let closed = wire.stream.shutdown().await;
        let _ = timeout(LINGER, wire.drain()).await;
        let (received, raw) = wire.received();
        self.recorder.visit(visit, "closed", json!({ "scheme": scheme, "received": received, "raw": raw }));
        ended.and(closed)
    }

    async fn requests<S>(
        &self,
        wire: &mut Wire<S>,
        visit: &Visit,
        scheme: &str,
        sni: &Value,
    ) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        loop {
            let head = match wire.head().await {
                Arrived::Request(head) => head,
                Arrived::Nothing => return Ok(()),
                Arrived::Malformed(why) => {
                    self.recorder.visit(
                        visit,
                        "malformed",
                        json!({ "scheme": scheme, "sni": sni, "why": why }),
                    );
                    let head = Head { method: "GET".to_owned(), ..Head::default() };
                    Response::of(400, "text/plain", why).write(&mut wire.stream, &head).await?;
                    return Ok(());
                }
            };
            let body = match wire.body(&head).await {
                Ok(body) => body,
                Err(error) => {
                    let mut detail = detail(&head, &Body::default(), scheme, sni);
                    detail["why"] = error.to_string().into();
                    self.recorder.visit(visit, "request-cut", detail);
                    return Err(error);
                }
            };
            self.recorder.visit(visit, "request", detail(&head, &body, scheme, sni));
            let response = self.services.answer(visit.server, scheme, &head, &body).await;
            if matches!(response, Response::Hang) {
                // Whichever comes first: the peer gives up, or the time is over.
                let _ = timeout(PATIENCE, wire.drain()).await;
                return Ok(());
            }
            if !response.write(&mut wire.stream, &head).await? {
                return Ok(());
            }
        }
    }
}

fn detail(head: &Head, body: &Body, scheme: &str, sni: &Value) -> Value {
    json!({
        "scheme": scheme,
        "sni": sni,
        "line": head.line,
        "method": head.method,
        "path": head.target,
        "host": head.header("host"),
        "headers": head.headers,
        "body_length": body.length,
        "body": latin1(&body.kept[..body.kept.len().min(RECORDED_BODY)]),
    })
}
