//! Answers of an upstream. Whatever it sends, the agent gets answers with clean heads, and the sidecar neither hangs nor ends.

#![no_main]

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex};

use libfuzzer_sys::fuzz_target;

static ANSWER: LazyLock<Arc<Mutex<Vec<u8>>>> = LazyLock::new(Arc::default);
static PROXY: LazyLock<SocketAddr> = LazyLock::new(|| {
    world::answer_with(Arc::clone(&ANSWER));
    world::start().0
});

fuzz_target!(|bytes: &[u8]| {
    let proxy = *PROXY;
    *ANSWER.lock().expect("nobody panicked with it") = bytes.to_vec();
    let host = format!("{}:{}", world::HOST, world::PORT);
    // The sidecar never retries a POST, so each input is one exchange.
    let request = format!("POST http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let answer = world::converse(proxy, request.as_bytes());
    if !answer.is_empty() {
        world::assert_clean(&answer);
    }
});
