//! Records the datagrams that went nowhere. A sandbox's network delivers none: its kernel refuses them with an ICMP error at once (E20),
//! and a copy of the error comes here. It drops some without one, which leave no record: those to many, with a source route, or without
//! the checksum that IPv6 asks for.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use policy::agreed::DNS_PORT;
use policy::{Denial, Guard};
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use crate::acceptor::survive;
use crate::audit;
use crate::denied_once::{DeniedOnce, Novelty};
use crate::gate::Gate;

/// How many errors are read in a row, and how long none is read after that. An agent that sends a flood costs no more. What the socket
/// has no room for is dropped, so a flood has a record of its own.
const BATCH: usize = 256;
const PAUSE: Duration = Duration::from_millis(10);
/// Room for the headers that are read: of the error, and of the datagram with the most options.
const HEADERS: usize = 1024;
/// How many errors are still read at the end. More than the socket has room for.
const LAST: usize = 1024;

/// What stands in place of the targets that have no record of their own.
const FLOOD: &str = "datagrams faster than they are read, some of which may have no record";
const FURTHER: &str = "further targets of UDP, which are not recorded one by one";

const UDP: u8 = 17;
/// The types "destination unreachable" of RFC 792 and RFC 4443.
const UNREACHABLE_V4: u8 = 3;
const UNREACHABLE_V6: u8 = 1;
const ICMP_HEADER: usize = 8;
const V6_HEADER: usize = 40;
/// The extension headers of IPv6 that have a length: hop-by-hop, routing and destination options (RFC 8200, 4).
const EXTENSIONS: [u8; 3] = [0, 43, 60];

/// The family of addresses whose errors a socket receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// The errors come with their IP header.
    V4,
    /// They come without it.
    V6,
}

/// Records what a socket tells until it fails.
pub(crate) async fn serve_undelivered(gate: Rc<Gate>, socket: OwnedFd, family: Family) -> io::Result<()> {
    // Tokio's only socket for messages. Nothing is asked of it but to receive.
    let socket = UdpSocket::from_std(std::net::UdpSocket::from(socket))?;
    let mut errors = Errors { gate, socket, family, once: DeniedOnce::default() };
    loop {
        errors.record_batch().await?;
        tokio::time::sleep(PAUSE).await;
    }
}

/// The errors of one socket. What has come is recorded even if nobody waits for it any more.
struct Errors {
    gate: Rc<Gate>,
    socket: UdpSocket,
    family: Family,
    once: DeniedOnce,
}

impl Errors {
    async fn record_batch(&mut self) -> io::Result<()> {
        let Self { gate, socket, family, once } = self;
        socket.readable().await?;
        for _ in 0..BATCH {
            let mut headers = [0; HEADERS];
            match socket.try_io(Interest::READABLE, || receive(socket, &mut headers)) {
                Ok(received) => target(*family, received).iter().for_each(|to| record(gate, once, *to)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => survive(error).await?,
            }
        }
        record_once(gate, once, FLOOD.to_owned());
        Ok(())
    }
}

impl Drop for Errors {
    fn drop(&mut self) {
        for _ in 0..LAST {
            let mut headers = [0; HEADERS];
            let Ok(received) = receive(&self.socket, &mut headers) else { return };
            target(self.family, received).iter().for_each(|to| record(&self.gate, &mut self.once, *to));
        }
    }
}

/// Receives the beginning of an error.
fn receive<'a>(socket: &UdpSocket, headers: &'a mut [u8; HEADERS]) -> io::Result<&'a [u8]> {
    let (length, _) = recv(socket, &mut headers[..], RecvFlags::DONTWAIT)?;
    Ok(&headers[..length])
}

/// Records a datagram by the target it was sent to.
fn record(gate: &Rc<Gate>, once: &mut DeniedOnce, target: SocketAddr) {
    let host = gate.names().borrow().host_at(target.ip());
    record_once(gate, once, format!("{host}:{}", target.port()));
}

/// Records each target once.
fn record_once(gate: &Rc<Gate>, once: &mut DeniedOnce, target: String) {
    let denial = Denial::new(Guard::Protocol, "UDP does not lead out of the sandbox: only TCP does, and DNS");
    match once.denied(&target) {
        Novelty::First => audit::record_datagram(gate, target, denial),
        Novelty::TooMany => audit::record_datagram(gate, FURTHER.to_owned(), denial),
        Novelty::Known => {}
    }
}

/// Returns the target of the datagram that an error is about, if the datagram was for somebody else than the sandbox itself.
fn target(family: Family, error: &[u8]) -> Option<SocketAddr> {
    let (error, unreachable) = match family {
        Family::V4 => (error.get(v4_header_length(error)?..)?, UNREACHABLE_V4),
        Family::V6 => (error, UNREACHABLE_V6),
    };
    let packet = error.get(ICMP_HEADER..).filter(|_| error[0] == unreachable)?;
    let (to, datagram) = match family {
        Family::V4 if *packet.get(9)? == UDP => {
            (IpAddr::from(octets::<4>(packet, 16)?), v4_header_length(packet)?)
        }
        Family::V6 => (IpAddr::from(octets::<16>(packet, 24)?), end_of_v6_headers(packet)?),
        Family::V4 => return None,
    };
    let datagram = packet.get(datagram..)?;
    let from_port = u16::from_be_bytes(octets(datagram, 0)?);
    let to_port = u16::from_be_bytes(octets(datagram, 2)?);
    // An answer of our own DNS, which nobody waited for, and what a program sent to itself.
    let is_inside = from_port == DNS_PORT || to.is_loopback();
    (!is_inside).then(|| SocketAddr::new(to, to_port))
}

fn octets<const N: usize>(of: &[u8], at: usize) -> Option<[u8; N]> {
    of.get(at..at + N)?.try_into().ok()
}

fn v4_header_length(packet: &[u8]) -> Option<usize> {
    Some(usize::from(packet.first()? & 0x0f) * 4)
}

/// Returns where the UDP header begins.
fn end_of_v6_headers(packet: &[u8]) -> Option<usize> {
    let (mut next, mut at) = (*packet.get(6)?, V6_HEADER);
    while EXTENSIONS.contains(&next) {
        let [following, length] = octets(packet, at)?;
        (next, at) = (following, at + 8 * (usize::from(length) + 1));
    }
    (next == UDP).then_some(at)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use proptest::prelude::*;

    use super::*;
    use crate::fixture::{gate_for, records_in};

    /// An error about a datagram of IPv4 from 127.0.0.1, with options of the datagram's header.
    fn about_v4(to: [u8; 4], ports: [u16; 2], options: usize) -> Vec<u8> {
        let mut error = vec![0; 20 + ICMP_HEADER];
        (error[0], error[20]) = (0x45, UNREACHABLE_V4);
        let mut packet = vec![0; 20 + options];
        packet[0] = 0x45 + (options / 4) as u8;
        packet[9] = UDP;
        packet[16..20].copy_from_slice(&to);
        error.extend(packet);
        error.extend(ports.map(u16::to_be_bytes).concat());
        error.extend([0; 4]);
        error
    }

    /// The same of IPv6, with extension headers.
    fn about_v6(to: &str, ports: [u16; 2], extensions: &[u8]) -> Vec<u8> {
        let mut error = vec![0; ICMP_HEADER + V6_HEADER];
        error[0] = UNREACHABLE_V6;
        let kinds: Vec<u8> = extensions.iter().copied().chain([UDP]).collect();
        error[ICMP_HEADER + 6] = kinds[0];
        let to: std::net::Ipv6Addr = to.parse().unwrap();
        error[ICMP_HEADER + 24..].copy_from_slice(&to.octets());
        for next in &kinds[1..] {
            error.extend([*next, 1]);
            error.extend([0; 14]);
        }
        error.extend(ports.map(u16::to_be_bytes).concat());
        error.extend([0; 4]);
        error
    }

    #[test]
    fn an_error_names_its_target() {
        let v4 =
            |to, ports, options| target(Family::V4, &about_v4(to, ports, options)).map(|it| it.to_string());
        let v6 = |to, ports, extensions: &[u8]| {
            target(Family::V6, &about_v6(to, ports, extensions)).map(|it| it.to_string())
        };
        let told = |text: &str| Some(text.to_owned());
        for options in [0, 4, 40] {
            assert_eq!(v4([9, 9, 9, 9], [40000, 443], options), told("9.9.9.9:443"));
        }
        for extensions in [&[][..], &[0], &[0, 60, 43]] {
            assert_eq!(v6("2001:db8::7", [40000, 123], extensions), told("[2001:db8::7]:123"));
        }
        // A program's own, an answer of our DNS, and what is no datagram.
        assert_eq!(v4([127, 3, 3, 3], [40000, 443], 0), None);
        assert_eq!(v6("::1", [40000, 443], &[]), None);
        assert_eq!(v4([9, 9, 9, 9], [DNS_PORT, 40000], 0), None);
        assert_eq!(v6("2001:db8::7", [40000, 123], &[44]), None);
        let mut other = about_v4([9, 9, 9, 9], [40000, 443], 0);
        other[20 + ICMP_HEADER + 9] = 6;
        assert_eq!(target(Family::V4, &other), None);
        let mut exceeded = about_v4([9, 9, 9, 9], [40000, 443], 0);
        exceeded[20] = 11;
        assert_eq!(target(Family::V4, &exceeded), None);
    }

    #[tokio::test]
    async fn what_has_come_is_recorded_even_at_the_end() {
        let mut audit = tempfile::tempfile().unwrap();
        let gate = gate_for("", Vec::new(), Some(audit.try_clone().unwrap()));
        let receives = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        receives.set_nonblocking(true).unwrap();
        let at = receives.local_addr().unwrap();
        let tells = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let tell = |port| assert!(tells.send_to(&about_v4([9, 9, 9, 9], [40000, port], 0), at).is_ok());
        let serves = serve_undelivered(Rc::clone(&gate), receives.into(), Family::V4);
        {
            let mut serves = pin!(serves);
            let mut go_on = async |time| tokio::time::timeout(time, serves.as_mut()).await;
            // Twice to one, and more at once than are read at once.
            (0..2).for_each(|_| tell(1));
            go_on(PAUSE / 2).await.unwrap_err();
            (0..BATCH + 8).for_each(|_| tell(2));
            go_on(PAUSE * 8).await.unwrap_err();
            tell(3);
        }
        gate.close().unwrap();
        let text = records_in(&mut audit);
        let records = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let targets: Vec<String> = records
            .filter(|record| record["action"] == "UDP" && record["outcome"] == "denied")
            .map(|record| record["target"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(targets, ["9.9.9.9:1", "9.9.9.9:2", FLOOD, "9.9.9.9:3"]);
    }

    #[test]
    fn an_error_that_is_cut_short_names_none() {
        for (family, whole) in
            [(Family::V4, about_v4([9; 4], [1, 2], 8)), (Family::V6, about_v6("2001:db8::7", [1, 2], &[60]))]
        {
            assert!(target(family, &whole).is_some());
            for length in 0..whole.len() - 4 {
                assert_eq!(target(family, &whole[..length]), None, "{family:?} {length}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_octets_are_read(octets in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (target(Family::V4, &octets), target(Family::V6, &octets));
        }
    }
}
