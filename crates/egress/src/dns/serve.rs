//! Serves DNS over UDP, in batches, and over TCP. The UDP socket is bound to every address, and each answer is sent from the address
//! that was asked.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg,
};
use policy::{Denial, Guard};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpStream, UdpSocket};

use super::answer::{DeniedName, HEADER, answer};
use crate::acceptor::{Acceptor, survive};
use crate::audit;
use crate::denied_once::Novelty;
use crate::gate::Gate;

/// How many datagrams are received at once.
const BATCH: usize = 32;
/// The largest question, in octets.
const QUESTION: usize = 1500;
/// How long a TCP connection may be idle, and how many questions it may ask.
const TCP_IDLE: Duration = Duration::from_secs(10);
const TCP_QUESTIONS: usize = 1000;
/// The target in the record of connections that ask nothing of DNS, of which there is one.
const NO_DNS: &str = "connection for DNS that carries none";

/// The source of a question, and the address it was sent to.
struct Asker {
    from: SockaddrStorage,
    to: Option<IpAddr>,
}

/// Serves a UDP socket until it fails.
pub(crate) async fn serve_udp(gate: Rc<Gate>, socket: OwnedFd) -> io::Result<()> {
    let socket = UdpSocket::from_std(std::net::UdpSocket::from(socket))?;
    // Many commands ask nothing, so the buffers (60 KB) are allocated at the first question.
    socket.readable().await?;
    let mut buffers = vec![[0u8; QUESTION]; BATCH];
    let mut headers: MultiHeaders<SockaddrStorage> = MultiHeaders::preallocate(BATCH, Some(room_for_info()));
    loop {
        socket.readable().await?;
        let received =
            match socket.try_io(Interest::READABLE, || receive(&socket, &mut buffers, &mut headers)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => {
                    survive(error).await?;
                    continue;
                }
                Ok(received) => received,
            };
        let mut answers = Vec::with_capacity(BATCH);
        for (index, (length, asker)) in received.into_iter().enumerate() {
            let answered = answer(&gate, &buffers[index][..length]);
            if let Some(denied) = answered.denied {
                record_denial(&gate, denied);
            }
            if let Some(bytes) = answered.bytes {
                answers.push((bytes, asker));
            }
        }
        send(&socket, &answers);
    }
}

/// A control message buffer for one address of either family.
fn room_for_info() -> Vec<u8> {
    nix::cmsg_space!(nix::libc::in6_pktinfo)
}

fn receive(
    socket: &UdpSocket,
    buffers: &mut [[u8; QUESTION]],
    headers: &mut MultiHeaders<SockaddrStorage>,
) -> io::Result<Vec<(usize, Asker)>> {
    let mut slices: Vec<[IoSliceMut<'_>; 1]> = buffers.iter_mut().map(|b| [IoSliceMut::new(b)]).collect();
    let messages = recvmmsg(socket.as_raw_fd(), headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None)?;
    let mut found = Vec::with_capacity(BATCH);
    for message in messages {
        let to = message.cmsgs().ok().and_then(|mut list| {
            list.find_map(|m| match m {
                ControlMessageOwned::Ipv6PacketInfo(info) => Some(IpAddr::from(info.ipi6_addr.s6_addr)),
                ControlMessageOwned::Ipv4PacketInfo(info) => {
                    Some(IpAddr::from(info.ipi_addr.s_addr.to_ne_bytes()))
                }
                _ => None,
            })
        });
        let from = message
            .address
            .unwrap_or_else(|| SockaddrStorage::from(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)));
        found.push((message.bytes, Asker { from, to }));
    }
    Ok(found)
}

/// Sends the answers, those with the same source address together. An answer that cannot be sent is dropped; the client asks again.
fn send(socket: &UdpSocket, answers: &[(Vec<u8>, Asker)]) {
    let mut rest = answers;
    while let Some((_, Asker { to, .. })) = rest.first() {
        let same = rest.iter().take_while(|(_, asker)| asker.to == *to).count();
        let (group, later) = rest.split_at(same);
        send_group(socket, group, *to);
        rest = later;
    }
}

fn send_group(socket: &UdpSocket, group: &[(Vec<u8>, Asker)], source: Option<IpAddr>) {
    let slices: Vec<[IoSlice<'_>; 1]> = group.iter().map(|(bytes, _)| [IoSlice::new(bytes)]).collect();
    let to: Vec<Option<SockaddrStorage>> = group.iter().map(|(_, asker)| Some(asker.from)).collect();
    let info = source.map(PacketInfo::of);
    let control: Vec<ControlMessage<'_>> = info.iter().map(PacketInfo::message).collect();
    // The kernel refuses an empty control message, so without a source there is none.
    let mut headers = MultiHeaders::preallocate(group.len(), info.as_ref().map(PacketInfo::room));
    let _ = sendmmsg(socket.as_raw_fd(), &mut headers, &slices, &to, control, MsgFlags::MSG_DONTWAIT);
}

/// The control message that sets the source address of an answer, in the socket's family.
enum PacketInfo {
    V4(nix::libc::in_pktinfo),
    V6(nix::libc::in6_pktinfo),
}

impl PacketInfo {
    fn of(source: IpAddr) -> Self {
        use nix::libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
        match source {
            IpAddr::V4(ip) => {
                let ip = in_addr { s_addr: u32::from_ne_bytes(ip.octets()) };
                Self::V4(in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: ip, ipi_addr: ip })
            }
            IpAddr::V6(ip) => {
                Self::V6(in6_pktinfo { ipi6_addr: in6_addr { s6_addr: ip.octets() }, ipi6_ifindex: 0 })
            }
        }
    }

    fn message(&self) -> ControlMessage<'_> {
        match self {
            Self::V4(info) => ControlMessage::Ipv4PacketInfo(info),
            Self::V6(info) => ControlMessage::Ipv6PacketInfo(info),
        }
    }

    /// Returns a buffer of exactly its size. The kernel would read surplus octets as another message.
    fn room(&self) -> Vec<u8> {
        match self {
            Self::V4(_) => nix::cmsg_space!(nix::libc::in_pktinfo),
            Self::V6(_) => room_for_info(),
        }
    }
}

/// Serves DNS over TCP until the listener fails.
pub(crate) async fn serve_tcp(gate: Rc<Gate>, acceptor: Acceptor) -> io::Result<()> {
    loop {
        let (stream, permit) = acceptor.accept().await?;
        let gate = Rc::clone(&gate);
        tokio::task::spawn_local(async move {
            let _ = converse(&gate, stream).await;
            drop(permit);
        });
    }
}

/// Answers questions that are framed by their length (RFC 1035 §4.2.2).
async fn converse(gate: &Rc<Gate>, mut stream: TcpStream) -> io::Result<()> {
    for _ in 0..TCP_QUESTIONS {
        let mut begun = false;
        let question = tokio::time::timeout(TCP_IDLE, read_question(&mut stream, &mut begun)).await;
        let Ok(Ok(question)) = question else {
            return if begun { refuse(gate, &stream) } else { Ok(()) };
        };
        let answered = answer(gate, &question);
        if let Some(denied) = answered.denied {
            record_denial(gate, denied);
        }
        let Some(bytes) = answered.bytes else { return Ok(()) };
        let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
        let answer = [&length.to_be_bytes()[..], &bytes].concat();
        let written = tokio::time::timeout(TCP_IDLE, stream.write_all(&answer)).await;
        written??;
    }
    Ok(())
}

/// Reads a question, no further than it can be one. `begun` tells whether any octet came.
async fn read_question(stream: &mut TcpStream, begun: &mut bool) -> io::Result<Vec<u8>> {
    let first = stream.read_u8().await?;
    *begun = true;
    let length = usize::from(u16::from_be_bytes([first, stream.read_u8().await?]));
    if length < HEADER {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut question = vec![0; length];
    let (header, rest) = question.split_at_mut(HEADER);
    stream.read_exact(header).await?;
    if !has_room(length, header) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    stream.read_exact(rest).await?;
    Ok(question)
}

/// Whether a message of this length has room for what its header counts. What begins another protocol has none: letters, as of HTTP and
/// SSH, count too many questions, and the version in a ClientHello too many records.
fn has_room(length: usize, header: &[u8]) -> bool {
    // The least that there can be of each, with the name of the root (RFC 1035 §4.1.2, §4.1.3).
    const LEAST: [usize; 4] = [5, 11, 11, 11];
    let (counts, _) = header[4..].as_chunks::<2>();
    let counted =
        counts.iter().zip(LEAST).map(|(count, least)| usize::from(u16::from_be_bytes(*count)) * least);
    HEADER + counted.sum::<usize>() <= length
}

/// Ends a connection that carries something else.
fn refuse(gate: &Rc<Gate>, stream: &TcpStream) -> io::Result<()> {
    let denial = Denial::new(Guard::Protocol, "only questions of DNS are answered there, and this is none");
    record_denial(gate, DeniedName { name: NO_DNS.into(), denial });
    stream.set_zero_linger()
}

/// Records each denied name once, however often the agent asks for it. When there are too many names to remember, one more record
/// says so.
fn record_denial(gate: &Rc<Gate>, DeniedName { name, denial }: DeniedName) {
    let novelty = gate.names().borrow_mut().denied(&name);
    match novelty {
        Novelty::First => audit::record_denied_name(gate, &name, denial),
        Novelty::TooMany => {
            audit::record_denied_name(gate, "further denied names, which are not recorded one by one", denial)
        }
        Novelty::Known => {}
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, SocketAddr};

    use super::*;
    use crate::fixture::{gate_for, records_in};
    use crate::listen::{bind_udp, bound};
    use crate::upstream::Entrance;

    /// An A question for a.example.
    const QUESTION: &[u8] =
        b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x07example\x00\x00\x01\x00\x01";

    #[test]
    fn what_begins_another_protocol_has_no_room() {
        let has_room = |octets: &[u8]| {
            let length = usize::from(u16::from_be_bytes([octets[0], octets[1]]));
            super::has_room(length, &octets[2..][..HEADER])
        };
        assert!(has_room(&[&[0, QUESTION.len() as u8], QUESTION].concat()));
        for begin in
            ["GET / HTTP/1.1", "POST /x HTTP/1", "PRI * HTTP/2.0", "SSH-2.0-OpenSSH", "EHLO mail.example"]
        {
            assert!(!has_room(begin.as_bytes()), "{begin}");
        }
        for version in [1, 3] {
            assert!(!has_room(&[22, 3, version, 0, 200, 1, 0, 0, 196, 3, 3, 0, 0, 0]), "{version}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_carries_no_dns_is_refused_and_recorded_once() {
        let mut audit = tempfile::tempfile().unwrap();
        let rule = "[egress]\nallow = [{ host = \"a.example\" }]\n";
        let gate = gate_for(rule, Vec::new(), Some(audit.try_clone().unwrap()));
        let framed = [&[0, QUESTION.len() as u8], QUESTION].concat();
        for (sent, is_reset) in [
            (&b""[..], false),
            (&framed[..], false),
            (b"GET / HTTP/1.1\r\n", true),
            (b"\0\0\0\x08\x04\xd2\x16\x2f", true),
            (b"QUIT\r\n", true),
        ] {
            let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let port = policy::Port::new(listener.local_addr().unwrap().port()).unwrap();
            let mut asks = Entrance::at([127, 0, 0, 1].into()).connect(port).await.unwrap();
            let (served, _) = listener.accept().await.unwrap();
            asks.write_all(sent).await.unwrap();
            let mut said = Vec::new();
            let (_, read) = tokio::join!(converse(&gate, served), asks.read_to_end(&mut said));
            assert_eq!(read.is_err(), is_reset, "{sent:?}");
            assert_eq!(said.len() > framed.len(), sent == framed, "{sent:?}");
        }
        gate.close().unwrap();
        let records = records_in(&mut audit);
        let told: Vec<&str> = records.lines().filter(|line| line.contains("\"DNS\"")).collect();
        assert!(matches!(told[..], [only] if only.contains(NO_DNS) && only.contains("denied")), "{told:#?}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_answer_comes_from_the_address_that_was_asked() {
        let any: [(IpAddr, IpAddr); 2] = [
            (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(127, 0, 0, 7).into()),
            (Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::new(127, 0, 0, 7).into()),
        ];
        for (every, asked) in any {
            let socket = bind_udp((every, 0).into()).unwrap();
            let port = bound(&socket).unwrap().port();
            let serve = serve_udp(
                gate_for("[egress]\nallow = [{ host = \"a.example\" }]\n", Vec::new(), None),
                socket,
            );
            let ask = async {
                let asks = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
                asks.send_to(QUESTION, (asked, port)).await.unwrap();
                let mut answer = [0; 512];
                let (length, from) = asks.recv_from(&mut answer).await.unwrap();
                assert!(length > QUESTION.len() && answer[..2] == QUESTION[..2] && answer[3] & 15 == 0);
                assert_eq!(from, SocketAddr::from((asked, port)));
            };
            let done = tokio::time::timeout(Duration::from_secs(5), async {
                tokio::select! {
                    served = serve => served.unwrap(),
                    () = ask => {}
                }
            });
            done.await.expect("an answer");
        }
    }
}
