//! DNS questions to a real sidecar over UDP. Every answer is small and well formed, and gives only addresses of the sidecar's own
//! choosing, for names that the rules allow.

use std::cell::Cell;
use std::net::UdpSocket;
use std::sync::LazyLock;

use crate::{agent, sidecar};

static SOCKET: LazyLock<UdpSocket> = LazyLock::new(|| agent::dns_socket(sidecar::start().1));

thread_local! {
    static NEXT: Cell<u16> = const { Cell::new(0) };
}

/// Asks the sidecar the input over UDP, and judges its answer.
pub fn dns_answer(question: &[u8]) {
    if question.len() > 1500 {
        return; // longer than any datagram the sidecar reads
    }
    // Sends a good question after it. Its answer shows that the question before it has been answered, or never will be.
    let id = NEXT.replace(NEXT.get().wrapping_add(1));
    SOCKET.send(question).expect("loopback takes a datagram");
    SOCKET.send(&sentinel(id)).expect("loopback takes a datagram");
    let mut answers: Vec<Vec<u8>> = Vec::new();
    while !answers.last().is_some_and(|last| is_sentinel(last, id)) {
        let mut buffer = [0; 4096];
        let length = match SOCKET.recv(&mut buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue, // the fuzzer's own clock
            received => received.expect("the sidecar still answers"),
        };
        answers.push(buffer[..length].to_vec());
        assert!(answers.len() <= 3, "more answers than questions");
    }
    if answers.len() > 1 {
        judge(question, &answers[0]);
    }
}

fn sentinel(id: u16) -> Vec<u8> {
    let mut message = [&id.to_be_bytes()[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    for label in sidecar::DNS_NAME.split('.') {
        message.push(label.len() as u8);
        message.extend(label.bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

fn is_sentinel(answer: &[u8], id: u16) -> bool {
    answer.starts_with(&id.to_be_bytes())
        && answer.get(12..).is_some_and(|rest| rest.starts_with(&sentinel(0)[12..]))
}

fn judge(question: &[u8], answer: &[u8]) {
    assert!(answer.len() >= 12 && answer.len() <= 512, "{} octets", answer.len());
    assert_eq!(answer[..2], question[..2], "the id");
    assert_eq!(answer[2] & 0x80, 0x80, "it is an answer");
    let code = answer[3] & 15;
    assert!(matches!(code, 0 | 1 | 3 | 4 | 5), "code {code}");
    let count = |at: usize| u16::from_be_bytes([answer[at], answer[at + 1]]);
    let (questions, records, authorities, extra) = (count(4), count(6), count(8), count(10));
    assert!(questions <= 1 && records <= 1 && authorities == 0 && extra <= 1);
    if records == 0 {
        return;
    }
    assert_eq!((questions, code), (1, 0));
    let (name, mut at) = name(answer);
    let allowed = [sidecar::DNS_NAME, sidecar::HOST, "localhost", "sidecar"].contains(&name.as_str())
        || name.ends_with(".allowed.example.com");
    assert!(allowed, "{name}");
    at += 4; // the question's type and class
    // The record's own name: a pointer to the question's, or the same name again.
    at += if answer[at] & 0xc0 == 0xc0 { 2 } else { name.len() + 2 };
    let kind = u16::from_be_bytes([answer[at], answer[at + 1]]);
    let data = &answer[at + 10..];
    match kind {
        1 => {
            assert!(data.starts_with(&[127, 0, 0, 1]) || (data[0] == 198 && data[1] & 0xfe == 18), "{data:?}")
        }
        28 => assert!(
            data[..15] == [0; 15] || data.starts_with(&[0xfd, 0x6c, 0x6f, 0x63, 0x6b, 0x67]),
            "{data:?}"
        ),
        other => panic!("a record of type {other}"),
    }
}

/// Returns the name of the question in an answer, in lower case, and where it ends.
fn name(answer: &[u8]) -> (String, usize) {
    let mut labels = Vec::new();
    let mut at = 12;
    while answer[at] != 0 {
        let length = usize::from(answer[at]);
        assert!(length < 64, "the question is compressed");
        labels.push(String::from_utf8_lossy(&answer[at + 1..at + 1 + length]).to_ascii_lowercase());
        at += length + 1;
    }
    (labels.join("."), at + 1)
}
