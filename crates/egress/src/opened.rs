//! A connection that was opened for requests, until the first has come. Each request has a record of its own. If none comes, the
//! connection has one, or what was tried with it would be nowhere.

use std::rc::Rc;

use crate::exchange::{Asked, Exchange, Granted, Pinned};
use crate::gate::Gate;

/// Why a connection in the clear failed that had no request.
pub(crate) const NO_HEAD: &str = "the connection ended before the head of a request was whole";
/// Why a connection failed whose TLS was terminated and that had no request. The HTTP/2 library may have refused some that were asked.
pub(crate) const NONE_TAKEN: &str =
    "no request was taken on the connection; the program may not trust the run's authority";
/// Why one failed that the sidecar itself has ended. A head that comes once it ends is not taken.
const CUT: &str = "the sidecar ended before a request was taken on the connection";

/// The exchange of a connection that awaits its first request. It is recorded when it is dropped without one.
pub(crate) struct Opened(Option<Box<Unasked>>);

enum Unasked {
    /// The policy has not been asked: it is about each request.
    Asked(Rc<Gate>, Exchange<Asked>),
    /// The policy has granted it, and why it has failed without a request.
    Granted(Rc<Gate>, Exchange<Granted>, &'static str),
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

    pub(crate) fn granted(gate: &Rc<Gate>, exchange: Exchange<Granted>, why: &'static str) -> Self {
        Self::new(Unasked::Granted(Rc::clone(gate), exchange.rest(), why))
    }

    pub(crate) fn reached(exchange: Exchange<Pinned>) -> Self {
        Self::new(Unasked::Reached(exchange.rest()))
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
                (gate, granted, NO_HEAD)
            }
            Some(Unasked::Granted(gate, exchange, why)) => (gate, exchange, why),
            Some(Unasked::Reached(_)) | None => return,
        };
        granted.fail(if gate.ending().has_begun() { CUT } else { why });
    }
}

#[cfg(test)]
mod tests {
    use policy::{Host, Plane, Port, View};

    use super::*;
    use crate::fixture::{gate_for, records_in};

    #[test]
    fn a_connection_without_a_request_is_recorded_as_what_it_is() {
        const RULE: &str = "[egress]\nallow = [{ url = \"http://a.example/*\" }]\n";
        for (host, asks, ends, wanted) in [
            ("b.example", false, false, Some("host_not_allowed")),
            ("a.example", false, false, Some(NO_HEAD)),
            ("a.example", false, true, Some(CUT)),
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
