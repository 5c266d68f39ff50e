//! A real sidecar for the targets whose parsers lie behind a socket, and an upstream that reads strictly.
//!
//! Everything happens on loopback addresses of this process's own. Nothing here may repair what it reads: the reader
//! is the judge of what the sidecar sends.

mod sidecar;
mod strict;
mod upstream;

pub use sidecar::{DNS_NAME, HOST, PORT, converse, dns_socket, start};
pub use strict::{Reading, end_of_chunked, end_of_request};
pub use upstream::{answer_requests, answer_with};
