//! Answers of an upstream. Whatever it sends, the agent gets answers with clean heads, and the sidecar neither hangs nor ends.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex};

use crate::{agent, sidecar, upstream};

static ANSWER: LazyLock<Arc<Mutex<Vec<u8>>>> = LazyLock::new(Arc::default);
static PROXY: LazyLock<SocketAddr> = LazyLock::new(|| {
    upstream::answer_with(Arc::clone(&ANSWER));
    sidecar::start().0
});

/// Sends a request to an upstream that answers with the input.
pub fn response(bytes: &[u8]) {
    let proxy = *PROXY;
    *ANSWER.lock().expect("nobody panicked with it") = bytes.to_vec();
    let host = format!("{}:{}", sidecar::HOST, sidecar::PORT);
    // The sidecar never retries a POST, so each input is one exchange.
    let request = format!("POST http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let answer = agent::converse(proxy, request.as_bytes());
    if !answer.is_empty() {
        agent::assert_clean(&answer);
    }
}
