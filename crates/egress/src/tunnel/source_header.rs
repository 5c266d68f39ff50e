//! The header that [`super::port_forwarder`] sends ahead of a connection to tell its source address, which an engine would hide.
//!
//! ```text
//! secret (32 octets)  address (16 octets; of IPv4 as ::ffff:a.b.c.d)
//! ```
//! The secret is the run's own. The sidecar ignores a header without it, so others that reach its port cannot forge a source.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use credential::Secret;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use zeroize::Zeroizing;

/// The length of the secret, in octets.
pub const FORWARDER_SECRET_LENGTH: usize = 32;
const ADDRESS: usize = 16;
const LENGTH: usize = FORWARDER_SECRET_LENGTH + ADDRESS;
/// How long the header may take. The forwarder sends it as soon as the connection is made.
const PATIENCE: Duration = Duration::from_secs(2);

/// Encodes the header for a source address.
pub(super) fn encode(secret: &Secret, source: IpAddr) -> Zeroizing<Vec<u8>> {
    let address = match source {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    Zeroizing::new([secret.expose(), &address.octets()].concat())
}

/// Reads the header, and returns the source address if the secret is right.
pub(super) async fn read(stream: &mut TcpStream, secret: &Secret) -> Option<IpAddr> {
    let mut header = Zeroizing::new([0; LENGTH]);
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut header[..])).await.ok()?.ok()?;
    let (presented, address) = header.split_at(FORWARDER_SECRET_LENGTH);
    let address: [u8; ADDRESS] = address.try_into().ok()?;
    secret.matches(presented).then(|| Ipv6Addr::from(address).to_canonical())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use policy::Port;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::upstream::Entrance;

    async fn read_from(octets: &[u8]) -> Option<IpAddr> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = Port::new(listener.local_addr().unwrap().port()).unwrap();
        let mut there = Entrance::at(Ipv4Addr::LOCALHOST).connect(port).await.unwrap();
        there.write_all(octets).await.unwrap();
        drop(there);
        let (mut here, _) = listener.accept().await.unwrap();
        read(&mut here, &Secret::new(vec![7; FORWARDER_SECRET_LENGTH])).await
    }

    #[tokio::test]
    async fn only_who_knows_the_secret_says_who_it_is() {
        let secret = Secret::new(vec![7; FORWARDER_SECRET_LENGTH]);
        for source in ["192.0.2.9", "127.0.0.1", "::1", "2001:db8::1"] {
            let source: IpAddr = source.parse().unwrap();
            assert_eq!(read_from(&encode(&secret, source)).await, Some(source));
        }
        let source = "127.0.0.1".parse().unwrap();
        assert_eq!(read_from(&encode(&Secret::new(vec![8; FORWARDER_SECRET_LENGTH]), source)).await, None);
        assert_eq!(read_from(&encode(&secret, source)[..LENGTH - 1]).await, None);
    }
}
