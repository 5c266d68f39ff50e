//! The upstream: it listens where the one allowed host is, and judges every octet that reaches it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::sidecar::{HOST, PORT, upstream_address};
use crate::strict::{Reading, end_of_request};

/// The sidecar keeps an idle connection for half a minute.
const PATIENCE: Duration = Duration::from_secs(60);

fn listen(serve: impl Fn(TcpStream) + Clone + Send + 'static) {
    let listener = TcpListener::bind((upstream_address(), PORT)).expect("the address is this process's own");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
}

/// Answers every request with 204 and ends the process at the first octet a strict reader refuses. `judge` sees each
/// whole request.
pub fn answer_requests(judge: impl Fn(&[u8]) + Clone + Send + 'static) {
    listen(move |stream| {
        if stream.set_read_timeout(Some(PATIENCE)).is_ok() {
            let _ = read_requests(stream, &judge);
        }
    });
}

fn read_requests(mut stream: TcpStream, judge: &impl Fn(&[u8])) -> std::io::Result<()> {
    let host = format!("{HOST}:{PORT}");
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
                judge(&held[..end]);
                held.drain(..end);
                assert!(
                    held.is_empty(),
                    "a request was smuggled behind another: {:?}",
                    String::from_utf8_lossy(&held)
                );
                stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")?;
            }
        }
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            read => held.extend(&buffer[..read]),
        }
    }
}

/// Answers each connection's first request with whatever the cell holds then, and ends.
pub fn answer_with(answer: Arc<Mutex<Vec<u8>>>) {
    listen(move |mut stream| {
        let answer = answer.lock().map(|held| held.clone()).unwrap_or_default();
        let mut head = [0; 4096];
        // The request is one short write of the sidecar's.
        if stream.read(&mut head).is_ok_and(|read| read > 0) && stream.write_all(&answer).is_ok() {
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.set_read_timeout(Some(PATIENCE));
            while stream.read(&mut head).is_ok_and(|read| read > 0) {}
        }
    });
}
