//! Serves the requests of a connection in the clear.

use std::io;
use std::rc::Rc;

use tokio::net::TcpStream;

use crate::gate::Gate;
use crate::http::{AgentStream, Buffered, Via, serve_opened};
use crate::opened::Opened;

/// Serves requests of HTTP/1. Boxed, so that the many connections that are carried hold no memory for it.
pub(super) async fn serve_clear(
    gate: &Rc<Gate>,
    opened: Opened,
    via: Via,
    agent: Buffered<TcpStream>,
) -> io::Result<()> {
    let Buffered { ahead, reader } = agent;
    Box::pin(serve_opened(Rc::clone(gate), opened, via, AgentStream::Tcp(reader), ahead)).await
}
