//! Loads a DNS server over UDP for a fixed time: a batch of questions, then its answers, then the next batch. Also asks single
//! questions, for programs without a resolver.
//!
//! Every question asks for the same A record. An answer without one counts as failed.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::tally::Tally;

/// How long an answer may take before it counts as lost.
const PATIENCE: Duration = Duration::from_millis(500);
/// How many failures end a load.
const MOST_FAILURES: u64 = 1000;
/// The sandbox's resolver, which answers at every address.
const RESOLVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 53);
/// The length of a header, RFC 1035 §4.1.1.
const HEADER: usize = 12;

/// Loads the server for the given time.
pub(crate) fn run(server: SocketAddr, name: &str, outstanding: usize, seconds: f64) -> Result<Option<Tally>> {
    let socket = open(server)?;
    let mut question = question(name)?;
    let mut tally = Tally::default();
    let began = Instant::now();
    let until = began + Duration::from_secs_f64(seconds);
    let mut next: u16 = 0;
    while Instant::now() < until && tally.failed < MOST_FAILURES {
        let (sent, first) = (Instant::now(), next);
        for _ in 0..outstanding {
            question[..2].copy_from_slice(&next.to_be_bytes());
            next = next.wrapping_add(1);
            socket.send(&question).context("failed to send a question")?;
        }
        let mut answered = 0;
        while answered < outstanding {
            match receive(&socket) {
                // A late answer to an earlier batch, already counted as lost.
                Ok((id, _)) if usize::from(id.wrapping_sub(first)) >= outstanding => {}
                Ok((_, Some(_))) => {
                    answered += 1;
                    tally.succeed(1, sent);
                }
                Ok((_, None)) => {
                    answered += 1;
                    tally.fail(&anyhow::anyhow!("an answer holds no address"));
                }
                Err(error) => {
                    (answered..outstanding).for_each(|_| tally.fail(&error));
                    break;
                }
            }
        }
    }
    Ok(Some(tally.close(began.elapsed())))
}

/// Looks up the address of a name, with the sandbox's resolver.
pub(crate) fn look_up(name: &str, port: u16) -> Result<SocketAddr> {
    let socket = open(RESOLVER)?;
    socket.send(&question(name)?).context("failed to send a question")?;
    match receive(&socket)? {
        (_, Some(address)) => Ok(SocketAddr::from((address, port))),
        (_, None) => bail!("{name} has no address"),
    }
}

fn open(server: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("failed to open a socket")?;
    socket.connect(server).context("failed to open a socket")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// Receives one answer: its question's id, and the address in it.
fn receive(socket: &UdpSocket) -> Result<(u16, Option<Ipv4Addr>)> {
    let mut buffer = [0; 1500];
    let length = socket.recv(&mut buffer).context("no answer came")?;
    let answer = &buffer[..length];
    if length < HEADER {
        bail!("an answer is too short");
    }
    Ok((u16::from_be_bytes([answer[0], answer[1]]), address(answer)))
}

/// Encodes one question for an A record, recursion desired. RFC 1035 §4.1.
fn question(name: &str) -> Result<Vec<u8>> {
    let mut octets = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.trim_end_matches('.').split('.') {
        octets.push(
            u8::try_from(label.len())
                .ok()
                .filter(|n| (1..64).contains(n))
                .context("a label is 1 to 63 octets")?,
        );
        octets.extend(label.as_bytes());
    }
    octets.extend([0, 0, 1, 0, 1]);
    Ok(octets)
}

/// Returns the address in an answer that ends with one A record and perhaps an empty OPT record.
fn address(answer: &[u8]) -> Option<Ipv4Addr> {
    let is_good = answer[3] & 15 == 0 && u16::from_be_bytes([answer[6], answer[7]]) > 0;
    // Type A, class IN, a time to live, and four octets.
    let at = answer.windows(10).rposition(|ten| ten[..4] == [0, 1, 0, 1] && ten[8..] == [0, 4])?;
    let octets: [u8; 4] = answer.get(at + 10..at + 14)?.try_into().ok()?;
    is_good.then(|| Ipv4Addr::from(octets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_and_its_answer() {
        let asked = question("a.example.com").unwrap();
        assert_eq!(&asked[12..], b"\x01a\x07example\x03com\0\0\x01\0\x01");
        let mut answer = asked.clone();
        answer[2] |= 0x80;
        answer[7] = 1;
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 18, 0, 1]);
        assert_eq!(address(&answer), Some(Ipv4Addr::new(198, 18, 0, 1)));
        answer[3] = 3;
        assert_eq!(address(&answer), None, "NXDOMAIN");
        assert_eq!(address(&asked), None);
    }
}
