//! HTTP/2 in a connection whose TLS is terminated. Only whole HTTP/1.1 requests to the one allowed host reach the upstream, none
//! smuggled behind another, and the agent gets whole frames.

use std::sync::LazyLock;

use crate::terminating_sidecar::{TerminatingSidecar, Until};
use crate::{frames, upstream};

static SIDECAR: LazyLock<TerminatingSidecar> = LazyLock::new(|| TerminatingSidecar::start(upstream::echo));

/// Sends the input as HTTP/2 in a connection whose TLS the sidecar terminates.
pub fn http2(input: &[u8]) {
    let until = if input.starts_with(b"h") { Until::FirstAnswer } else { Until::Quiet };
    let answer = SIDECAR.converse(&frames::frames_of(input), until);
    assert!(frames::well_framed(&answer), "{:?}", answer.escape_ascii().to_string());
}
