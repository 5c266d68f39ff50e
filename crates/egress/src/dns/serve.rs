//! DNS over UDP in batches, and over TCP. The socket is bound to every address, and each answer is sent from the one
//! that was asked.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrIn6, recvmmsg, sendmmsg,
};
use policy::Denial;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpStream, UdpSocket};

use super::answer::answer;
use super::names::News;
use crate::exchange::Exchange;
use crate::gate::Gate;
use crate::serve::Door;
use crate::serve::survive;

/// How many datagrams are taken at once.
const BATCH: usize = 32;
/// The largest question.
const QUESTION: usize = 1500;
/// How long a TCP connection may be idle, and how many questions it may put.
const TCP_IDLE: Duration = Duration::from_secs(10);
const TCP_QUESTIONS: usize = 1000;

/// Where a question came from, and which address it was put to.
struct Asker {
    from: SockaddrIn6,
    to: Option<Ipv6Addr>,
}

/// Serves a UDP socket until it fails.
pub(crate) async fn serve_udp(gate: Rc<Gate>, socket: OwnedFd) -> io::Result<()> {
    let socket = UdpSocket::from_std(std::net::UdpSocket::from(socket))?;
    // Its room is sixty kilobytes, and many a command asks nothing.
    socket.readable().await?;
    let mut buffers = vec![[0u8; QUESTION]; BATCH];
    let mut headers: MultiHeaders<SockaddrIn6> =
        MultiHeaders::preallocate(BATCH, Some(nix::cmsg_space!(libc_in6_pktinfo::In6PktInfo)));
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
            if let Some((name, denial)) = answered.denied {
                record_denial(&gate, &name, denial);
            }
            if let Some(bytes) = answered.bytes {
                answers.push((bytes, asker));
            }
        }
        send(&socket, &answers);
    }
}

/// The structure whose size the control buffer must hold.
mod libc_in6_pktinfo {
    /// `struct in6_pktinfo`, RFC 3542 §6.
    #[repr(C)]
    pub(super) struct In6PktInfo {
        _address: [u8; 16],
        _interface: u32,
    }
}

fn receive(
    socket: &UdpSocket,
    buffers: &mut [[u8; QUESTION]],
    headers: &mut MultiHeaders<SockaddrIn6>,
) -> io::Result<Vec<(usize, Asker)>> {
    let mut slices: Vec<[IoSliceMut<'_>; 1]> = buffers.iter_mut().map(|b| [IoSliceMut::new(b)]).collect();
    let messages = recvmmsg(socket.as_raw_fd(), headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None)?;
    let mut found = Vec::with_capacity(BATCH);
    for message in messages {
        let to = message.cmsgs().ok().and_then(|mut list| {
            list.find_map(|m| match m {
                ControlMessageOwned::Ipv6PacketInfo(info) => Some(Ipv6Addr::from(info.ipi6_addr.s6_addr)),
                _ => None,
            })
        });
        let from = message
            .address
            .unwrap_or_else(|| SockaddrIn6::from(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, 0)));
        found.push((message.bytes, Asker { from, to }));
    }
    Ok(found)
}

/// Sends the answers, those with the same source together. One that cannot be sent is asked for again.
fn send(socket: &UdpSocket, answers: &[(Vec<u8>, Asker)]) {
    let mut rest = answers;
    while let Some((_, Asker { to, .. })) = rest.first() {
        let same = rest.iter().take_while(|(_, asker)| asker.to == *to).count();
        let (group, later) = rest.split_at(same);
        send_group(socket, group, *to);
        rest = later;
    }
}

fn send_group(socket: &UdpSocket, group: &[(Vec<u8>, Asker)], source: Option<Ipv6Addr>) {
    let slices: Vec<[IoSlice<'_>; 1]> = group.iter().map(|(bytes, _)| [IoSlice::new(bytes)]).collect();
    let to: Vec<Option<SockaddrIn6>> = group.iter().map(|(_, asker)| Some(asker.from)).collect();
    let info = source.map(packet_info);
    let control: Vec<ControlMessage<'_>> = info.iter().map(ControlMessage::Ipv6PacketInfo).collect();
    // Without a source there is no control message, and an empty one is refused.
    let space = source.map(|_| nix::cmsg_space!(libc_in6_pktinfo::In6PktInfo));
    let mut headers = MultiHeaders::preallocate(group.len(), space);
    let _ = sendmmsg(socket.as_raw_fd(), &mut headers, &slices, &to, control, MsgFlags::MSG_DONTWAIT);
}

fn packet_info(source: Ipv6Addr) -> nix::libc::in6_pktinfo {
    nix::libc::in6_pktinfo { ipi6_addr: nix::libc::in6_addr { s6_addr: source.octets() }, ipi6_ifindex: 0 }
}

/// Serves DNS over TCP until the listener fails.
pub(crate) async fn serve_tcp(gate: Rc<Gate>, door: Door) -> io::Result<()> {
    loop {
        let (stream, permit) = door.accept().await?;
        let gate = Rc::clone(&gate);
        tokio::task::spawn_local(async move {
            let _ = converse(&gate, stream).await;
            drop(permit);
        });
    }
}

/// Answers questions framed by their length (RFC 1035 §4.2.2).
async fn converse(gate: &Rc<Gate>, mut stream: TcpStream) -> io::Result<()> {
    for _ in 0..TCP_QUESTIONS {
        let question = tokio::time::timeout(TCP_IDLE, async {
            let length = usize::from(stream.read_u16().await?);
            let mut question = vec![0; length];
            stream.read_exact(&mut question).await?;
            Ok::<_, io::Error>(question)
        });
        let question = question.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let answered = answer(gate, &question);
        if let Some((name, denial)) = answered.denied {
            record_denial(gate, &name, denial);
        }
        let Some(bytes) = answered.bytes else { return Ok(()) };
        let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
        let answer = [&length.to_be_bytes()[..], &bytes].concat();
        let written = tokio::time::timeout(TCP_IDLE, stream.write_all(&answer)).await;
        written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    }
    Ok(())
}

/// One record a denied name: an agent may ask again a thousand times. When there are too many names to remember, one
/// more record says so.
fn record_denial(gate: &Rc<Gate>, name: &str, denial: Denial) {
    let news = gate.names().borrow_mut().denied(name);
    match news {
        News::First => Exchange::refuse_name(gate, name, denial),
        News::TooMany => {
            Exchange::refuse_name(gate, "further denied names, which are not recorded one by one", denial)
        }
        News::Known => {}
    }
}
