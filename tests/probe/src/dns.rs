//! Hand-written DNS queries (RFC 1035), to any server, over UDP or TCP, for types that the system's resolver never queries. The kernel
//! checks the address of the answer: the UDP socket is connected.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Probe;
use crate::connect::milliseconds;
use crate::report::Report;

const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        name: "dns",
        usage: "NAME TYPE [SERVER[:PORT] [udp|tcp]] (no SERVER: the first of resolv.conf)",
        run: |a| dns(a, false),
    },
    Probe { name: "dns-edns", usage: "(as dns, with an OPT record)", run: |a| dns(a, true) },
];

/// Names of types that matter here, see the DNS parameters registry.
const TYPES: &[(&str, u16)] = &[
    ("A", 1),
    ("NS", 2),
    ("CNAME", 5),
    ("SOA", 6),
    ("NULL", 10),
    ("PTR", 12),
    ("MX", 15),
    ("TXT", 16),
    ("AAAA", 28),
    ("SRV", 33),
    ("NAPTR", 35),
    ("SVCB", 64),
    ("HTTPS", 65),
    ("AXFR", 252),
    ("ANY", 255),
];

fn dns(arguments: &[String], edns: bool) -> Option<Report> {
    let (name, kind, server, transport) = match arguments {
        [name, kind] => (name, kind, None, "udp"),
        [name, kind, server] => (name, kind, Some(server), "udp"),
        [name, kind, server, transport] => (name, kind, Some(server), transport.as_str()),
        _ => return None,
    };
    let number = TYPES.iter().find(|(word, _)| word == kind)?.1;
    let server = match server {
        Some(text) => address(text)?,
        None => match configured() {
            Some(server) => server,
            None => return Some(Report::absent("no nameserver in /etc/resolv.conf")),
        },
    };
    let query = question(name, number, edns)?;
    let start = Instant::now();
    let answer = if transport == "tcp" { by_tcp(server, &query) } else { by_udp(server, &query) };
    Some(match answer {
        Ok(answer) => verdict(&answer, server, milliseconds(start)),
        Err(error) => {
            let detail = json!({ "error": error.to_string(), "server": server.to_string(), "ms": milliseconds(start) });
            Report { detail, ..error.into() }
        }
    })
}

fn address(text: &str) -> Option<SocketAddr> {
    text.parse().ok().or_else(|| Some(SocketAddr::new(text.parse().ok()?, 53)))
}

fn configured() -> Option<SocketAddr> {
    let text = std::fs::read_to_string("/etc/resolv.conf").ok()?;
    let server = text.lines().find_map(|line| line.strip_prefix("nameserver"))?.trim();
    Some(SocketAddr::new(server.parse::<IpAddr>().ok()?, 53))
}

fn question(name: &str, kind: u16, edns: bool) -> Option<Vec<u8>> {
    let id = (std::process::id() as u16).to_be_bytes();
    let mut query = vec![id[0], id[1], 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(edns)];
    for label in name.trim_end_matches('.').split('.') {
        query.push(u8::try_from(label.len()).ok().filter(|length| *length < 64)?);
        query.extend_from_slice(label.as_bytes());
    }
    query.push(0);
    query.extend_from_slice(&kind.to_be_bytes());
    query.extend_from_slice(&[0, 1]);
    if edns {
        // The root name, type OPT, 1232 octets, no flags, no options: RFC 6891.
        query.extend_from_slice(&[0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0, 0, 0]);
    }
    Some(query)
}

fn by_udp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let socket = UdpSocket::bind(if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(server)?;
    socket.send(query)?;
    let mut answer = vec![0; 4096];
    let length = socket.recv(&mut answer)?;
    answer.truncate(length);
    Ok(answer)
}

fn by_tcp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = u16::try_from(query.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), query].concat())?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

fn verdict(answer: &[u8], server: SocketAddr, milliseconds: u64) -> Report {
    let Some((code, records)) = parse(answer) else {
        return Report::error(json!({ "error": "the answer cannot be read", "server": server.to_string() }));
    };
    let name = match code {
        0 => "NOERROR".to_owned(),
        1 => "FORMERR".to_owned(),
        2 => "SERVFAIL".to_owned(),
        3 => "NXDOMAIN".to_owned(),
        4 => "NOTIMP".to_owned(),
        5 => "REFUSED".to_owned(),
        other => other.to_string(),
    };
    let found = code == 0 && !records.is_empty();
    let detail =
        json!({ "rcode": name, "answers": records, "server": server.to_string(), "ms": milliseconds });
    if found { Report::done(detail) } else { Report::refused(detail) }
}

/// Parses the response code and the answer section.
fn parse(answer: &[u8]) -> Option<(u8, Vec<Value>)> {
    let word = |at: usize| Some(usize::from(*answer.get(at)?) << 8 | usize::from(*answer.get(at + 1)?));
    let code = answer.get(3)? & 0xf;
    let mut at = 12;
    for _ in 0..word(4)? {
        at = skip_name(answer, at)? + 4;
    }
    let mut records = Vec::new();
    for _ in 0..word(6)? {
        at = skip_name(answer, at)?;
        let (kind, length) = (word(at)?, word(at + 8)?);
        let data = answer.get(at + 10..at + 10 + length)?;
        let type_name = TYPES.iter().find(|(_, number)| usize::from(*number) == kind);
        let type_name = type_name.map_or_else(|| kind.to_string(), |(word, _)| (*word).to_owned());
        records.push(json!({ "type": type_name, "data": shown(data) }));
        at += 10 + length;
    }
    Some((code, records))
}

fn skip_name(answer: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *answer.get(at)? {
            0 => return Some(at + 1),
            length if length & 0xc0 == 0xc0 => return Some(at + 2),
            length => at += 1 + usize::from(length),
        }
    }
}

fn shown(data: &[u8]) -> String {
    if let Ok(octets) = <[u8; 4]>::try_from(data) {
        Ipv4Addr::from(octets).to_string()
    } else if let Ok(octets) = <[u8; 16]>::try_from(data) {
        Ipv6Addr::from(octets).to_string()
    } else {
        String::from_utf8_lossy(data).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::{parse, question};

    #[test]
    fn an_answer_with_one_address_is_read() {
        let mut answer = question("api.example.com", 1, false).expect("a plain name");
        answer[2] |= 0x80;
        answer[7] = 1;
        answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 18, 0, 1]);
        let (code, records) = parse(&answer).expect("a whole answer");
        assert_eq!((code, records[0]["data"].as_str()), (0, Some("198.18.0.1")));
        assert!(parse(&answer[..answer.len() - 1]).is_none());
    }

    #[test]
    fn a_label_that_is_too_long_cannot_be_asked() {
        assert!(question(&"a".repeat(64), 1, false).is_none());
    }
}
