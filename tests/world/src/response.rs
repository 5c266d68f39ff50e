//! What a server of the world says back, and how it is written. It decides nothing: routes do.

use std::io;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::sleep;

use crate::wire::Head;

/// An answer to a request.
#[derive(Debug)]
pub(crate) enum Response {
    /// A status, headers beside the length, and a body.
    Whole { status: u16, headers: Vec<(String, String)>, body: Vec<u8> },
    /// This many bytes, written in pieces.
    Bytes(u64),
    /// The same as `Whole` with a JSON body, after a wait.
    Late(Duration, Value),
    /// Server-sent events, 100 ms apart.
    Events(u32),
    /// Nothing, for as long as the peer waits.
    Hang,
}

impl Response {
    /// A body of one type.
    pub(crate) fn of(status: u16, kind: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::Whole { status, headers: vec![("content-type".to_owned(), kind.to_owned())], body: body.into() }
    }

    /// A JSON body.
    pub(crate) fn json(value: &Value) -> Self {
        Self::of(200, "application/json", value.to_string())
    }

    /// A plain answer that there is nothing here.
    pub(crate) fn not_found() -> Self {
        Self::of(404, "text/plain", "not found\n")
    }

    /// Writes the answer. Says whether the connection may carry another request.
    pub(crate) async fn write(self, stream: &mut (impl AsyncWrite + Unpin), head: &Head) -> io::Result<bool> {
        let alive = head.keeps_alive();
        let silent = head.method == "HEAD";
        match self {
            Self::Hang => return Ok(false),
            Self::Late(wait, value) => {
                sleep(wait).await;
                write_whole(stream, alive, silent, &Self::json(&value)).await?;
            }
            Self::Bytes(length) => {
                let start =
                    start_of(200, &[("content-type", "application/octet-stream")], Some(length), alive);
                stream.write_all(start.as_bytes()).await?;
                let piece = [b'x'; 64 * 1024];
                let mut left = if silent { 0 } else { length };
                while left > 0 {
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
                    stream.write_all(&piece[..here]).await?;
                    left -= here as u64;
                }
            }
            Self::Events(count) => {
                let start = start_of(200, &[("content-type", "text/event-stream")], None, alive);
                stream.write_all(start.as_bytes()).await?;
                for number in 1..=count {
                    let event = format!("id: {number}\ndata: event {number}\n\n");
                    stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await?;
                    stream.flush().await?;
                    sleep(Duration::from_millis(100)).await;
                }
                stream.write_all(b"0\r\n\r\n").await?;
            }
            Self::Whole { .. } => write_whole(stream, alive, silent, &self).await?,
        }
        stream.flush().await?;
        Ok(alive)
    }
}

async fn write_whole(
    stream: &mut (impl AsyncWrite + Unpin),
    alive: bool,
    silent: bool,
    response: &Response,
) -> io::Result<()> {
    let Response::Whole { status, headers, body } = response else { return Ok(()) };
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    stream.write_all(start_of(*status, &headers, Some(body.len() as u64), alive).as_bytes()).await?;
    if !silent {
        stream.write_all(body).await?;
    }
    Ok(())
}

fn start_of(status: u16, headers: &[(&str, &str)], length: Option<u64>, alive: bool) -> String {
    let reason = match status {
        200 => "OK",
        302 => "Found",
        400 => "Bad Request",
        404 => "Not Found",
        _ => "Status",
    };
    let mut start = format!("HTTP/1.1 {status} {reason}\r\nserver: world\r\n");
    for (name, value) in headers {
        start += &format!("{name}: {value}\r\n");
    }
    match length {
        Some(length) => start += &format!("content-length: {length}\r\n"),
        None => start += "transfer-encoding: chunked\r\n",
    }
    start += if alive { "connection: keep-alive\r\n\r\n" } else { "connection: close\r\n\r\n" };
    start
}
