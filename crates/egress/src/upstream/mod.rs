//! Connects to upstreams: dials pinned addresses, verifies certificates, and keeps connections for the next request of the same run.

mod cascade;
mod dial;
mod inside;
mod outside;
mod pool;
mod route;
mod stream;
mod trust;

pub(crate) use dial::{Dialled, dial_platform};
pub use inside::{Companions, Entrance};
pub use outside::{Detour, Outside};
pub(crate) use pool::{Link, Pool};
pub(crate) use route::dial;
pub(crate) use stream::{Upstream, UpstreamReader, UpstreamWriter};
pub(crate) use trust::{Offer, Trust};
