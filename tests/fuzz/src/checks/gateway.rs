//! The gateway on its Unix socket, with anything an agent may send it. The upstream and the platform get whole requests and nothing
//! else. The upstream echoes everything it was sent, and the agent still learns nothing of the secret.

use std::sync::LazyLock;

use crate::platform::Platform;
use crate::{agent, octets, sidecar, upstream};

static PLATFORM: LazyLock<Platform> = LazyLock::new(Platform::new);
static GATEWAY: LazyLock<String> = LazyLock::new(|| {
    upstream::answer_requests(upstream::echo);
    sidecar::start_gateway(&PLATFORM)
});

/// Sends the input to the gateway.
pub fn gateway(bytes: &[u8]) {
    let answer = agent::converse_locally(&GATEWAY, bytes);
    PLATFORM.assert_hidden(bytes, &answer);
    assert!(!octets::contains(&answer, b"\"configured\"") || octets::contains(bytes, b"configured"));
    if bytes.starts_with(b"{") {
        for line in answer.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
            let line: serde_json::Value = serde_json::from_slice(line).expect("a line of JSON");
            assert!(line["status"].is_u64(), "{line}");
        }
    } else if !answer.is_empty() {
        agent::assert_clean(&answer);
    }
}
