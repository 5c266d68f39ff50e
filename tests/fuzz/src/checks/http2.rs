//! HTTP/2 in a connection whose TLS is terminated. Only whole HTTP/1.1 requests to the one allowed host reach the upstream, none
//! smuggled behind another, and the agent gets whole frames.

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
