//! The explicit proxy, with anything an agent may send it. Only whole requests to the one allowed host reach the upstream, none
//! smuggled behind another, and the sidecar neither hangs nor ends.

#![no_main]

use std::net::SocketAddr;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static PROXY: LazyLock<SocketAddr> = LazyLock::new(|| {
    world::answer_requests(|_| world::NO_CONTENT.to_vec());
    world::start().0
});

fuzz_target!(|bytes: &[u8]| {
    let answer = world::converse(*PROXY, bytes);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 "), "{:?}", String::from_utf8_lossy(&answer));
});
