//! Sends one HTTP/1.1 request on an open connection, and reads its response to the last octet.
//!
//! It knows only what the benchmarks' origin sends: a head, and a body as long as its `Content-Length`.

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The longest head.
const HEAD: usize = 4096;
/// How much is read at once.
pub(crate) const CHUNK: usize = 64 * 1024;

/// Requests `target`, a path or a whole URL, reads the answer, and returns the length of its body.
pub(crate) async fn ask(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    host: &str,
    target: &str,
    buffer: &mut [u8],
) -> Result<u64> {
    let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.context("failed to send the request")?;
    stream.flush().await.context("failed to send the request")?;
    let (head, ahead) = head(stream, buffer).await?;
    if !head.starts_with("HTTP/1.1 200") {
        bail!("the answer is `{}`", head.lines().next().unwrap_or_default());
    }
    let length = length(&head).context("the answer has no Content-Length")?;
    let mut left = length.checked_sub(ahead as u64).context("the answer is longer than it says")?;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(CHUNK).min(buffer.len());
        let read = stream.read(&mut buffer[..most]).await.context("failed to read the answer")?;
        if read == 0 {
            bail!("the answer was cut short");
        }
        left -= read as u64;
    }
    Ok(length)
}

/// Asks an explicit proxy for a tunnel.
pub(crate) async fn connect(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    authority: &str,
) -> Result<()> {
    let request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.context("failed to ask for a tunnel")?;
    let (head, ahead) = head(stream, &mut [0; HEAD]).await?;
    if !head.starts_with("HTTP/1.1 200") || ahead != 0 {
        bail!("the proxy answered `{}`", head.lines().next().unwrap_or_default());
    }
    Ok(())
}

/// Reads up to the empty line. Returns the head, and how many octets of the body came with it.
async fn head(stream: &mut (impl AsyncRead + Unpin), buffer: &mut [u8]) -> Result<(String, usize)> {
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).await.context("failed to read the answer")?;
        filled += read;
        if let Some(at) = buffer[..filled].windows(4).position(|four| four == b"\r\n\r\n") {
            return Ok((String::from_utf8_lossy(&buffer[..at]).into_owned(), filled - at - 4));
        }
        if read == 0 || filled >= HEAD {
            bail!("the connection ended within a head");
        }
    }
}

fn length(head: &str) -> Option<u64> {
    head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_is_found_in_any_case() {
        assert_eq!(length("HTTP/1.1 200 OK\r\nServer: x\r\ncontent-length: 12"), Some(12));
        assert_eq!(length("HTTP/1.1 200 OK"), None);
    }
}
