//! Other processes' Unix sockets: connects by path or abstract name, as a stream or by datagram.
//! It sends one short line, and shows what comes back within two seconds.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use serde_json::{Value, json};

use crate::Probe;
use crate::families::{connect, open, receive, send};
use crate::report::Report;

pub(crate) const PROBES: &[Probe] = &[
    Probe { name: "unix", usage: "PATH [datagram]", run: |a| reach(a, false) },
    Probe { name: "unix-abstract", usage: "NAME [datagram]", run: |a| reach(a, true) },
    Probe {
        name: "send-descriptor",
        usage: "PATH (sends its own stdin to who listens there)",
        run: hand_over,
    },
    Probe { name: "unix-names", usage: "(what /proc/net/unix shows)", run: |_| Some(names().into()) },
];

fn reach(arguments: &[String], hidden: bool) -> Option<Report> {
    let (name, kind) = match arguments {
        [name] => (name, libc::SOCK_STREAM),
        [name, word] if word == "datagram" => (name, libc::SOCK_DGRAM),
        _ => return None,
    };
    // An abstract name starts with a zero octet: unix(7).
    let path = if hidden { [b"\0", name.as_bytes()].concat() } else { name.as_bytes().to_vec() };
    let exchange = || -> io::Result<Value> {
        let socket = dial(&path, kind, usize::from(!hidden))?;
        send(&socket, b"probe\n")?;
        let answer =
            if kind == libc::SOCK_STREAM { receive(&socket, 512).unwrap_or_default() } else { Vec::new() };
        Ok(json!({ "received": String::from_utf8_lossy(&answer) }))
    };
    Some(exchange().into())
}

/// Connects to a path, or to an abstract name, which no octet ends.
fn dial(path: &[u8], kind: i32, ending: usize) -> io::Result<OwnedFd> {
    // SAFETY: an all-zero sockaddr_un is valid.
    let mut target: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    target.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if path.len() >= target.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (place, octet) in target.sun_path.iter_mut().zip(path) {
        *place = *octet as libc::c_char;
    }
    let length = offset_of!(libc::sockaddr_un, sun_path) + path.len() + ending;
    let socket = open(libc::AF_UNIX, kind, 0)?;
    connect(&socket, &target, length)?;
    Ok(socket)
}

/// `absent` if this kernel has no option that refuses descriptors (`SO_PASSRIGHTS`, Linux 6.16).
fn hand_over(arguments: &[String]) -> Option<Report> {
    let [path] = arguments else { return None };
    let sent = || -> io::Result<Report> {
        let socket = dial(path.as_bytes(), libc::SOCK_STREAM, 1)?;
        let (level, option, no) = (libc::SOL_SOCKET, 83, 0i32);
        let length = size_of::<i32>() as libc::socklen_t;
        // SAFETY: the option takes an int of this size.
        if unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const no).cast(), length) } < 0
        {
            return Ok(Report::absent("no SO_PASSRIGHTS"));
        }
        send_descriptor(&socket, 0).map(|()| Report::done(Value::Null))
    };
    Some(sent().unwrap_or_else(Report::from))
}

/// Sends one octet and a descriptor: unix(7).
fn send_descriptor(socket: &OwnedFd, descriptor: RawFd) -> io::Result<()> {
    let mut piece = libc::iovec { iov_base: b"{".as_ptr().cast_mut().cast(), iov_len: 1 };
    // Room for a head and one descriptor, aligned as a head is.
    let mut control = [0u64; 4];
    // SAFETY: an all-zero msghdr is valid; what it points to outlives the call, and `control` has room for one descriptor.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
        libc::CMSG_DATA(head).cast::<RawFd>().write_unaligned(descriptor);
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn names() -> io::Result<Value> {
    let text = std::fs::read_to_string("/proc/net/unix")?;
    let names: Vec<&str> = text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(7)).collect();
    Ok(json!(names))
}
