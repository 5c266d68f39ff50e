//! The gateway on its Unix socket, with anything an agent may send it. The upstream and the platform get whole requests and nothing
//! else. The upstream echoes everything it was sent, and the agent still learns nothing of the secret.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use world::Platform;

static PLATFORM: LazyLock<Platform> = LazyLock::new(Platform::new);
static GATEWAY: LazyLock<String> = LazyLock::new(|| {
    world::answer_requests(world::echo);
    world::start_gateway(&PLATFORM)
});

fuzz_target!(|bytes: &[u8]| {
    let answer = world::converse_locally(&GATEWAY, bytes);
    PLATFORM.assert_hidden(bytes, &answer);
    assert!(!world::contains(&answer, b"\"configured\"") || world::contains(bytes, b"configured"));
    if bytes.starts_with(b"{") {
        for line in answer.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
            let line: serde_json::Value = serde_json::from_slice(line).expect("a line of JSON");
            assert!(line["status"].is_u64(), "{line}");
        }
    } else if !answer.is_empty() {
        world::assert_clean(&answer);
    }
});
