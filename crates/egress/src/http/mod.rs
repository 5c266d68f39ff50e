//! HTTP/1 on its way through: heads that are read strictly, bodies that are framed beyond doubt, and the relay.

mod body;
mod forward;
mod head;
mod problem;
mod proxy;
mod response;

pub(crate) use head::Buffered;
pub use head::{BodyLength, HeadError, RequestHead, parse_request_head};
pub(crate) use problem::failed;
pub(crate) use proxy::{Via, serve_forward, serve_requests};
