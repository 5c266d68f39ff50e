//! WebSocket messages of an upstream. The input is a line whose octets are the lengths of frames, and messages divided by the octet
//! 255, in which the octets 0 to 31 stand for the credential in some form; an input that begins with `r` is sent as it is. Every
//! frame header reaches the agent where it was, and no message holds the credential, however it is spread over frames.

use std::sync::LazyLock;

use crate::platform::Platform;
use crate::web_socket_sidecar::WebSocketSidecar;

static PLATFORM: LazyLock<Platform> = LazyLock::new(Platform::new);
static SIDECAR: LazyLock<WebSocketSidecar> = LazyLock::new(|| WebSocketSidecar::start(&PLATFORM));

/// The most parts of one message: more than may wait for the end of a secret.
const MOST_PARTS: usize = 200;

/// Carries the input over a WebSocket from the upstream to the agent.
pub fn websocket(input: &[u8]) {
    if let Some(raw) = input.strip_prefix(b"r") {
        let got = SIDECAR.carry(raw);
        assert!(same_but_masks(raw, &got), "{}", got.escape_ascii());
        return;
    }
    let mut lines = input.splitn(2, |b| *b == b'\n');
    let (Some(cuts), Some(text)) = (lines.next(), lines.next()) else { return };
    let mut sent = Vec::new();
    for message in text.split(|b| *b == 255) {
        frames(&PLATFORM.put_secrets_into(message), cuts, &mut sent);
    }
    let got = SIDECAR.carry(&sent);
    assert_eq!(got.len(), sent.len(), "not all came");
    assert!(same_but_masks(&sent, &got), "{}", got.escape_ascii());
    for text in messages(&got) {
        PLATFORM.assert_hidden(input, &text);
    }
}

/// Whether the octets that came are those that were sent, up to where they ended, except for masks.
fn same_but_masks(sent: &[u8], got: &[u8]) -> bool {
    got.len() <= sent.len() && got.iter().zip(sent).all(|(got, sent)| got == sent || *got == b'*')
}

/// Encodes a message in frames of the lengths in `cuts`, with a ping after each frame of odd length.
fn frames(message: &[u8], cuts: &[u8], out: &mut Vec<u8>) {
    let mut rest = message;
    for (number, cut) in cuts.iter().take(MOST_PARTS).enumerate() {
        let (part, after) = rest.split_at(rest.len().min(usize::from(*cut)));
        frame(if number == 0 { 0x01 } else { 0x00 }, part, out);
        if cut % 2 == 1 {
            frame(0x89, &message[..message.len().min(125)], out);
        }
        rest = after;
    }
    frame(if cuts.is_empty() { 0x81 } else { 0x80 }, rest, out);
}

fn frame(first: u8, text: &[u8], out: &mut Vec<u8>) {
    out.push(first);
    match u16::try_from(text.len()) {
        Ok(length @ 0..=125) => out.push(length as u8),
        Ok(length) => {
            out.push(126);
            out.extend(length.to_be_bytes());
        }
        Err(_) => {
            out.push(127);
            out.extend((text.len() as u64).to_be_bytes());
        }
    }
    out.extend(text);
}

/// Returns the texts of a stream: each message with all its parts. The content of a ping may be cut anywhere, and is left out.
fn messages(mut stream: &[u8]) -> Vec<Vec<u8>> {
    let (mut texts, mut text) = (Vec::new(), Vec::new());
    while let [first, length, rest @ ..] = stream {
        let wide = match length {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let (digits, rest) = rest.split_at(wide);
        let length = match wide {
            0 => usize::from(*length),
            _ => digits.iter().fold(0, |sum, octet| (sum << 8) | usize::from(*octet)),
        };
        let (part, rest) = rest.split_at(length);
        stream = rest;
        if first & 0x08 == 0 {
            text.extend(part);
            if first & 0x80 != 0 {
                texts.push(std::mem::take(&mut text));
            }
        }
    }
    texts
}
