//! Awaits the response of an upstream, over HTTP/1 or HTTP/2.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;

use super::chunk::ChunkSyntax;
use super::head::{BodyLength, Buffered};
use super::incoming::{Framing, Incoming};
use super::interim::InterimAnswers;
use super::response::{FIRST_OCTET, ResponseBody, ResponseHead, has_no_body, unusable};
use super::session::PendingHead;
use crate::patience::within_once;
use crate::upstream::UpstreamReader;

/// A response that has not come yet.
pub(super) enum PendingResponse<'a> {
    Version1(&'a mut Buffered<UpstreamReader>),
    Version2(PendingHead),
}

/// A response whose head has arrived.
pub(super) struct UpstreamResponse<'a> {
    pub(super) head: ResponseHead,
    pub(super) length: ResponseBody,
    pub(super) body: Incoming<'a, UpstreamReader>,
}

impl<'a> PendingResponse<'a> {
    /// Awaits the final response to a request of the given method; interim ones go to `interim`. The time that an upstream has counts
    /// from when the whole request `is_sent`: until then it may be waiting for the rest.
    pub(super) async fn receive(
        self,
        method: &str,
        is_sent: &Cell<bool>,
        mut interim: InterimAnswers<'_, '_>,
    ) -> io::Result<UpstreamResponse<'a>> {
        match self {
            Self::Version1(reader) => {
                let head = interim.read_final(reader, is_sent).await?;
                UpstreamResponse::of_version_1(head, reader, method)
            }
            Self::Version2(mut response) => {
                let received = interim.until_final(async || poll_fn(|cx| response.poll_next(cx)).await);
                let response = within_once(|| is_sent.get(), FIRST_OCTET, received).await?;
                UpstreamResponse::of_version_2(response, method, is_sent.get())
            }
        }
    }
}

impl<'a> UpstreamResponse<'a> {
    /// Creates the response to a request of the given method, whose body follows its head.
    pub(super) fn of_version_1(
        head: ResponseHead,
        reader: &'a mut Buffered<UpstreamReader>,
        method: &str,
    ) -> io::Result<Self> {
        let length = head.body(method).map_err(unusable)?;
        let framing = match length {
            ResponseBody::Framed(length) => Framing::of(length, ChunkSyntax::Lenient),
            ResponseBody::ToEnd => Framing::ToEnd,
        };
        Ok(Self { head, length, body: Incoming::Version1 { reader, framing } })
    }

    fn of_version_2(
        response: http::Response<h2::RecvStream>,
        method: &str,
        is_sent: bool,
    ) -> io::Result<Self> {
        let (parts, stream) = response.into_parts();
        let head = ResponseHead::of_version_2(&parts)?;
        let length = if stream.is_end_stream() {
            ResponseBody::Framed(BodyLength::None)
        } else {
            match head.body(method).map_err(unusable)? {
                ResponseBody::ToEnd => ResponseBody::Framed(BodyLength::Chunked),
                framed => framed,
            }
        };
        // A response without a body is over with its head. The stream is kept while the request is still being sent: dropping it would
        // reset the request.
        let is_over = is_sent && has_no_body(method, head.status);
        let body = if is_over { Incoming::Whole(None) } else { Incoming::Version2(stream) };
        Ok(Self { head, length, body })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::http::answer::{Answer, Extent};
    use crate::http::head::Version;
    use crate::http::interim::MOST_INTERIM;
    use crate::http::session;
    use crate::http::stream::AgentStream;

    /// The result of a response over HTTP/2 behind this many interim ones, and how many of those the agent was sent.
    async fn after(interims: usize, status: u16) -> (io::Result<u16>, usize) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let upstream = async move {
            let mut connection = h2::server::handshake(theirs).await.unwrap();
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            let head = |status: u16| http::Response::builder().status(status).body(()).unwrap();
            for _ in 0..interims {
                respond.send_informational(head(status)).unwrap();
            }
            // The stream is reset by now if an interim response was refused.
            let _ = respond.send_response(head(204), true);
            while connection.accept().await.is_some() {}
        };
        let agent = async move {
            let mut session = session::over(ours).await.unwrap();
            let request = http::Request::builder().uri("https://a.example/").body(()).unwrap();
            let (response, _) = session.send(request, BodyLength::None).unwrap();
            let (agent, mut seen) = tokio::net::UnixStream::pair().unwrap();
            let (_reader, mut writer) = AgentStream::Unix(agent).split();
            let mut answer = Answer::Version1 {
                writer: &mut writer,
                version: Version::Http11,
                keep_alive: true,
                extent: Extent::Whole,
            };
            let arrived = PendingResponse::Version2(response)
                .receive("GET", &Cell::new(true), InterimAnswers::passed_on(&mut answer, None))
                .await;
            let status = arrived.map(|arrived| arrived.head.status);
            drop((_reader, writer));
            let mut told = String::new();
            seen.read_to_string(&mut told).await.unwrap();
            (status, told.matches("HTTP/1.1 ").count())
        };
        tokio::select! {
            () = upstream => panic!("the upstream ended first"),
            seen = agent => seen,
        }
    }

    #[tokio::test]
    async fn of_answers_before_an_answer_so_many_are_passed_on_over_http_2_too() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                for few in [0, 1, MOST_INTERIM] {
                    let (status, told) = after(few, 103).await;
                    assert_eq!((status.unwrap(), told), (204, few));
                }
                let (status, told) = after(MOST_INTERIM + 1, 103).await;
                assert!(status.is_err() && told == MOST_INTERIM, "{status:?} {told}");
                // A stream of HTTP/2 cannot switch protocols.
                assert!(after(1, 101).await.0.is_err());
            })
            .await;
    }

    #[tokio::test]
    async fn an_answer_without_a_body_ends_with_its_head_whether_or_not_its_stream_does() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let upstream = async move {
            let mut connection = h2::server::handshake(theirs).await.unwrap();
            let mut open = Vec::new();
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let head = http::Response::builder().status(204).body(()).unwrap();
                open.push(respond.send_response(head, false).unwrap());
            }
        };
        let agent = async move {
            let mut session = session::over(ours).await.unwrap();
            let request = http::Request::builder().uri("https://a.example/").body(()).unwrap();
            let (response, _) = session.send(request, BodyLength::None).unwrap();
            let arrived = PendingResponse::Version2(response)
                .receive("GET", &Cell::new(true), InterimAnswers::dropped())
                .await;
            let arrived = arrived.unwrap();
            assert!(arrived.head.status == 204 && arrived.body.is_done());
        };
        let both = async {
            tokio::task::spawn_local(upstream);
            agent.await;
        };
        tokio::task::LocalSet::new().run_until(both).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_over_http_2_is_late_once_the_whole_request_was_sent_too() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let upstream = async move {
            let mut connection = h2::server::handshake(theirs).await.unwrap();
            let _unanswered = connection.accept().await.unwrap().unwrap();
            while connection.accept().await.is_some() {}
        };
        let agent = async move {
            let mut session = session::over(ours).await.unwrap();
            let request = http::Request::post("https://a.example/").body(()).unwrap();
            let (response, _body) = session.send(request, BodyLength::Chunked).unwrap();
            let (begun, is_sent) = (tokio::time::Instant::now(), Cell::new(false));
            let sends = async {
                tokio::time::sleep(2 * FIRST_OCTET).await;
                is_sent.set(true);
                std::future::pending().await
            };
            let received =
                PendingResponse::Version2(response).receive("POST", &is_sent, InterimAnswers::dropped());
            let ended = tokio::select! {
                biased;
                ended = sends => ended,
                ended = received => ended.map(|response| response.head.status),
            };
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!(begun.elapsed().as_secs(), 3 * FIRST_OCTET.as_secs());
        };
        let both = async {
            tokio::select! {
                () = upstream => panic!("the upstream ended first"),
                () = agent => {}
            }
        };
        tokio::task::LocalSet::new().run_until(both).await;
    }
}
