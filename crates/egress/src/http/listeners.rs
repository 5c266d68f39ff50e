//! Where connections of HTTP come in: the ports of the proxy and the gateway, and the gateway's Unix socket.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::net::UnixListener;

use super::capability;
use super::head::Buffered;
use super::request::Via;
use super::serve1::serve_requests;
use super::stream::AgentStream;
use crate::gate::Gate;
use crate::serve::Acceptor;

/// How long the first octet on a Unix socket may take.
const FIRST_OCTET: Duration = Duration::from_secs(120);

/// Serves the explicit proxy until its listener fails.
pub(crate) async fn serve_forward(gate: Rc<Gate>, door: Acceptor) -> io::Result<()> {
    loop {
        let (stream, permit) = door.accept().await?;
        let gate = Rc::clone(&gate);
        tokio::task::spawn_local(async move {
            let _ = stream.set_nodelay(true);
            let _ = serve_requests(gate, Via::Proxy, AgentStream::Tcp(stream), BytesMut::new()).await;
            drop(permit);
        });
    }
}

/// Serves the gateway until its listener fails.
pub(crate) async fn serve_gateway(gate: Rc<Gate>, door: Acceptor) -> io::Result<()> {
    loop {
        let (stream, permit) = door.accept().await?;
        let gate = Rc::clone(&gate);
        tokio::task::spawn_local(async move {
            let _ = stream.set_nodelay(true);
            let _ = serve_requests(gate, Via::Gateway, AgentStream::Tcp(stream), BytesMut::new()).await;
            drop(permit);
        });
    }
}

/// Serves the gateway on a Unix socket: the same paths, and the JSON form of S2 for those who begin with a brace.
pub(crate) async fn serve_gateway_socket(gate: Rc<Gate>, listener: UnixListener) -> io::Result<()> {
    loop {
        let (stream, permit) = crate::serve::accept_unix(&listener).await?;
        let gate = Rc::clone(&gate);
        tokio::task::spawn_local(async move {
            let mut agent = Buffered::new(stream);
            let first = agent.fill(FIRST_OCTET).await;
            let _ = match (first, agent.ahead.first()) {
                (Ok(1..), Some(b'{')) => capability::serve(gate, agent).await,
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
