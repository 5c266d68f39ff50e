//! Finds an open connection for a request in the pool, and gives it back for the next one.

use std::io;
use std::time::Duration;

use policy::Scheme;

use super::head::BodyLength;
use super::hung_up::HungUp;
use super::session::{OpenStream, RequestSender};
use super::version2;
use crate::exchange::{Exchange, Ready};
use crate::gate::Gate;
use crate::upstream::{Link, Pulse};

/// Takes a connection of HTTP/1 to the destination of an exchange, which then has reached it. Also returns how long it was idle.
pub(super) fn take_connection(
    gate: &Gate,
    exchange: &mut Exchange<Ready>,
    scheme: Scheme,
) -> Option<(Link, Duration)> {
    let (peer, link, idle) = gate.pool().take(&exchange.purpose(scheme), exchange.destination().peers())?;
    exchange.reach(peer);
    Some((link, idle))
}

/// Keeps a connection of HTTP/1 whose last response was read to its end. One through a proxy has no peer, and is not kept.
pub(super) fn keep_connection(gate: &Gate, exchange: &Exchange<Ready>, scheme: Scheme, link: Link) {
    if let Some(peer) = exchange.reached() {
        gate.pool().keep(&exchange.purpose(scheme), peer, link);
    }
}

/// Returns a session of HTTP/2 to the destination of an exchange, for a request with such a body, which then has reached it. One that was quiet is asked first whether its
/// upstream is there, and forgotten if not: a request that cannot be repeated would be lost in it.
pub(super) async fn find_session(
    gate: &Gate,
    exchange: &mut Exchange<Ready>,
    scheme: Scheme,
    body: BodyLength,
) -> Option<RequestSender> {
    loop {
        let found = gate.pool().session(&exchange.purpose(scheme), exchange.destination().peers(), body);
        let (peer, session, pulse) = found?;
        if pulse == Pulse::Heard {
            exchange.reach(peer);
            return Some(session);
        }
        if !session.is_there().await {
            gate.pool().forget(&session.count_stream());
            return None;
        }
        gate.pool().answered_ping(&session.count_stream());
    }
}

/// Adds a new session of HTTP/2, unless it leads through a proxy.
pub(super) fn share_session(
    gate: &Gate,
    exchange: &Exchange<Ready>,
    scheme: Scheme,
    session: &RequestSender,
) {
    if let Some(peer) = exchange.reached() {
        gate.pool().share(&exchange.purpose(scheme), peer, session);
    }
}

/// Tells the pool what came of a request on a stream of HTTP/2; forgets a session that failed, or gave the request back.
pub(super) fn report_session(gate: &Gate, stream: &OpenStream, failure: Option<&io::Error>) {
    match failure {
        None => gate.pool().heard(stream),
        Some(error) => {
            let error = HungUp::inside(error);
            if version2::is_of_session(error) || version2::is_unprocessed(error) {
                gate.pool().forget(stream);
            }
        }
    }
}
