//! The `redirect` wiring: inside, every address is local, all TCP is redirected to one port, and its listener is served from outside. There
//! is no link to the host's network, so there would be no way out even without the rules.

use std::io;

use policy::agreed::TRANSPARENT_PORT;
use sys::network::{self, Messages};
use sys::nftables;

/// Returns the messages that wire a network namespace, on a kernel with all the features in use.
pub(super) fn messages() -> [Messages; 3] {
    let [links, of_ipv6] = network::every_address_local();
    [links, of_ipv6, nftables::all_to(TRANSPARENT_PORT)]
}

/// Wires this network namespace. Nothing listens yet, and there is no process that could connect.
pub(super) fn wire() -> io::Result<()> {
    network::every_address_local().iter().try_for_each(Messages::send)?;
    nftables::lead_all_to(TRANSPARENT_PORT)
}
