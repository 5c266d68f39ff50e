//! Answers of an upstream. Whatever it sends, the agent gets answers whose heads are clean, and the sidecar neither
//! hangs nor ends.

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
    // A POST is never asked a second time, so each input is one exchange.
    let request = format!("POST http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let answer = world::converse(proxy, request.as_bytes());
    if answer.is_empty() {
        return;
    }
    assert!(answer.starts_with(b"HTTP/1.1 "), "{:?}", String::from_utf8_lossy(&answer));
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        panic!("a head was begun and not ended: {:?}", String::from_utf8_lossy(&answer));
    };
    let head = &answer[..end];
    let lone = |at: usize| match head[at] {
        b'\r' => head.get(at + 1) != Some(&b'\n'),
        b'\n' => at == 0 || head[at - 1] != b'\r',
        octet => octet == 0,
    };
    assert!(!(0..head.len()).any(lone), "{:?}", String::from_utf8_lossy(head));
    let fields: Vec<Vec<u8>> = head.split(|b| *b == b'\n').skip(1).map(<[u8]>::to_ascii_lowercase).collect();
    let has = |name: &[u8]| fields.iter().any(|field| field.starts_with(name));
    assert!(!(has(b"content-length:") && has(b"transfer-encoding:")), "{:?}", String::from_utf8_lossy(head));
});
