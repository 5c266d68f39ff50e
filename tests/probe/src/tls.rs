//! A hand-written ClientHello (RFC 8446 §4.1.2) with unusual server names, cuts and records.
//! It looks at the first record that comes back: a handshake is an answer from a server, an alert is a refusal.
//! No session is ever completed.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::Probe;
use crate::connect::{PATIENCE, dial, listen, milliseconds, unescape};
use crate::report::Report;

pub(crate) const PROBES: &[Probe] = &[Probe {
    name: "tls",
    usage: "HOST PORT SNI [segments|records] (SNI `-`: none; \\0 allowed; segments: an octet at a time; records: in three)",
    run: tls,
}];

/// How the hello is cut.
#[derive(Clone, Copy)]
enum Cut {
    Whole,
    Segments,
    Records,
}

fn tls(arguments: &[String]) -> Option<Report> {
    let (host, port, name, cut) = match arguments {
        [host, port, name] => (host, port, name, Cut::Whole),
        [host, port, name, word] if word == "segments" => (host, port, name, Cut::Segments),
        [host, port, name, word] if word == "records" => (host, port, name, Cut::Records),
        _ => return None,
    };
    let name = (name != "-").then(|| unescape(name));
    let start = Instant::now();
    let mut stream = match dial(host, port.parse().ok()?) {
        Ok(stream) => stream,
        Err(report) => return Some(report),
    };
    if let Err(error) = send(&mut stream, &hello(name.as_deref()), cut) {
        return Some(error.into());
    }
    let (answer, end) = listen(&mut stream, PATIENCE, |bytes| bytes.len() >= 7);
    let time = milliseconds(start);
    Some(match answer.first() {
        Some(22) => Report::done(json!({ "answer": "handshake", "ms": time })),
        Some(21) => {
            let alert = answer.get(6).copied();
            Report::refused(json!({ "answer": "alert", "alert": alert, "ms": time }))
        }
        Some(_) => Report::error(json!({ "answer": String::from_utf8_lossy(&answer), "ms": time })),
        None => Report::refused(json!({ "answer": null, "end": end.word(), "ms": time })),
    })
}

fn send(stream: &mut TcpStream, hello: &[u8], cut: Cut) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    match cut {
        Cut::Whole => stream.write_all(&record(hello)),
        Cut::Segments => {
            let record = record(hello);
            // Only the first octets one by one, so that the name itself is in pieces: the rest would only take time.
            let (slow, rest) = record.split_at(record.len().min(160));
            for octet in slow {
                stream.write_all(&[*octet])?;
                std::thread::sleep(Duration::from_millis(1));
            }
            stream.write_all(rest)
        }
        Cut::Records => {
            let third = hello.len() / 3;
            let (first, rest) = hello.split_at(third);
            let (second, third) = rest.split_at(third);
            stream.write_all(&[record(first), record(second), record(third)].concat())
        }
    }
}

fn record(payload: &[u8]) -> Vec<u8> {
    let mut record = vec![22, 3, 1];
    vector(&mut record, payload);
    record
}

/// A two-octet length, then the octets.
fn vector(out: &mut Vec<u8>, bytes: &[u8]) {
    // Everything written here is far below 64 KiB.
    out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn extension(out: &mut Vec<u8>, kind: u16, body: &[u8]) {
    out.extend_from_slice(&kind.to_be_bytes());
    vector(out, body);
}

fn hello(name: Option<&[u8]>) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend_from_slice(&[0x11; 32]);
    body.push(32);
    body.extend_from_slice(&[0x22; 32]);
    // TLS 1.3 AES-128-GCM, AES-256-GCM, ChaCha20; ECDHE with ECDSA and RSA for 1.2.
    vector(&mut body, &[0x13, 1, 0x13, 2, 0x13, 3, 0xc0, 0x2b, 0xc0, 0x2f, 0xc0, 0x2c, 0xc0, 0x30]);
    body.extend_from_slice(&[1, 0]);
    let mut extensions = Vec::new();
    if let Some(name) = name {
        let mut entry = vec![0];
        vector(&mut entry, name);
        let mut list = Vec::new();
        vector(&mut list, &entry);
        extension(&mut extensions, 0, &list);
    }
    // x25519 and P-256; no point formats but uncompressed; the usual signature schemes; 1.3 and 1.2.
    extension(&mut extensions, 10, &[0, 4, 0, 29, 0, 23]);
    extension(&mut extensions, 11, &[1, 0]);
    extension(&mut extensions, 13, &[0, 12, 4, 3, 8, 4, 4, 1, 5, 3, 8, 5, 8, 7]);
    extension(&mut extensions, 43, &[4, 3, 4, 3, 3]);
    let mut share = vec![0, 36, 0, 29, 0, 32];
    // Any 32 octets are a public key of x25519; 9 is the base point.
    share.push(9);
    share.extend_from_slice(&[0; 31]);
    extension(&mut extensions, 51, &share);
    vector(&mut body, &extensions);
    let mut message = vec![1, 0];
    vector(&mut message, &body);
    message
}

#[cfg(test)]
mod tests {
    use super::{hello, record};

    #[test]
    fn lengths_agree_all_the_way_down() {
        let message = hello(Some(b"api.example.com"));
        let length = usize::from(message[2]) << 8 | usize::from(message[3]);
        assert_eq!(length, message.len() - 4);
        let record = record(&message);
        assert_eq!(usize::from(record[3]) << 8 | usize::from(record[4]), message.len());
        assert!(record.windows(15).any(|window| window == b"api.example.com"));
    }
}
