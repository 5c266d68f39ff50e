//! A WebSocket (RFC 6455) that repeats each frame and records it. It negotiates no extension, so frames are not encoded.

use std::io;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use data_encoding::BASE64;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use crate::http::{RECORDED_BODY, Session, Web};
use crate::response::Response;
use crate::wire::{Head, Wire, latin1};

/// RFC 6455 §1.3.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// RFC 6455 §5.2: this is the last frame of a message; the other bits of the first octet are the opcode.
const FINAL: u8 = 0x80;
const KIND: u8 = 0x0f;
const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
/// The second octet says whether the payload is masked, and its length or how the length is encoded.
const MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7f;
const LENGTH_IN_TWO: u8 = 126;
const LENGTH_IN_EIGHT: u8 = 127;
/// The largest payload; a longer frame ends the connection.
const MAX_PAYLOAD: u64 = 16 << 20;

/// A frame, its payload unmasked.
struct Frame {
    first: u8,
    payload: Vec<u8>,
}

/// Returns the answer that opens the connection, or nothing if `head` is no opening handshake (RFC 6455 §4.2.1).
pub(crate) fn accept(head: &Head) -> Option<String> {
    let says = |name, word: &str| {
        head.header(name).is_some_and(|value| value.to_ascii_lowercase().split(", ").any(|one| one == word))
    };
    let opens = head.method == "GET"
        && says("connection", "upgrade")
        && says("upgrade", "websocket")
        && says("sec-websocket-version", "13");
    let key = head.header("sec-websocket-key").filter(|_| opens)?;
    let sum = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes());
    Some(format!(
        "HTTP/1.1 101 Switching Protocols\r\nserver: world\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
         sec-websocket-accept: {}\r\n\r\n",
        BASE64.encode(sum.as_ref())
    ))
}

/// Returns the answer to any other request (RFC 9110 §15.5.22).
pub(crate) fn required() -> Response {
    Response::of(426, "text/plain", "a WebSocket is wanted\n").with("upgrade", "websocket")
}

/// Sends `greeting`, with a `cut` in two frames and a ping between them, then repeats every frame until the peer closes. Each frame of the
/// peer is recorded.
pub(crate) async fn converse<S>(
    web: &Web,
    wire: &mut Wire<S>,
    session: &Session,
    greeting: Option<String>,
    cut: Option<usize>,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if let Some(greeting) = greeting {
        let mut first = greeting.into_bytes();
        match cut.filter(|cut| *cut < first.len()) {
            None => write(wire, &Frame { first: FINAL | TEXT, payload: first }).await?,
            Some(cut) => {
                let rest = first.split_off(cut);
                write(wire, &Frame { first: TEXT, payload: first }).await?;
                write(wire, &Frame { first: FINAL | PING, payload: b"between".into() }).await?;
                write(wire, &Frame { first: FINAL, payload: rest }).await?;
            }
        }
    }
    loop {
        let frame = read(wire).await?;
        let kind = frame.first & KIND;
        let detail = json!({
            "sni": session.sni,
            "kind": kind,
            "final": frame.first & FINAL != 0,
            "length": frame.payload.len(),
            "data": latin1(&frame.payload[..frame.payload.len().min(RECORDED_BODY)]),
        });
        web.recorder.visit(&session.visit, "frame", detail);
        match kind {
            PONG => {}
            PING => write(wire, &Frame { first: FINAL | PONG, ..frame }).await?,
            CLOSE => return write(wire, &frame).await,
            _ => write(wire, &frame).await?,
        }
    }
}

async fn read<S>(wire: &mut Wire<S>) -> io::Result<Frame>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let refused = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    let [first, second] = wire.octets().await?;
    if second & MASKED == 0 {
        return Err(refused("a frame of a client is masked (RFC 6455 §5.1)"));
    }
    let length = match second & LENGTH {
        LENGTH_IN_TWO => u16::from_be_bytes(wire.octets().await?).into(),
        LENGTH_IN_EIGHT => u64::from_be_bytes(wire.octets().await?),
        length => length.into(),
    };
    if length > MAX_PAYLOAD {
        return Err(refused("a frame is too long"));
    }
    let mask: [u8; 4] = wire.octets().await?;
    let mut payload = wire.exactly(length).await?;
    payload.iter_mut().zip(mask.iter().cycle()).for_each(|(octet, mask)| *octet ^= mask);
    Ok(Frame { first, payload })
}

async fn write<S>(wire: &mut Wire<S>, frame: &Frame) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let length = frame.payload.len();
    let mut octets = vec![frame.first];
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(length), _) if length < LENGTH_IN_TWO => octets.push(length),
        (_, Ok(length)) => {
            octets.push(LENGTH_IN_TWO);
            octets.extend_from_slice(&length.to_be_bytes());
        }
        _ => {
            octets.push(LENGTH_IN_EIGHT);
            octets.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    octets.extend_from_slice(&frame.payload);
    wire.stream.write_all(&octets).await?;
    wire.stream.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handshake_is_the_one_of_the_rfc() {
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut head = Head {
            method: "GET".to_owned(),
            headers: vec![
                header("Connection", "keep-alive, Upgrade"),
                header("Upgrade", "websocket"),
                header("Sec-WebSocket-Version", "13"),
                header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ],
            ..Head::default()
        };
        // RFC 6455 §1.3.
        assert!(accept(&head).unwrap().contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
        head.headers.pop();
        assert!(accept(&head).is_none());
    }
}
