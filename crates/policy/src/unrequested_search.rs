//! The limit of the open mode: web searches that a run did not ask for. [`search`](crate::search) determines them.

use std::sync::Arc;

use crate::denial::{Denial, Guard};
use crate::hostname::Host;
use crate::pattern::HostPattern;

/// A host of a web search that a run did not ask for.
#[derive(Clone, Debug)]
pub(crate) struct UnrequestedSearch {
    pub(crate) provider: Arc<str>,
    pub(crate) host: HostPattern,
}

impl UnrequestedSearch {
    /// Returns the denial for a request to this host.
    pub(crate) fn denial(&self, host: &Host) -> Denial {
        let reason = format!("{host} searches the web, which a run asks for by name");
        Denial::new(Guard::HostNotAllowed, reason)
    }
}
