//! Passes descriptors between processes, and keeps them from leaking into a child or across an exec.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// The most descriptors one message may carry.
const MOST: usize = 8;

/// Makes a connected pair of message sockets (`SOCK_SEQPACKET`), close-on-exec.
///
/// # Errors
/// When `socketpair(2)` fails.
pub fn message_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends one message with the given descriptors.
///
/// # Errors
/// When there are more than eight descriptors, or `sendmsg(2)` fails.
pub fn send(socket: impl AsFd, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(SendFlags::empty(), socket, message, descriptors)
}

/// Sends one message with the given descriptors, and does not wait for room.
///
/// # Errors
/// As `send`, and `EAGAIN` if the peer has not taken what was sent before.
pub fn send_at_once(socket: impl AsFd, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(SendFlags::DONTWAIT, socket, message, descriptors)
}

fn send_with(
    flags: SendFlags,
    socket: impl AsFd,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    sendmsg(socket, &[IoSlice::new(message)], &mut control, flags | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one message into `buffer`, and the descriptors it carries. An empty message means that the peer has closed.
///
/// # Errors
/// When `recvmsg(2)` fails, the message is longer than `buffer`, or descriptors were lost: there were too many, or this process has no
/// room for them.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(&[u8], Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut was_reset = false;
    let (length, flags) = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => break (message.bytes, message.flags),
            Err(rustix::io::Errno::INTR) => {}
            // The kernel reports once that the peer closed with messages unread. The peer's own messages can still be received.
            Err(rustix::io::Errno::CONNRESET) if !was_reset => was_reset = true,
            Err(errno) => return Err(errno.into()),
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(list) = message {
            descriptors.extend(list);
        }
    }
    // A caller that takes them by their order would mistake one for another.
    if flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::other("not all descriptors of a message could be received"));
    }
    // The rest of it is gone, and what is here can mean something else: half a name, half a path.
    if flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::other("a message is longer than any that is expected"));
    }
    Ok((&buffer[..length], descriptors))
}

/// Marks every descriptor from 3 up close-on-exec, so that an exec passes on the standard three and no other.
///
/// # Errors
/// When neither `close_range(2)` does so, nor one after the other can be marked.
pub fn close_on_exec_from_3() -> io::Result<()> {
    // SAFETY: with CLOSE_RANGE_CLOEXEC the call closes no descriptor; it only changes flags.
    if unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) } == 0 {
        return Ok(());
    }
    // The flag is of Linux 5.11. Those that are open are listed by their numbers.
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        let descriptor: RawFd = number.ok_or(io::ErrorKind::InvalidData)?;
        // SAFETY: closes no descriptor; it only changes a flag.
        if descriptor > 2 && unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::refusing;

    #[test]
    fn an_exec_passes_on_the_standard_three_alone_whatever_the_kernel_knows() {
        let no_flag = [(libc::SYS_close_range, libc::EINVAL), (libc::SYS_userfaultfd, libc::EPERM)];
        for (number, errno) in no_flag {
            let marks = refusing(number, errno, || {
                // SAFETY: makes a descriptor that nobody else has, and reads flags.
                let flags = |descriptor| unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
                // SAFETY: as above.
                let passed_on = unsafe { libc::dup(0) };
                let before = flags(passed_on);
                close_on_exec_from_3()?;
                Ok((before, flags(passed_on), flags(1)) == (0, libc::FD_CLOEXEC, 0))
            });
            assert_eq!(marks, Ok(true), "{number}");
        }
    }

    #[test]
    fn a_message_comes_whole_or_not_at_all() {
        let (ours, theirs) = message_pair().unwrap();
        let mut buffer = [0; 8];
        for (message, comes) in [(&b"name-one"[..], true), (b"name-one\nname-two", false), (b"last", true)] {
            send(&ours, message, &[ours.as_fd()]).unwrap();
            match receive(&theirs, &mut buffer) {
                Ok((received, descriptors)) => {
                    assert!(comes && received == message && descriptors.len() == 1);
                }
                Err(error) => assert!(!comes && error.to_string().contains("longer"), "{error}"),
            }
        }
    }

    #[test]
    fn all_descriptors_of_a_message_come_or_none() {
        let (ours, theirs) = message_pair().unwrap();
        send(&ours, b"whole", &[ours.as_fd(); MOST]).unwrap();
        let mut buffer = [0; 16];
        let (message, descriptors) = receive(&theirs, &mut buffer).unwrap();
        assert_eq!((message, descriptors.len()), (&b"whole"[..], MOST));

        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2 * MOST))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let twice = [ours.as_fd(); 2 * MOST];
        assert!(control.push(SendAncillaryMessage::ScmRights(&twice)));
        sendmsg(&ours, &[IoSlice::new(b"more")], &mut control, SendFlags::NOSIGNAL).unwrap();
        let refused = receive(&theirs, &mut buffer).unwrap_err();
        assert!(refused.to_string().contains("not all descriptors"), "{refused}");
    }
}
