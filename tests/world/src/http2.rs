//! HTTP/2 (RFC 9113) on one connection, by the `h2` crate: each stream is a task that reads a request, gets the reaction to it, and
//! answers. It pushes nothing, and leaves WebSocket to HTTP/1.1.

use std::future::poll_fn;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::grpc;
use crate::http::{LINGER, PATIENCE, Session, Web};
use crate::response::{Content, Reaction, Response};
use crate::wire::{Body, Head, Headers, latin1};

/// Answers the streams of one connection until the peer leaves.
pub(crate) async fn serve<S>(web: &Web, stream: S, session: &Session) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut streams = JoinSet::new();
    let ended = accept(web, stream, session, &mut streams).await;
    // The streams record the rest now: their connection is gone.
    let _ = timeout(LINGER, async { while streams.join_next().await.is_some() {} }).await;
    ended.map_err(|error| {
        // Errors that the crate found, and not the peer or the socket.
        if error.is_library() {
            web.record_malformed(session, &error.to_string());
        }
        io::Error::other(error)
    })
}

async fn accept<S>(
    web: &Web,
    stream: S,
    session: &Session,
    streams: &mut JoinSet<()>,
) -> Result<(), h2::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut connection = h2::server::handshake(stream).await?;
    while let Some(accepted) = connection.accept().await {
        let (request, respond) = accepted?;
        let (web, session) = (web.clone(), session.clone());
        streams.spawn(async move {
            // A stream that fails ends alone; what it received is in the records.
            drop(exchange(&web, &session, request, respond).await);
        });
        while streams.try_join_next().is_some() {}
    }
    Ok(())
}

async fn exchange(
    web: &Web,
    session: &Session,
    request: http::Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let (parts, mut arriving) = request.into_parts();
    let head = head_of(&parts);
    let mut call = grpc::Echo::begin(&head, &mut respond)?;
    let body = match read(&mut arriving, call.as_mut()).await {
        Ok(body) => body,
        Err(error) => {
            web.record_cut(session, &head, error.to_string());
            return Err(error);
        }
    };
    if let Some(call) = call {
        web.record_request(session, &head, &body);
        return call.end();
    }
    match web.react(session, &head, &body).await {
        Reaction::Answer(response) => send(response, &mut respond, &head).await,
        Reaction::WebSocket { .. } => {
            send(Response::of(501, "text/plain", "only over HTTP/1.1\n"), &mut respond, &head).await
        }
        Reaction::Hang => {
            let _ = timeout(PATIENCE, poll_fn(|context| respond.poll_reset(context))).await;
            Ok(())
        }
    }
}

/// Returns the head in the form of HTTP/1.1: `:authority` is its first header, `host` (RFC 9113 §8.3.1).
fn head_of(parts: &http::request::Parts) -> Head {
    let authority = parts.uri.authority().map(|authority| ("host".to_owned(), authority.to_string()));
    let target = parts.uri.path_and_query().map_or("", |target| target.as_str()).to_owned();
    Head {
        line: format!("{} {target} HTTP/2.0", parts.method),
        method: parts.method.to_string(),
        target,
        minor_version: 1,
        headers: authority.into_iter().chain(pairs(&parts.headers)).collect(),
    }
}

fn pairs(headers: &HeaderMap) -> Headers {
    headers.iter().map(|(name, value)| (name.to_string(), latin1(value.as_bytes()))).collect()
}

async fn read(arriving: &mut RecvStream, mut call: Option<&mut grpc::Echo>) -> Result<Body, h2::Error> {
    let mut body = Body::default();
    while let Some(data) = arriving.data().await {
        let data = data?;
        arriving.flow_control().release_capacity(data.len())?;
        body.add(&data);
        if let Some(call) = &mut call {
            call.take(&data).await?;
        }
    }
    body.trailers = arriving.trailers().await?.map(|trailers| pairs(&trailers)).unwrap_or_default();
    Ok(body)
}

async fn send(response: Response, respond: &mut SendResponse<Bytes>, head: &Head) -> Result<(), h2::Error> {
    if let Some(interim) = &response.interim {
        respond.send_informational(start_of(interim.status, &interim.headers)?)?;
    }
    sleep(response.wait).await;
    let mut start = start_of(response.status, &response.headers)?;
    start.headers_mut().insert("server", HeaderValue::from_static("world"));
    let silent = !response.has_content(&head.method);
    let mut stream = respond.send_response(start, silent)?;
    if silent {
        return Ok(());
    }
    match response.content {
        Content::Whole(body) => send_data(&mut stream, body.into()).await?,
        Content::Filler(mut left) => {
            let piece = Bytes::from_static(&[b'x'; 64 * 1024]);
            while left > 0 {
                let here = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
                send_data(&mut stream, piece.slice(..here)).await?;
                left -= here as u64;
            }
        }
        Content::Pieces { pieces, pause, trailers } => {
            send_pieces(&mut stream, pieces, pause).await?;
            if !trailers.is_empty() {
                return stream.send_trailers(map_of(&trailers)?);
            }
        }
    }
    stream.send_data(Bytes::new(), true)
}

async fn send_pieces(
    stream: &mut SendStream<Bytes>,
    pieces: Vec<Vec<u8>>,
    pause: Duration,
) -> Result<(), h2::Error> {
    for piece in pieces {
        send_data(stream, piece.into()).await?;
        sleep(pause).await;
    }
    Ok(())
}

/// Sends as fast as the peer's window allows (RFC 9113 §5.2).
pub(crate) async fn send_data(stream: &mut SendStream<Bytes>, mut data: Bytes) -> Result<(), h2::Error> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = poll_fn(|context| stream.poll_capacity(context)).await;
        let room = room.unwrap_or_else(|| Err(Reason::CANCEL.into()))?;
        stream.send_data(data.split_to(room.min(data.len())), false)?;
    }
    Ok(())
}

/// Returns the start of an answer. A status or header that HTTP cannot carry ends the stream.
fn start_of(status: u16, headers: &Headers) -> Result<http::Response<()>, h2::Error> {
    let mut start = http::Response::new(());
    *start.status_mut() = http::StatusCode::from_u16(status).map_err(|_| Reason::INTERNAL_ERROR)?;
    *start.headers_mut() = map_of(headers)?;
    Ok(start)
}

fn map_of(headers: &Headers) -> Result<HeaderMap, h2::Error> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name = HeaderName::try_from(name).map_err(|_| Reason::INTERNAL_ERROR)?;
        let value = HeaderValue::try_from(value).map_err(|_| Reason::INTERNAL_ERROR)?;
        map.append(name, value);
    }
    Ok(map)
}
