//! HTTP/1.1 (RFC 9112) on one connection: reads each request, gets the reaction to it, writes the answer.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use crate::http::{LINGER, PATIENCE, Session, Web};
use crate::paths;
use crate::response::{Content, Reaction, Response};
use crate::websocket;
use crate::wire::{Arrived, Body, Head, Headers, Wire};

/// Answers requests until one side ends the connection.
pub(crate) async fn serve<S>(web: &Web, stream: S, session: &Session) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut wire = Wire::new(stream);
    let ended = requests(web, &mut wire, session).await;
    // Closing with octets unread would reset the connection and lose the answer, and everything received is recorded.
    let closed = wire.stream.shutdown().await;
    let _ = timeout(LINGER, wire.drain()).await;
    ended.and(closed)
}

async fn requests<S>(web: &Web, wire: &mut Wire<S>, session: &Session) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        let head = match wire.head().await {
            Arrived::Request(head) => head,
            Arrived::Nothing => return Ok(()),
            Arrived::Malformed(why) => {
                web.record_malformed(session, &why);
                let head = Head { method: "GET".to_owned(), ..Head::default() };
                write(Response::of(400, "text/plain", why), &mut wire.stream, &head).await?;
                return Ok(());
            }
        };
        if let Some(answer) = paths::unread(&head) {
            web.record_request(session, &head, &Body::default());
            return write(answer, &mut wire.stream, &head).await;
        }
        let body = match wire.body(&head).await {
            Ok(body) => body,
            Err(error) => {
                web.record_cut(session, &head, error.to_string());
                return Err(error);
            }
        };
        match web.react(session, &head, &body).await {
            Reaction::Answer(response) => {
                write(response, &mut wire.stream, &head).await?;
                if !head.keeps_alive() {
                    return Ok(());
                }
            }
            // Until the peer gives up, or the time is over.
            Reaction::Hang => {
                let _ = timeout(PATIENCE, wire.drain()).await;
                return Ok(());
            }
            Reaction::WebSocket { greeting, cut, hints } => {
                return match websocket::accept(&head) {
                    Some(accepted) => {
                        let hint = start_of(
                            103,
                            &vec![("link".to_owned(), "</style.css>; rel=preload; as=style".to_owned())],
                        );
                        wire.stream.write_all(hint.repeat(hints).as_bytes()).await?;
                        wire.stream.write_all(accepted.as_bytes()).await?;
                        websocket::converse(web, wire, session, greeting, cut).await
                    }
                    None => write(websocket::required(), &mut wire.stream, &head).await,
                };
            }
        }
    }
}

async fn write(response: Response, stream: &mut (impl AsyncWrite + Unpin), head: &Head) -> io::Result<()> {
    if let Some(interim) = &response.interim {
        stream.write_all(start_of(interim.status, &interim.headers).as_bytes()).await?;
        stream.flush().await?;
    }
    sleep(response.wait).await;
    let has_content = response.has_content(&head.method);
    let mut headers = vec![("server".to_owned(), "world".to_owned())];
    headers.extend(response.headers);
    if has_content || head.method == "HEAD" {
        headers.push(framing(&response.content));
    }
    let connection = if head.keeps_alive() { "keep-alive" } else { "close" };
    headers.push(("connection".to_owned(), connection.to_owned()));
    stream.write_all(start_of(response.status, &headers).as_bytes()).await?;
    if has_content {
        write_content(response.content, stream).await?;
    }
    stream.flush().await
}

/// Returns the header that delimits the content (RFC 9112 §6). The answer to HEAD has it too (RFC 9110 §9.3.2).
fn framing(content: &Content) -> (String, String) {
    let length = match content {
        Content::Whole(body) => body.len() as u64,
        Content::Filler(length) => *length,
        Content::Pieces { .. } => return ("transfer-encoding".to_owned(), "chunked".to_owned()),
    };
    ("content-length".to_owned(), length.to_string())
}

async fn write_content(content: Content, stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    match content {
        Content::Whole(body) => stream.write_all(&body).await,
        Content::Filler(mut left) => {
            let piece = [b'x'; 64 * 1024];
            while left > 0 {
                let here = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
                stream.write_all(&piece[..here]).await?;
                left -= here as u64;
            }
            Ok(())
        }
        Content::Pieces { pieces, pause, trailers } => {
            for piece in pieces {
                let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), &piece, b"\r\n"].concat();
                stream.write_all(&chunk).await?;
                stream.flush().await?;
                sleep(pause).await;
            }
            stream.write_all(format!("0\r\n{}\r\n", lines(&trailers)).as_bytes()).await
        }
    }
}

fn start_of(status: u16, headers: &Headers) -> String {
    let reason = http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    format!("HTTP/1.1 {status} {}\r\n{}\r\n", reason.unwrap_or("Status"), lines(headers))
}

fn lines(headers: &Headers) -> String {
    headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect()
}
