//! The options of every connection that is carried, whichever side began it.

use std::io;
use std::os::fd::AsFd;

use rustix::net::sockopt;

/// Sets them: what is written is sent at once, and an urgent octet (RFC 6093) stays in its place among the others. Without the second,
/// the kernel takes it out of the stream.
pub(crate) fn set(stream: impl AsFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(&stream, true)?;
    Ok(sockopt::set_socket_oobinline(&stream, true)?)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use policy::Port;

    use super::*;
    use crate::acceptor::Acceptor;
    use crate::connection_slots::ConnectionSlots;
    use crate::upstream::Entrance;

    #[tokio::test]
    async fn both_sides_of_what_is_carried_have_them() {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let at = listener.local_addr().unwrap();
        let acceptor = Acceptor::open(listener.into(), ConnectionSlots::inbound()).unwrap();
        let entrance = Entrance::at(Ipv4Addr::LOCALHOST);
        let dialled = entrance.connect(Port::new(at.port()).unwrap()).await.unwrap();
        let (accepted, _permit) = acceptor.accept().await.unwrap();
        for stream in [&dialled, &accepted] {
            assert!(stream.nodelay().unwrap() && sockopt::socket_oobinline(stream).unwrap());
        }
    }
}
