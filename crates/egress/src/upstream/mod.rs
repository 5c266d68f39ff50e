//! Connects to upstreams: dials pinned addresses, verifies certificates, and keeps connections for the next request of the same run.

mod cascade;
mod dial;
mod http_connect;
mod inside;
mod outside;
mod pool;
mod proxy_error;
mod proxy_login;
mod race;
mod route;
mod socks5;
mod stream;
mod trust;
mod verify;

pub(crate) use dial::{Dialled, dial_platform};
pub use inside::{Companions, Entrance};
pub use outside::{Detour, Outside};
pub(crate) use pool::{Link, Pool, Pulse, Purpose};
pub(crate) use route::{dial, open};
pub(crate) use stream::{Upstream, UpstreamReader, UpstreamWriter};
pub(crate) use trust::{Offer, Trust};
