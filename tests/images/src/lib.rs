//! The counterparts for tests of `lockgate image pull`: Debian's own registry, a relay before it that watches and spoils, and a server that
//! lies.
//!
//! Tests use the product as a person would: by its command line, with a store of the test's own. Nothing here leaves this machine.

mod certificate;
mod hostile;
mod image;
mod layer;
mod message;
mod needs;
mod proxy;
mod registry;
mod relay;
mod store;

pub use certificate::Certificate;
pub use hostile::{Hostile, Reply};
pub use image::{Image, index};
pub use layer::{Blob, Layer, Packed, digest};
pub use message::Head;
pub use needs::{Needs, account, busybox, ready};
pub use proxy::ForwardProxy;
pub use registry::{PASSWORD, Protection, Registry, USER};
pub use relay::{Deed, Relay};
pub use store::{Bench, refused, told};
