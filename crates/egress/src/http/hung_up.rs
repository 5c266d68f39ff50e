//! The error that says that an upstream was reached, and hung up. Before its answer it may have acted on the request.

use std::io;

use super::abandoned::Abandoned;
use super::version2;
use crate::cause::cause;

/// An upstream hung up.
#[derive(Debug, thiserror::Error)]
pub(super) enum HungUp {
    #[error("the upstream hung up before its answer, and may have acted on the request: {}", cause(.0))]
    BeforeAnswer(io::Error),
    #[error("the upstream gave the request back unread: {}", cause(.0))]
    Unread(io::Error),
    #[error("the upstream hung up in the middle of its answer: {}", cause(.0))]
    InAnswer(io::Error),
}

impl HungUp {
    /// Says so of an error after the request was sent, if it is an end or a reset of the upstream's.
    pub(super) fn told(error: io::Error) -> io::Error {
        match version2::is_unprocessed(&error) {
            true => Self::of(error, Self::Unread),
            false => Self::of(error, Self::BeforeAnswer),
        }
    }

    /// Says so of an error of reading an answer that has begun.
    pub(super) fn told_in_answer(error: io::Error) -> io::Error {
        Self::of(error, Self::InAnswer)
    }

    fn of(error: io::Error, hung_up: fn(io::Error) -> Self) -> io::Error {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        match error.kind() {
            kind @ (BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
                if !Abandoned::is(&error) =>
            {
                io::Error::new(kind, hung_up(error))
            }
            _ => error,
        }
    }

    /// Returns the error by which the upstream hung up, or else this one.
    pub(super) fn inside(error: &io::Error) -> &io::Error {
        match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(Self::BeforeAnswer(inside) | Self::Unread(inside) | Self::InAnswer(inside)) => inside,
            None => error,
        }
    }

    /// Whether the upstream gave the request back unread.
    pub(super) fn is_unread(error: &io::Error) -> bool {
        matches!(error.get_ref().and_then(|inner| inner.downcast_ref()), Some(Self::Unread(_)))
    }

    pub(super) fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_that_was_given_back_may_not_have_been_acted_on() {
        for (reason, is_unread) in [(h2::Reason::REFUSED_STREAM, true), (h2::Reason::INTERNAL_ERROR, false)] {
            let (ours, theirs) = tokio::io::duplex(4096);
            let upstream = async {
                let mut connection = h2::server::handshake(theirs).await.unwrap();
                let (_request, mut respond) = connection.accept().await.unwrap().unwrap();
                respond.send_reset(reason);
                connection.accept().await
            };
            let (mut requests, connection) = h2::client::handshake(ours).await.unwrap();
            let request = http::Request::get("https://a.example/").body(()).unwrap();
            let (response, _) = requests.send_request(request, true).unwrap();
            let reset = tokio::select! {
                reset = response => reset.unwrap_err(),
                _ = async { tokio::join!(upstream, connection) } => unreachable!("it was reset first"),
            };
            let told = HungUp::told(version2::broken(reset));
            assert_eq!(HungUp::is_unread(&told), is_unread, "{told}");
            assert_eq!(told.to_string().contains("may have acted"), !is_unread, "{told}");
        }
    }

    #[test]
    fn whoever_hung_up_is_told_and_what_happened_is_known_still() {
        let end = || io::Error::new(io::ErrorKind::UnexpectedEof, "peer closed: https://docs.rs/rustls/x");
        assert_eq!(
            cause(&HungUp::told_in_answer(end())),
            "the upstream hung up in the middle of its answer: peer closed"
        );
        for other in [Abandoned::because(&"it ended"), io::ErrorKind::TimedOut.into(), io::Error::other("x")]
        {
            let text = other.to_string();
            assert_eq!(HungUp::told_in_answer(other).to_string(), text);
        }
        // A stream that was reset leaves its session as it is.
        let reset = HungUp::told_in_answer(version2::broken(h2::Reason::INTERNAL_ERROR.into()));
        assert!(version2::is_of_session(&reset) && !version2::is_of_session(HungUp::inside(&reset)));
    }
}
