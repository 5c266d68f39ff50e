//! Tells an agent of HTTP/2 that its answer broke off. To drop the stream would say CANCEL, by which the agent itself gives up: libraries
//! of gRPC do not try again for that.

use std::io;

use bytes::Bytes;

use super::abandoned::Abandoned;
use super::grpc_status::{self, MessageBorder};
use super::hung_up::HungUp;
use super::incoming::has_stood_still;
use super::outgoing::Outgoing;
use super::stream::AgentWriter;
use super::version2;
use crate::cause::cause;

/// Tells an agent that its answer broke off by an error: by the upstream's own reason, or by a status of gRPC where all messages that it
/// has are whole, or by INTERNAL_ERROR. Says nothing to an agent that gave the request up.
pub(super) async fn break_off(
    out: &mut Outgoing<'_, AgentWriter>,
    border: Option<MessageBorder>,
    error: &io::Error,
) {
    if Abandoned::is(error) {
        return;
    }
    let reset = version2::reset_by_upstream(HungUp::inside(error));
    let is_upstreams = HungUp::is(error) || has_stood_still(error);
    if reset.is_none() && is_upstreams && border.is_some_and(|border| border.is_reached()) {
        let status = grpc_status::unavailable(&cause(error));
        if out.finish_answer(Bytes::new(), status).await.is_ok() {
            return;
        }
    }
    out.reset(reset.unwrap_or(h2::Reason::INTERNAL_ERROR));
}
