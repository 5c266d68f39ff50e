//! The `redirect` wiring: inside, every address is local, all TCP is led to one port, and the sockets behind it are
//! served from outside. There is no link to the host's network, so if every rule were lost there would still be no
//! way out.

use std::io;

use sys::network::{self, Messages};
use sys::nftables;

use crate::plan::inside::TRANSPARENT_PORT;

/// What wires a network namespace, on a kernel that has all we know to ask for.
pub(super) fn messages() -> [Messages; 2] {
    [network::every_address_local(), nftables::all_to(TRANSPARENT_PORT)]
}

/// Wires this network namespace: nothing is listened to behind it yet, and nobody is there who could connect.
pub(super) fn wire() -> io::Result<()> {
    network::every_address_local().send()?;
    nftables::lead_all_to(TRANSPARENT_PORT)
}
