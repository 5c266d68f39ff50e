//! The connections over which one name server is asked. The library keeps one and shares it: one that is dead, or whose questions the server
//! answers one after another, then costs the names that are asked for over it. So each question over TCP has a connection of its own, as
//! it has a socket of its own over UDP.

use std::future::ready;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::once;
use hickory_resolver::config::{ConnectionConfig, ProtocolConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::tcp::TcpClientStream;
use hickory_resolver::net::xfer::{DnsExchange, DnsHandle, FirstAnswer};
use hickory_resolver::proto::op::{DnsRequest, DnsResponse};
use hickory_resolver::{ConnectionProvider, PoolContext};

use super::sockets::Sockets;

/// Makes the connections to one server.
#[derive(Clone)]
pub(super) struct Connections {
    pub(super) sockets: Sockets,
    /// How long one is waited for, and an answer over it.
    pub(super) timeout: Duration,
}

/// How a server is asked.
#[derive(Clone)]
pub(super) enum Connection {
    /// Over UDP.
    Datagrams(DnsExchange<Sockets>),
    /// Over TCP, with a connection for each question.
    Streams(SocketAddr, Connections),
}

impl ConnectionProvider for Connections {
    type Conn = Connection;
    type FutureConn = Pin<Box<dyn Future<Output = Result<Connection, NetError>> + Send>>;
    type RuntimeProvider = Sockets;

    fn new_connection(
        &self,
        ip: IpAddr,
        config: &ConnectionConfig,
        context: &PoolContext,
    ) -> Result<Self::FutureConn, NetError> {
        if matches!(config.protocol, ProtocolConfig::Tcp) {
            let server = SocketAddr::new(ip, config.port);
            return Ok(Box::pin(ready(Ok(Connection::Streams(server, self.clone())))));
        }
        let made = self.sockets.new_connection(ip, config, context)?;
        Ok(Box::pin(async { made.await.map(Connection::Datagrams) }))
    }

    fn runtime_provider(&self) -> &Sockets {
        &self.sockets
    }
}

impl DnsHandle for Connection {
    type Response = Pin<Box<dyn Stream<Item = Result<DnsResponse, NetError>> + Send>>;
    type Runtime = Sockets;

    fn send(&self, request: DnsRequest) -> Self::Response {
        match self {
            Self::Datagrams(exchange) => Box::pin(exchange.send(request)),
            Self::Streams(server, Connections { sockets, timeout }) => {
                let made = TcpClientStream::exchange(*server, None, *timeout, Some(1), sockets.clone());
                Box::pin(once(async { made.await?.send(request).first_answer().await }))
            }
        }
    }
}
