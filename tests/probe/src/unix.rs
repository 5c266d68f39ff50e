//! Other processes' Unix sockets: connects by path or abstract name, as a stream or by datagram.
//! It sends one short line, and shows what comes back within two seconds.

use std::io;
use std::mem::offset_of;

use serde_json::{Value, json};

use crate::Probe;
use crate::families::{connect, open, receive, send};
use crate::report::Report;

pub(crate) const PROBES: &[Probe] = &[
    Probe { name: "unix", usage: "PATH [datagram]", run: |a| reach(a, false) },
    Probe { name: "unix-abstract", usage: "NAME [datagram]", run: |a| reach(a, true) },
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
        // SAFETY: an all-zero sockaddr_un is valid.
        let mut target: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        target.sun_family = libc::AF_UNIX as libc::sa_family_t;
        if path.len() >= target.sun_path.len() {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        for (place, octet) in target.sun_path.iter_mut().zip(&path) {
            *place = *octet as libc::c_char;
        }
        let length = offset_of!(libc::sockaddr_un, sun_path) + path.len() + usize::from(!hidden);
        let socket = open(libc::AF_UNIX, kind, 0)?;
        connect(&socket, &target, length)?;
        send(&socket, b"probe\n")?;
        let answer =
            if kind == libc::SOCK_STREAM { receive(&socket, 512).unwrap_or_default() } else { Vec::new() };
        Ok(json!({ "received": String::from_utf8_lossy(&answer) }))
    };
    Some(exchange().into())
}

fn names() -> io::Result<Value> {
    let text = std::fs::read_to_string("/proc/net/unix")?;
    let names: Vec<&str> = text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(7)).collect();
    Ok(json!(names))
}
