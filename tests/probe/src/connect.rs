//! TCP and UDP as an ordinary program uses them: names by the system's resolver, then connect, send, listen.
//! A redirected connection opens even when it leads nowhere, so the report contains what came back, not only that it opened. Every wait is
//! bounded.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Probe;
use crate::child;
use crate::families::open;
use crate::report::Report;

/// How long a connect or an answer may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// How long a connection that opened may take to be refused.
const SETTLE: Duration = Duration::from_millis(700);
const SHOWN: usize = 16 * 1024;

pub(crate) const PROBES: &[Probe] = &[
    Probe { name: "resolve", usage: "NAME (the system's resolver)", run: resolve },
    Probe { name: "tcp", usage: "HOST PORT [TEXT] (with \\r \\n \\0 in TEXT)", run: tcp },
    Probe { name: "tcp-line", usage: "HOST PORT TEXT (for an answer of one line)", run: tcp_line },
    Probe { name: "udp", usage: "HOST PORT TEXT", run: udp },
    Probe {
        name: "astray",
        usage: "PORT ADDRESS… (datagrams that name their link, and such as need no route)",
        run: astray,
    },
    Probe {
        name: "linger",
        usage: "(has close(2) wait for a minute, SO_LINGER)",
        run: |_| Some(linger().into()),
    },
    Probe {
        name: "hear",
        usage: "GROUP PORT CMD ARGS… (joins the multicast group while CMD runs)",
        run: hear,
    },
];

fn resolve(arguments: &[String]) -> Option<Report> {
    let [name] = arguments else { return None };
    let start = Instant::now();
    let result = (name.as_str(), 0).to_socket_addrs();
    let milliseconds = milliseconds(start);
    Some(match result {
        Ok(found) => {
            let mut addresses: Vec<String> = found.map(|address| address.ip().to_string()).collect();
            addresses.dedup();
            Report::done(json!({ "addresses": addresses, "ms": milliseconds }))
        }
        // The resolver's own errors have no errno; to an agent they are a refusal.
        Err(error) if error.raw_os_error().is_none() => {
            Report::refused(json!({ "error": error.to_string(), "ms": milliseconds }))
        }
        Err(error) => error.into(),
    })
}

fn tcp(arguments: &[String]) -> Option<Report> {
    exchange(arguments, |_| false)
}

/// When the peer keeps the connection open, the answer is complete at the end of its line.
fn tcp_line(arguments: &[String]) -> Option<Report> {
    let [_, _, _] = arguments else { return None };
    exchange(arguments, |answer| answer.contains(&b'\n'))
}

/// Sets the option in two ways, the second time with more than an int in each argument that is one, and shows whether it is set.
fn linger() -> io::Result<Value> {
    let socket = open(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    let fd = i64::from(socket.as_raw_fd());
    let value = libc::linger { l_onoff: 1, l_linger: 60 };
    let mut length = size_of::<libc::linger>() as libc::socklen_t;
    let ways = [0, 1 << 40].map(|above| {
        let (level, option) = (i64::from(libc::SOL_SOCKET) | above, i64::from(libc::SO_LINGER) | above);
        let at = (&raw const value).addr() as i64;
        child::syscall(libc::SYS_setsockopt, [fd, level, option, at, i64::from(length), 0])
    });
    let mut is = libc::linger { l_onoff: 0, l_linger: 0 };
    // SAFETY: the option gives a linger of this size.
    let told = unsafe {
        let (is, length) = ((&raw mut is).cast(), &raw mut length);
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, is, length)
    };
    if told < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(json!({ "answers": ways, "is_set": is.l_onoff != 0 }))
}

fn exchange(arguments: &[String], enough: impl Fn(&[u8]) -> bool) -> Option<Report> {
    let (host, port, text) = match arguments {
        [host, port] => (host, port, None),
        [host, port, text] => (host, port, Some(unescape(text))),
        _ => return None,
    };
    let start = Instant::now();
    let mut stream = match dial(host, port.parse().ok()?) {
        Ok(stream) => stream,
        Err(report) => return Some(report),
    };
    let connected = milliseconds(start);
    let sent = text.as_ref().map(|text| stream.write_all(text));
    let patience = if text.is_some() { PATIENCE } else { SETTLE };
    let (received, end) = listen(&mut stream, patience, enough);
    let detail = json!({
        "peer": stream.peer_addr().ok().map(|peer| peer.to_string()), "connected_ms": connected,
        "ms": milliseconds(start), "received": String::from_utf8_lossy(&received), "end": end.word(),
    });
    Some(match (sent, end) {
        (Some(Err(error)), _) => Report { detail, ..error.into() },
        _ if !received.is_empty() => Report::done(detail),
        // No octet came and the connection stays open: for TCP that is a success.
        (None, End::Open) => Report::done(detail),
        (Some(_), End::Open) => Report::error(detail),
        (_, End::Failed(errno)) => Report::errno(errno, detail),
        (_, End::Closed) => Report::refused(detail),
    })
}

fn udp(arguments: &[String]) -> Option<Report> {
    let [host, port, text] = arguments else { return None };
    let port: u16 = port.parse().ok()?;
    let exchange = || -> io::Result<Value> {
        let target = (host.as_str(), port).to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
        let socket = UdpSocket::bind(if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.connect(target)?;
        socket.send(&unescape(text))?;
        let mut buffer = [0; 2048];
        let length = socket.recv(&mut buffer)?;
        Ok(json!({ "received": String::from_utf8_lossy(&buffer[..length]) }))
    };
    Some(exchange().into())
}

/// Sends datagrams past the routes: to each address by every link as if it were there, and to all around. Reports how many were taken.
fn astray(arguments: &[String]) -> Option<Report> {
    let [port, addresses @ ..] = arguments else { return None };
    let port: u16 = port.parse().ok()?;
    let addresses: Vec<Ipv4Addr> = addresses.iter().map(|it| it.parse().ok()).collect::<Option<_>>()?;
    let all_around = [Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1)];
    let send = |link: Option<&str>, address: Ipv4Addr| -> io::Result<usize> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_broadcast(true)?;
        if let Some(link) = link {
            set_option(&socket, libc::SO_BINDTODEVICE, link.as_bytes())?;
            set_option(&socket, libc::SO_DONTROUTE, &1i32.to_ne_bytes())?;
        }
        socket.send_to(b"astray", (address, port))
    };
    let links = std::fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    let links: Vec<&str> =
        links.lines().skip(2).filter_map(|line| line.split(':').next()).map(str::trim).collect();
    let ways = links.iter().copied().map(Some).chain([None]);
    let sent = ways
        .flat_map(|link| addresses.iter().chain(&all_around).map(move |address| (link, *address)))
        .filter(|(link, address)| send(*link, *address).is_ok())
        .count();
    let detail = json!({ "links": links, "sent": sent });
    Some(if sent > 0 { Report::done(detail) } else { Report::refused(detail) })
}

/// Sets an option of a socket.
fn set_option(socket: &UdpSocket, option: i32, value: &[u8]) -> io::Result<()> {
    let (at, length) = (value.as_ptr().cast(), value.len() as libc::socklen_t);
    // SAFETY: the kernel reads as many octets as the slice has.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, at, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reports whether a datagram to the group came while the command ran. The command has this one's streams, and speaks before it.
fn hear(arguments: &[String]) -> Option<Report> {
    let [group, port, program, rest @ ..] = arguments else { return None };
    let (group, port): (Ipv4Addr, u16) = (group.parse().ok()?, port.parse().ok()?);
    let listen = || -> io::Result<Report> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
        socket.join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED)?;
        socket.set_read_timeout(Some(SETTLE))?;
        let status = Command::new(program).args(rest).status()?;
        let mut buffer = [0; 2048];
        Ok(match socket.recv_from(&mut buffer) {
            Ok((length, from)) => Report::done(json!({ "length": length, "from": from.to_string() })),
            Err(_) => Report::absent(json!({ "command": status.to_string() })),
        })
    };
    Some(listen().unwrap_or_else(Report::from))
}

/// Connects by name or address; the first address that answers wins. Failures come back as the finished report.
pub(crate) fn dial(host: &str, port: u16) -> Result<TcpStream, Report> {
    let start = Instant::now();
    let targets: Vec<SocketAddr> = match host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => match (host, port).to_socket_addrs() {
            Ok(found) => found.collect(),
            Err(error) => {
                let detail = json!({ "resolve": error.to_string(), "ms": milliseconds(start) });
                return Err(Report::refused(detail));
            }
        },
    };
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for target in targets {
        match TcpStream::connect_timeout(&target, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    let detail = json!({ "connect": last.to_string(), "ms": milliseconds(start) });
    Err(Report { detail, ..last.into() })
}

/// How listening ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Closed,
    Failed(i32),
    Open,
}

impl End {
    pub(crate) fn word(self) -> String {
        match self {
            Self::Closed => "closed".to_owned(),
            Self::Failed(errno) => crate::report::errno_name(errno),
            Self::Open => "open".to_owned(),
        }
    }
}

/// Reads until the peer ends the connection, `enough` returns true, or the time is up.
pub(crate) fn listen(
    stream: &mut TcpStream,
    patience: Duration,
    enough: impl Fn(&[u8]) -> bool,
) -> (Vec<u8>, End) {
    let deadline = Instant::now() + patience;
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    while received.len() < SHOWN && !enough(&received) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            break;
        }
        match stream.read(&mut buffer) {
            Ok(0) => return (received, End::Closed),
            Ok(length) => received.extend_from_slice(&buffer[..length]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                break;
            }
            Err(error) => return (received, End::Failed(error.raw_os_error().unwrap_or(0))),
        }
    }
    (received, End::Open)
}

/// Replaces `\r`, `\n`, `\0` and `\\` in an argument by the octets they name.
pub(crate) fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(octet) = rest.next() {
        let plain = if octet != b'\\' {
            octet
        } else {
            match rest.next() {
                Some(b'r') => b'\r',
                Some(b'n') => b'\n',
                Some(b'0') => 0,
                Some(other) => other,
                None => b'\\',
            }
        };
        bytes.push(plain);
    }
    bytes
}

/// Whole milliseconds since `start`.
pub(crate) fn milliseconds(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::unescape;

    #[test]
    fn escapes_become_octets() {
        assert_eq!(unescape(r"a\r\n\0\\b\"), b"a\r\n\0\\b\\");
    }
}
