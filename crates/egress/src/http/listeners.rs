//! Accepts the HTTP connections of the proxy's and the gateway's ports, and of the gateway's Unix socket.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;

use super::head::Buffered;
use super::json_lines;
use super::request::Via;
use super::serve1::serve_requests;
use super::strangers::{Door, PeerFilter};
use super::stream::AgentStream;
use crate::acceptor::{Acceptor, UnixAcceptor};
use crate::gate::Gate;

/// How long the first octet on a Unix socket may take.
const FIRST_OCTET: Duration = Duration::from_secs(120);

/// Serves a TCP port of the proxy or the gateway until its listener fails.
pub(crate) async fn serve_http(
    gate: Rc<Gate>,
    acceptor: Acceptor,
    via: Via,
    peers: Option<PeerFilter>,
) -> io::Result<()> {
    let door = Door::of(&gate, via.plane(), peers);
    loop {
        let (stream, permit) = acceptor.accept().await?;
        if !door.admits(&stream) {
            continue;
        }
        let (gate, via) = (Rc::clone(&gate), via.clone());
        tokio::task::spawn_local(async move {
            let _ = serve_requests(gate, via, AgentStream::Tcp(stream), BytesMut::new()).await;
            drop(permit);
        });
    }
}

/// Serves the gateway's Unix socket until its listener fails, or the sidecar ends: HTTP, or the JSON form of S2 if the first octet is a
/// brace.
pub(crate) async fn serve_gateway_socket(gate: Rc<Gate>, listener: UnixAcceptor) -> io::Result<()> {
    loop {
        let (stream, permit) = tokio::select! {
            biased;
            // A listener that was shut down does not fail as one of TCP does: Linux says for ever that there is nobody yet.
            () = gate.ending().begun() => return Ok(()),
            accepted = listener.accept() => accepted?,
        };
        let gate = Rc::clone(&gate);
        tokio::task::spawn_local(async move {
            let mut agent = Buffered::new(stream);
            let first = agent.fill(FIRST_OCTET).await;
            let _ = match (first, agent.ahead.first()) {
                (Ok(1..), Some(b'{')) => json_lines::serve(gate, agent).await,
                (Ok(1..), _) => {
                    let Buffered { ahead, reader } = agent;
                    serve_requests(gate, Via::Gateway, AgentStream::Unix(reader), ahead).await
                }
                _ => Ok(()),
            };
            drop(permit);
        });
    }
}
