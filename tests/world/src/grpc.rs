//! A gRPC method that repeats each message as it arrives ("gRPC over HTTP2" in the gRPC repository): any path, any message, over HTTP/2
//! alone. It never looks into a message.

use bytes::{Buf, Bytes, BytesMut};
use h2::SendStream;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Response};

use crate::http2::send_data;
use crate::wire::Head;

/// The length of the prefix of each message: a flag and a length of four octets.
const PREFIX: usize = 5;

/// A call that has been answered with headers and is still open.
pub(crate) struct Echo {
    stream: SendStream<Bytes>,
    pending: BytesMut,
}

impl Echo {
    /// Answers `head` at once if it begins a call.
    pub(crate) fn begin(head: &Head, respond: &mut SendResponse<Bytes>) -> Result<Option<Self>, h2::Error> {
        if !head.header("content-type").is_some_and(|kind| kind.starts_with("application/grpc")) {
            return Ok(None);
        }
        let mut start = Response::new(());
        start.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        Ok(Some(Self { stream: respond.send_response(start, false)?, pending: BytesMut::new() }))
    }

    /// Reads what arrived and repeats the messages that are whole by now.
    pub(crate) async fn take(&mut self, data: &[u8]) -> Result<(), h2::Error> {
        self.pending.extend_from_slice(data);
        while let Some(length) = self.pending.get(1..PREFIX).map(|mut length| length.get_u32()) {
            let whole = PREFIX.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
            if self.pending.len() < whole {
                break;
            }
            send_data(&mut self.stream, self.pending.split_to(whole).freeze()).await?;
        }
        Ok(())
    }

    /// Ends the call with success.
    pub(crate) fn end(mut self) -> Result<(), h2::Error> {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        self.stream.send_trailers(trailers)
    }
}
