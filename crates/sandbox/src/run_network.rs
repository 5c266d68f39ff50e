//! The network of one run at an engine: a small one of its own, from a range no host has addresses in (RFC 2544), with
//! places for the agent, the sidecar, one for each name the agent asks for, and, where it is a companion's, for the sidecars
//! that reach it.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use policy::RunId;
use serde::{Deserialize, Serialize};
use sys::descriptor;

/// 198.18.0.0/15, in networks of 256.
const RANGE: u32 = 0xc612_0000;
/// How many there are for runs. Of the two behind them one is that of sidecars that wait, the other that of all sidecars.
pub(crate) const NETWORKS: u32 = 510;
const GATEWAY: u32 = 1;
const AGENT: u32 = 2;
const SIDECAR: u32 = 3;
/// The first place of a sidecar that visits: those before it are for names.
const VISITORS: u32 = 224;
const LAST: u32 = VISITORS - 1;
/// How many may visit: more than there are companions, and the command.
const MOST_VISITORS: u32 = 31;

/// A network of 256 addresses, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunNetwork(u16);

impl RunNetwork {
    /// The network of that number; numbers beyond the last begin again.
    pub(crate) fn numbered(number: u32) -> Self {
        Self((number % NETWORKS) as u16)
    }

    /// The network by which sidecars reach the outside. An engine refuses a second one of these addresses, where of the same
    /// name it makes several.
    pub(crate) fn of_sidecars() -> Self {
        Self(NETWORKS as u16 + 1)
    }

    /// The network of sidecars that wait for a run.
    pub(crate) fn of_pool() -> Self {
        Self(NETWORKS as u16)
    }

    fn at(self, place: u32) -> Ipv4Addr {
        Ipv4Addr::from(RANGE + (u32::from(self.0) << 8) + place)
    }

    /// This machine's own address there, where the engine gives it one.
    pub(crate) fn gateway(self) -> Ipv4Addr {
        self.at(GATEWAY)
    }

    /// Whether an address is one of its own.
    pub(crate) fn holds(self, address: Ipv4Addr) -> bool {
        u32::from(address) & !0xff == u32::from(self.at(0))
    }

    /// Whether somebody can be there: neither the network itself, nor this machine, nor all of them.
    pub(crate) fn has_place(self, address: Ipv4Addr) -> bool {
        self.holds(address) && ![self.at(0), self.gateway(), self.at(255)].contains(&address)
    }

    /// As an engine is told of it.
    pub(crate) fn subnet(self) -> String {
        format!("{}/24", self.at(0))
    }

    /// The agent's address.
    pub(crate) fn agent(self) -> Ipv4Addr {
        self.at(AGENT)
    }

    /// The address of the command, which on its own network a companion is.
    #[must_use]
    pub fn command(self) -> Ipv4Addr {
        self.agent()
    }

    /// The sidecar's address. Those after it are for names.
    #[must_use]
    pub fn sidecar(self) -> Ipv4Addr {
        self.at(SIDECAR)
    }

    /// The address of a sidecar that visits, by its index among them.
    fn visitor(self, index: u32) -> Ipv4Addr {
        self.at(VISITORS + index % MOST_VISITORS)
    }

    /// As it is told on a line.
    pub(crate) fn number(self) -> u16 {
        self.0
    }

    /// How many names can have an address.
    #[must_use]
    pub fn names(self) -> u32 {
        LAST - SIDECAR
    }

    /// The blocks that hold the sidecar's further addresses: those of names, and the one that engines before version 25 tell
    /// the agent to send everything else to. Each is a first address and a prefix length.
    pub(crate) fn blocks(self) -> impl Iterator<Item = (Ipv4Addr, u8)> {
        let names = (26..=30).rev().map(move |length| (self.at(1 << (32 - length)), length));
        // The rest up to the places of those that visit.
        let rest = [(self.at(128), 26), (self.at(192), 27)];
        std::iter::once((self.at(GATEWAY), 32)).chain(names).chain(rest)
    }
}

/// The network of a companion's, as a sidecar that is to reach it sees it.
#[derive(Clone, Debug)]
pub struct Visit {
    /// Whose it is: a companion has a name of its own there.
    pub run: RunId,
    /// Its addresses.
    pub network: RunNetwork,
    /// Which of its visitors this one is.
    pub index: u32,
}

impl Visit {
    /// The address of the one who visits.
    pub(crate) fn address(&self) -> Ipv4Addr {
        self.network.visitor(self.index)
    }
}

/// The shim's side: hands over the line to a sidecar, and tells the network it is to serve.
pub(crate) fn send_line(socket: BorrowedFd<'_>, line: &OwnedFd, network: RunNetwork) -> io::Result<()> {
    descriptor::send(socket, &network.0.to_le_bytes(), &[line.as_fd()])
}

/// The sidecar's side: waits for the line to the container that serves in its place; `None` when there will be none.
///
/// # Errors
/// Whatever `recvmsg(2)` gives.
pub fn receive_line(socket: BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, RunNetwork)>> {
    let mut buffer = [0; 16];
    let (message, mut fds) = descriptor::receive(socket, &mut buffer)?;
    let number = message.try_into().ok().map(u16::from_le_bytes);
    Ok(fds.pop().zip(number.map(|number| RunNetwork::numbered(number.into()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_blocks_are_the_names_and_neither_the_agent_nor_the_sidecar() {
        let network = RunNetwork::numbered(NETWORKS + 7);
        assert_eq!(network.subnet(), "198.18.7.0/24");
        assert_eq!(RunNetwork::of_sidecars().subnet(), "198.19.255.0/24");
        assert_eq!(RunNetwork::of_pool().subnet(), "198.19.254.0/24");
        let inside = |address: Ipv4Addr| {
            network.blocks().any(|(first, length)| {
                u32::from(address) >> (32 - length) == u32::from(first) >> (32 - length)
            })
        };
        let last = Ipv4Addr::from(u32::from(network.sidecar()) + network.names());
        assert_eq!(last, Ipv4Addr::new(198, 18, 7, 223));
        assert!(inside(Ipv4Addr::new(198, 18, 7, 4)) && inside(last));
        assert!(inside(network.at(GATEWAY)));
        assert!((4..=223).all(|place| inside(network.at(place))));
        for place in [network.at(0), network.agent(), network.sidecar()] {
            assert!(!inside(place), "{place}");
        }
        for index in [0, 1, 16, MOST_VISITORS - 1, MOST_VISITORS, u32::MAX] {
            let place = network.visitor(index);
            assert!(!inside(place) && place.octets()[3] >= 224 && place.octets()[3] < 255, "{place}");
        }
    }
}
