//! The upstream: listens where the one allowed host is, and judges every octet that reaches it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::agent::survive_broken_pipes;
use crate::octets::contains;
use crate::sidecar::{HOST, PORT, upstream_address};
use crate::strict::{Reading, end_of_request};

/// The sidecar keeps an idle connection for half a minute.
const PATIENCE: Duration = Duration::from_secs(60);
/// How much of a request is echoed in a header.
const LONGEST_ECHO: usize = 2048;

/// The shortest answer.
pub(crate) const NO_CONTENT: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";

pub(crate) fn listen(port: u16, serve: impl Fn(TcpStream) + Clone + Send + 'static) {
    survive_broken_pipes();
    let listener = TcpListener::bind((upstream_address(), port)).expect("the address is this process's own");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || {
                if stream.set_read_timeout(Some(PATIENCE)).is_ok() {
                    serve(stream);
                }
            });
        }
    });
}

/// Answers every whole request with the result of `answer`, and ends the process at the first octet that a strict reader refuses.
pub(crate) fn answer_requests(answer: impl Fn(&[u8]) -> Vec<u8> + Clone + Send + 'static) {
    listen(PORT, move |stream| {
        let _ = read_requests(stream, PORT, &answer);
    });
}

pub(crate) fn read_requests(
    mut stream: impl Read + Write,
    port: u16,
    answer: &impl Fn(&[u8]) -> Vec<u8>,
) -> std::io::Result<()> {
    let host = format!("{HOST}:{port}");
    let mut held = Vec::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        match end_of_request(&held, &host) {
            Reading::Open => {}
            Reading::Bad(why) => panic!(
                "the sidecar sent what no upstream should get: {why}: {:?}",
                String::from_utf8_lossy(&held)
            ),
            Reading::Ends(end) => {
                let answer = answer(&held[..end]);
                held.drain(..end);
                assert!(
                    held.is_empty(),
                    "a request was smuggled behind another: {:?}",
                    String::from_utf8_lossy(&held)
                );
                stream.write_all(&answer)?;
            }
        }
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            read => held.extend(&buffer[..read]),
        }
    }
}

/// Returns an answer that echoes all of a request, in a header and in its body, as some debugging services do. If the request's
/// target asks for it, the answer refuses the credential.
#[must_use]
pub(crate) fn echo(request: &[u8]) -> Vec<u8> {
    let line = request.split(|b| *b == b'\r').next().unwrap_or_default();
    let status = if contains(line, b"/401") { "401 Unauthorized" } else { "200 OK" };
    let told: Vec<u8> =
        request.iter().take(LONGEST_ECHO).map(|b| if b.is_ascii_control() { b' ' } else { *b }).collect();
    let mut out = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nx-echo: ", request.len()).into_bytes();
    out.extend(told);
    out.extend(b"\r\n\r\n");
    if !request.starts_with(b"HEAD ") {
        out.extend(request);
    }
    out
}

/// Answers each connection's first request with what the cell holds then, and ends.
pub(crate) fn answer_with(answer: Arc<Mutex<Vec<u8>>>) {
    listen(PORT, move |mut stream| {
        let answer = answer.lock().map(|held| held.clone()).unwrap_or_default();
        let mut head = [0; 4096];
        // The sidecar sends the request in one short write.
        if stream.read(&mut head).is_ok_and(|read| read > 0) && stream.write_all(&answer).is_ok() {
            let _ = stream.shutdown(Shutdown::Write);
            while stream.read(&mut head).is_ok_and(|read| read > 0) {}
        }
    });
}
