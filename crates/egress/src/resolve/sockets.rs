//! The sockets over which one name server is asked.
//!
//! Each is connected, so the kernel tells at once that nobody listens or that no way leads there, and what others send is not received.
//! The library's own are not, and its error for all of that is that there are no connections.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hickory_resolver::net::runtime::{DnsUdpSocket, RuntimeProvider, TokioRuntimeProvider};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Makes the sockets to one server.
#[derive(Clone, Default)]
pub(super) struct Sockets {
    runtime: TokioRuntimeProvider,
    /// The network interface on which the server is, if its address means nothing without.
    interface: u32,
    /// Why the last socket that failed did so.
    failure: Failure,
}

type Failure = Arc<Mutex<Option<String>>>;

type Future<T> = Pin<Box<dyn std::future::Future<Output = io::Result<T>> + Send>>;

impl Sockets {
    pub(super) fn on_interface(interface: u32) -> Self {
        Self { interface, ..Self::default() }
    }

    #[cfg(test)]
    pub(super) fn interface(&self) -> u32 {
        self.interface
    }

    /// Returns why the last socket that failed did so.
    pub(super) fn failure(&self) -> Option<String> {
        locked(&self.failure).clone()
    }

    fn reached(&self, mut server: SocketAddr) -> SocketAddr {
        if let SocketAddr::V6(server) = &mut server {
            server.set_scope_id(self.interface);
        }
        server
    }

    fn noting_failure<T: 'static>(&self, made: Future<T>) -> Future<T> {
        let failure = Arc::clone(&self.failure);
        Box::pin(async move { note(&failure, made.await) })
    }
}

impl RuntimeProvider for Sockets {
    type Handle = <TokioRuntimeProvider as RuntimeProvider>::Handle;
    type Timer = <TokioRuntimeProvider as RuntimeProvider>::Timer;
    type Udp = Connected;
    type Tcp = <TokioRuntimeProvider as RuntimeProvider>::Tcp;

    fn create_handle(&self) -> Self::Handle {
        self.runtime.create_handle()
    }

    fn connect_tcp(
        &self,
        server: SocketAddr,
        local: Option<SocketAddr>,
        timeout: Option<Duration>,
    ) -> Future<Self::Tcp> {
        self.noting_failure(self.runtime.connect_tcp(self.reached(server), local, timeout))
    }

    fn bind_udp(&self, local: SocketAddr, server: SocketAddr) -> Future<Self::Udp> {
        let (server, failure) = (self.reached(server), Arc::clone(&self.failure));
        self.noting_failure(Box::pin(async move {
            let socket = UdpSocket::bind(local).await?;
            socket.connect(server).await?;
            Ok(Connected::of(socket, failure))
        }))
    }
}

/// A datagram socket whose errors end the wait for an answer.
pub(super) struct Connected {
    socket: Arc<UdpSocket>,
    /// Ends when the kernel has an error for it, of which the runtime wakes nobody who waits to receive.
    failed: Mutex<Future<()>>,
    failure: Failure,
}

impl Connected {
    fn of(socket: UdpSocket, failure: Failure) -> Self {
        let socket = Arc::new(socket);
        let watched = Arc::clone(&socket);
        let failed = async move {
            watched.ready(Interest::ERROR).await?;
            watched.take_error()?.map_or(Ok(()), Err)
        };
        Self { socket, failed: Mutex::new(Box::pin(failed)), failure }
    }
}

impl DnsUdpSocket for Connected {
    type Time = <UdpSocket as DnsUdpSocket>::Time;

    fn poll_recv_from(
        &self,
        context: &mut Context<'_>,
        octets: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        let received = DnsUdpSocket::poll_recv_from(&*self.socket, context, octets);
        if received.is_ready() {
            return received;
        }
        let mut failed = locked(&self.failed);
        let Poll::Ready(ended) = failed.as_mut().poll(context) else { return Poll::Pending };
        *failed = Box::pin(pending()); // it has ended, and each socket is for one question
        match note(&self.failure, ended) {
            Err(error) => Poll::Ready(Err(error)),
            Ok(()) => Poll::Pending,
        }
    }

    fn poll_send_to(
        &self,
        context: &mut Context<'_>,
        octets: &[u8],
        server: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        DnsUdpSocket::poll_send_to(&*self.socket, context, octets, server)
            .map(|sent| note(&self.failure, sent))
    }
}

fn note<T>(failure: &Failure, outcome: io::Result<T>) -> io::Result<T> {
    outcome.inspect_err(|why| *locked(failure) = Some(why.to_string()))
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn that_nothing_may_be_sent_is_noted() {
        let failure = Failure::default();
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        // A datagram to the limited broadcast address is refused without leave (EACCES).
        let server = (std::net::Ipv4Addr::BROADCAST, 53).into();
        let connected = Connected::of(socket, Arc::clone(&failure));
        let sent = poll_fn(|context| connected.poll_send_to(context, b"x", server)).await;
        assert_eq!(locked(&failure).as_deref(), Some(&*sent.unwrap_err().to_string()));
    }
}
