//! Values of flags whose own errors are a programmer's words, and what is told of them instead.

use std::net::SocketAddr;
use std::time::Duration;

/// Parses where something listens. No name is resolved.
pub(super) fn place(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "write an address and a port, as 127.0.0.1:8081")
}

/// Parses a number of things.
pub(super) fn count<T: std::str::FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|_| "write a whole number, as 20")
}

/// Parses a duration; `0` is none.
pub(super) fn grace(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" => Ok(Duration::ZERO),
        text => {
            let span = text.parse::<::policy::Span>();
            span.map(::policy::Span::duration).map_err(|error| error.to_string())
        }
    }
}
