//! The HTTP proxy: parses heads strictly, frames bodies anew, and relays requests and responses.
//!
//! ```text
//! serve (1 or 2) ─► handle ─ target, policy, pin, inject ─► forward ─► send (1 or 2)
//!       ▲                                                      │
//!       └────────── answer ◄── respond, filter ◄───────────────┘
//! ```

mod abandoned;
mod answer;
mod awaited_heads;
mod backlog;
mod break_off;
mod chunk;
mod fields;
mod filter;
mod forward;
mod forwarding;
mod frames;
mod gateway;
mod grpc_status;
mod handle;
mod head;
mod http2_limits;
mod hung_up;
mod incoming;
mod interim;
mod json_lines;
mod listeners;
mod max_forwards;
mod media_type;
mod messages;
mod outgoing;
mod pooled;
mod problem;
mod progress;
mod pump;
mod refuse;
mod replay;
mod request;
mod reserved_memory;
mod respond;
mod response;
mod send;
mod serve1;
mod serve2;
mod session;
mod severable;
mod strangers;
mod stream;
mod time_limit;
mod unpack;
mod upgrade;
mod upstream_response;
mod version2;

pub(crate) use fields::{Fields, variable_octet};
pub(crate) use filter::Unsearchable;
pub(crate) use head::Buffered;
pub use head::{BodyLength, HeadError, RequestHead, parse_request_head};
pub(crate) use listeners::{serve_gateway_socket, serve_http};
pub(crate) use media_type::MediaType;
pub(crate) use outgoing::{write_last_within_limit, write_within_limit};
pub(crate) use problem::{After, TOO_SLOW, unreachable};
pub(crate) use request::Via;
pub(crate) use serve1::serve_opened;
pub(crate) use serve2::serve_streams;
pub(crate) use session::{OpenStream, RequestSender, begin as begin_version_2};
pub(crate) use severable::{Severable, severed};
pub use strangers::{PeerFilter, StrangePeer};
pub(crate) use stream::{AgentStream, Ahead};
