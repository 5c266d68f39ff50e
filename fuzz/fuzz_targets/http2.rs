//! HTTP/2 in a connection the sidecar opens: what reaches the upstream by HTTP/1.1 is whole requests to the one host the
//! rules allow, none behind another, and the agent gets whole frames.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use world::{Answers, Opened};

static OPENED: LazyLock<Opened> = LazyLock::new(|| Opened::start(world::echo));

fuzz_target!(|input: &[u8]| {
    let answers = if input.starts_with(b"h") { Answers::One } else { Answers::Any };
    let answer = OPENED.converse(&world::frames_of(input), answers);
    assert!(world::well_framed(&answer), "{:?}", answer.escape_ascii().to_string());
});
