//! A connection that was opened for requests, until the first has come. Each request has a record of its own. If none comes, the
//! connection has one, or what was tried with it would be nowhere.

use std::io;
use std::rc::Rc;

use crate::exchange::{Asked, Exchange, Granted, Pinned};
use crate::gate::Gate;
use crate::tls;

/// What helps where another protocol is spoken in TLS that is terminated.
pub(crate) const ONLY_HTTP: &str = "in TLS that is opened only HTTP is understood: for another protocol allow a whole host, by a name that no credential is bound to";
/// Why a connection has failed that had no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRequest {
    /// It was in the clear.
    NoHead,
    /// Its TLS was terminated, as with those that browsers open ahead. The HTTP/2 library may have refused some that were asked.
    NoneTaken,
    /// Its TLS was terminated, and the program inside ended it by an alert or a reset: it may have looked at the certificate late.
    BrokenOff,
    /// The same by an alert that says so.
    Distrusted,
    /// The sidecar itself has ended. A head that comes once it ends is not taken.
    Cut,
}

impl NoRequest {
    /// What the record says of it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::NoHead => "the connection ended before the head of a request was whole",
            Self::NoneTaken => "the connection ended without a request",
            Self::BrokenOff => {
                "the program inside broke off the connection without a request, it may not trust the run's authority"
            }
            Self::Distrusted => {
                "the program inside broke off TLS without a request, it does not trust the run's authority"
            }
            Self::Cut => "the sidecar ended before a request was taken on the connection",
        }
    }
}

/// The exchange of a connection that awaits its first request. It is recorded when it is dropped without one.
pub(crate) struct Opened(Option<Box<Unasked>>);

enum Unasked {
    /// The policy has not been asked: it is about each request.
    Asked(Rc<Gate>, Exchange<Asked>),
    /// The policy has granted it, and why it has failed without a request.
    Granted(Rc<Gate>, Exchange<Granted>, NoRequest),
    /// Its upstream was reached, which its record tells.
    Reached(Exchange<Pinned>),
}

impl Opened {
    /// A connection to the sidecar itself, which has no record.
    pub(crate) fn unrecorded() -> Self {
        Self(None)
    }

    pub(crate) fn asked(gate: &Rc<Gate>, exchange: Exchange<Asked>) -> Self {
        Self::new(Unasked::Asked(Rc::clone(gate), exchange.rest()))
    }

    pub(crate) fn granted(gate: &Rc<Gate>, exchange: Exchange<Granted>, why: NoRequest) -> Self {
        Self::new(Unasked::Granted(Rc::clone(gate), exchange.rest(), why))
    }

    pub(crate) fn reached(exchange: Exchange<Pinned>) -> Self {
        Self::new(Unasked::Reached(exchange.rest()))
    }

    /// Notes that the connection failed. If the program inside has broken off TLS, it may not trust the run's authority.
    pub(crate) fn broke_off(&mut self, error: &io::Error) {
        if let Some(Unasked::Granted(_, _, why)) = self.0.as_deref_mut()
            && *why == NoRequest::NoneTaken
            && tls::is_broken_off(error)
        {
            *why = if tls::is_distrust(error) { NoRequest::Distrusted } else { NoRequest::BrokenOff };
        }
    }

    fn new(unasked: Unasked) -> Self {
        Self(Some(Box::new(unasked)))
    }

    /// Notes that a request is taken, or octets in the place of one, which are recorded as such.
    pub(crate) fn has_request(&mut self) {
        match self.0.take().map(|unasked| *unasked) {
            Some(Unasked::Asked(_, exchange)) => exchange.into_requests(),
            Some(Unasked::Granted(_, exchange, _)) => exchange.into_requests(),
            Some(Unasked::Reached(exchange)) => exchange.into_requests(),
            None => {}
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let (gate, granted, why) = match self.0.take().map(|unasked| *unasked) {
            Some(Unasked::Asked(gate, exchange)) => {
                // A denial is recorded by then.
                let Ok(granted) = exchange.authorize(&gate) else { return };
                (gate, granted, NoRequest::NoHead)
            }
            Some(Unasked::Granted(gate, exchange, why)) => (gate, exchange, why),
            Some(Unasked::Reached(_)) | None => return,
        };
        let why = if gate.ending().has_begun() { NoRequest::Cut } else { why };
        match why {
            NoRequest::Distrusted => granted.fail_distrusted(why.text()),
            _ => granted.fail(why.text()),
        }
    }
}

#[cfg(test)]
mod tests {
    use policy::{Host, Plane, Port, View};

    use super::*;
    use crate::fixture::{gate_for, records_in};

    #[test]
    fn only_a_connection_that_was_broken_off_may_be_distrusted() {
        let alert = |name| io::Error::other(format!("received fatal alert: {name}"));
        for (error, wanted) in [
            (None, NoRequest::NoneTaken),
            (Some(io::ErrorKind::UnexpectedEof.into()), NoRequest::NoneTaken),
            (Some(io::ErrorKind::TimedOut.into()), NoRequest::NoneTaken),
            (Some(io::ErrorKind::ConnectionReset.into()), NoRequest::BrokenOff),
            (Some(alert("UserCanceled")), NoRequest::BrokenOff),
            (Some(alert("UnknownCA")), NoRequest::Distrusted),
        ] {
            let mut audit = tempfile::tempfile().unwrap();
            let rule = "[egress]\nallow = [{ host = \"a.example\" }]\n";
            let gate = gate_for(rule, Vec::new(), Some(audit.try_clone().unwrap()));
            let (name, port) = (Host::parse("a.example").unwrap(), Port::new(443).unwrap());
            let asked = policy::Asked::connection(Plane::Forward, name, port, View::Tls);
            let exchange = Exchange::begin(&gate, "CONNECT", "a.example:443".into(), asked);
            let granted = exchange.authorize(&gate).unwrap();
            let mut opened = Opened::granted(&gate, granted, NoRequest::NoneTaken);
            error.iter().for_each(|error| opened.broke_off(error));
            drop(opened);
            gate.close().unwrap();
            let records = records_in(&mut audit);
            assert!(records.contains(&format!("\"{}\"", wanted.text())), "{error:?}: {records}");
        }
    }

    #[test]
    fn a_connection_without_a_request_is_recorded_as_what_it_is() {
        const RULE: &str = "[egress]\nallow = [{ url = \"http://a.example/*\" }]\n";
        for (host, asks, ends, wanted) in [
            ("b.example", false, false, Some("host_not_allowed")),
            ("a.example", false, false, Some(NoRequest::NoHead.text())),
            ("a.example", false, true, Some(NoRequest::Cut.text())),
            ("a.example", true, false, None),
            ("b.example", true, false, None),
        ] {
            let mut audit = tempfile::tempfile().unwrap();
            let gate = gate_for(RULE, Vec::new(), Some(audit.try_clone().unwrap()));
            let (name, port) = (Host::parse(host).unwrap(), Port::new(80).unwrap());
            let asked = policy::Asked::connection(Plane::Transparent, name, port, View::Opaque);
            let exchange = Exchange::begin(&gate, "TCP", format!("{host}:80"), asked);
            let mut opened = Opened::asked(&gate, exchange);
            // It holds up no end.
            let ended =
                async { tokio::time::timeout(std::time::Duration::ZERO, gate.ending().drain()).await };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            assert!(!ends || runtime.block_on(ended).is_ok());
            if asks {
                opened.has_request();
            }
            drop(opened);
            gate.close().unwrap();
            let records = records_in(&mut audit);
            let record = records.lines().find(|line| line.contains("\"TCP\""));
            assert_eq!(record.is_some(), wanted.is_some(), "{records}");
            assert!(record.is_none_or(|it| it.contains(wanted.unwrap())), "{records}");
        }
    }
}
