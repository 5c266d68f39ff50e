//! What is said of a connection that another process of ours has accepted, before its first octet: who it is from. Where an engine
//! would hide that from a sidecar, a process of the machine accepts in its place ([`super::port_forwarder`]) and introduces each.
//!
//! ```text
//! secret (32 octets)  address (16 octets; of IPv4 as ::ffff:a.b.c.d)
//! ```
//! The secret is the run's own: whoever else reaches the sidecar does not know it, and nothing it says counts.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use credential::Secret;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use zeroize::Zeroizing;

/// How long the secret is.
pub const INTRODUCER: usize = 32;
const ADDRESS: usize = 16;
const LENGTH: usize = INTRODUCER + ADDRESS;
/// How long it may take: it is there with the connection, or does not come.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is said of a connection from somewhere.
pub(super) fn introduce(secret: &Secret, source: IpAddr) -> Zeroizing<Vec<u8>> {
    let address = match source {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    Zeroizing::new([secret.expose(), &address.octets()].concat())
}

/// Who a connection is from, as somebody says who knows the secret; nothing where nobody does.
pub(super) async fn introduced(stream: &mut TcpStream, secret: &Secret) -> Option<IpAddr> {
    let mut said = Zeroizing::new([0; LENGTH]);
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut said[..])).await.ok()?.ok()?;
    let (presented, address) = said.split_at(INTRODUCER);
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

    async fn heard(said: &[u8]) -> Option<IpAddr> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = Port::new(listener.local_addr().unwrap().port()).unwrap();
        let mut there = Entrance::at(Ipv4Addr::LOCALHOST).connect(port).await.unwrap();
        there.write_all(said).await.unwrap();
        drop(there);
        let (mut here, _) = listener.accept().await.unwrap();
        introduced(&mut here, &Secret::new(vec![7; INTRODUCER])).await
    }

    #[tokio::test]
    async fn only_who_knows_the_secret_says_who_it_is() {
        let secret = Secret::new(vec![7; INTRODUCER]);
        for source in ["192.0.2.9", "127.0.0.1", "::1", "2001:db8::1"] {
            let source: IpAddr = source.parse().unwrap();
            assert_eq!(heard(&introduce(&secret, source)).await, Some(source));
        }
        let source = "127.0.0.1".parse().unwrap();
        assert_eq!(heard(&introduce(&Secret::new(vec![8; INTRODUCER]), source)).await, None);
        assert_eq!(heard(&introduce(&secret, source)[..LENGTH - 1]).await, None);
    }
}
