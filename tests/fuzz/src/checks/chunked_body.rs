//! Chunked bodies. The input follows a good head. The upstream gets exactly the data of its chunks, as a strict reader finds it,
//! and nothing that follows their end, no trailers either.

use std::net::SocketAddr;
use std::sync::{LazyLock, Mutex};

use crate::strict::{Reading, Trailers};
use crate::{agent, sidecar, strict, upstream};

/// The bodies that reached the upstream.
static REACHED: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

static PROXY: LazyLock<SocketAddr> = LazyLock::new(|| {
    upstream::answer_requests(|request| {
        let body = request.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |at| at + 4);
        REACHED.lock().expect("nobody panicked with it").push(request[body..].to_vec());
        upstream::NO_CONTENT.to_vec()
    });
    sidecar::start().0
});

/// Sends the input as the body of a request through the explicit proxy.
pub fn chunked_body(body: &[u8]) {
    REACHED.lock().expect("nobody panicked with it").clear();
    let host = format!("{}:{}", sidecar::HOST, sidecar::PORT);
    let head = format!(
        "POST http://{host}/ HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    );
    let answer = agent::converse(*PROXY, &[head.as_bytes(), body].concat());
    let reached = REACHED.lock().expect("nobody panicked with it");
    match strict::end_of_chunked(body, Trailers::Allowed) {
        // A key in a trailer is refused (C08).
        Reading::Ends(end)
            if reached.is_empty() && strict::end_of_chunked(body, Trailers::None) != Reading::Ends(end) => {}
        Reading::Ends(end) if end <= 64 * 1024 => {
            // The sidecar may cut chunks differently, but must not change their data.
            let data: Vec<Vec<u8>> = reached.iter().map(|body| strict::chunked_data(body)).collect();
            let sent = strict::chunked_data(&body[..end]);
            assert_eq!(data, [sent], "{:?}", String::from_utf8_lossy(&answer));
            assert!(answer.starts_with(b"HTTP/1.1 204"), "{:?}", String::from_utf8_lossy(&answer));
        }
        _ => assert!(reached.is_empty(), "a body without an end was taken for whole"),
    }
}
