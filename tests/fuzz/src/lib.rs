//! Runs a real sidecar for the targets whose parsers are behind a socket, and an upstream that reads strictly.
//!
//! Everything happens on loopback addresses of this process's own. Nothing here may repair what it reads: the reader judges what
//! the sidecar sends.

mod agent;
mod authority;
mod frames;
mod opened;
mod platform;
mod registry;
mod sidecar;
mod socket;
mod strict;
mod upstream;

pub use agent::{assert_clean, contains, converse, converse_locally, dns_socket};
pub use frames::{frames_of, well_framed};
pub use opened::{Answers, Opened};
pub use platform::Platform;
pub use registry::{Asked, Registry};
pub use sidecar::{DNS_NAME, HOST, PORT, start, start_gateway};
pub use socket::Socket;
pub use strict::{Reading, chunked_data, end_of_chunked, end_of_request};
pub use upstream::{NO_CONTENT, answer_requests, answer_with, echo};
