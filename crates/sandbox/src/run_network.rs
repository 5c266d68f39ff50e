//! The network of one run at an engine: a block of 256 addresses from a range that no host uses (RFC 2544). It has addresses for the agent,
//! the sidecar, each name that the agent asks for, and, on a companion's network, the sidecars that reach it.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use policy::RunId;
use serde::{Deserialize, Serialize};
use sys::descriptor;

use crate::plan::engine::EngineKind;

/// 198.18.0.0/15, in networks of 256.
const RANGE: u32 = 0xc612_0000;
/// The number of networks for runs. After them come those that runs share.
pub(crate) const NETWORKS: u32 = 500;
/// How many networks there are to choose from for each that runs share, and how far apart they are.
const CHOICES: u16 = 3;
const APART: u16 = 4;
const GATEWAY: u32 = 1;
const AGENT: u32 = 2;
const SIDECAR: u32 = 3;
/// The first address of visiting sidecars. Those before it are for names.
const VISITORS: u32 = 224;
const LAST: u32 = VISITORS - 1;
/// The most visiting sidecars: more than the command and all companions.
const MOST_VISITORS: u32 = 31;

/// A network of 256 addresses, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunNetwork(u16);

impl RunNetwork {
    /// Returns the network of a number. Numbers wrap around after the last.
    pub(crate) fn numbered(number: u32) -> Self {
        Self((number % NETWORKS) as u16)
    }

    /// What the network by which sidecars reach the outside may be, best first. No choice is for both engines: Docker would take addresses
    /// that Podman's has on the same machine, whose route then leads to one of the two. An engine makes several networks of one name, but
    /// refuses a second one with the same addresses: so all runs try them in this order.
    pub(crate) fn of_sidecars(kind: EngineKind) -> impl Iterator<Item = Self> {
        Self::choices(match kind {
            EngineKind::Docker => 511,
            EngineKind::Podman => 509,
        })
    }

    /// What the network of sidecars that wait for a run (the pool) may be, likewise.
    pub(crate) fn of_pool(kind: EngineKind) -> impl Iterator<Item = Self> {
        Self::choices(match kind {
            EngineKind::Docker => 510,
            EngineKind::Podman => 508,
        })
    }

    fn choices(best: u16) -> impl Iterator<Item = Self> {
        (0..CHOICES).map(move |choice| Self(best - choice * APART))
    }

    /// Every network by which sidecars may reach the outside.
    pub(crate) fn all_of_sidecars() -> impl Iterator<Item = Self> {
        Self::of_sidecars(EngineKind::Docker).chain(Self::of_sidecars(EngineKind::Podman))
    }

    fn at(self, place: u32) -> Ipv4Addr {
        Ipv4Addr::from(RANGE + (u32::from(self.0) << 8) + place)
    }

    /// This machine's address on it, if the engine assigns one.
    pub(crate) fn gateway(self) -> Ipv4Addr {
        self.at(GATEWAY)
    }

    /// Whether an address belongs to the network.
    pub(crate) fn holds(self, address: Ipv4Addr) -> bool {
        u32::from(address) & !0xff == u32::from(self.at(0))
    }

    /// Whether an address can be a container's: neither the network's, nor this machine's, nor the broadcast address.
    pub(crate) fn has_place(self, address: Ipv4Addr) -> bool {
        self.holds(address) && ![self.at(0), self.gateway(), self.at(255)].contains(&address)
    }

    /// Whether a subnet, as an engine tells it, has addresses of the network: one of the two is then within the other.
    pub(crate) fn overlaps(self, subnet: &str) -> bool {
        let Some((first, length)) = subnet.split_once('/') else { return false };
        let (Ok(first), Ok(length)) = (first.parse::<Ipv4Addr>(), length.parse::<u32>()) else {
            return false;
        };
        let block = |address| u32::from(address).checked_shr(32 - length.min(24));
        block(first) == block(self.at(0))
    }

    /// The subnet, as an engine expects it.
    pub(crate) fn subnet(self) -> String {
        format!("{}/24", self.at(0))
    }

    /// The agent's address.
    pub(crate) fn agent(self) -> Ipv4Addr {
        self.at(AGENT)
    }

    /// The address of the agent's container. On a companion's network that is the companion.
    #[must_use]
    pub fn command(self) -> Ipv4Addr {
        self.agent()
    }

    /// The sidecar's address. Those after it are for names.
    #[must_use]
    pub fn sidecar(self) -> Ipv4Addr {
        self.at(SIDECAR)
    }

    /// The address of the visiting sidecar of this index.
    fn visitor(self, index: u32) -> Ipv4Addr {
        self.at(VISITORS + index % MOST_VISITORS)
    }

    /// The number, as a line carries it.
    pub(crate) fn number(self) -> u16 {
        self.0
    }

    /// The number of names that can have an address.
    #[must_use]
    pub fn names(self) -> u32 {
        LAST - SIDECAR
    }

    /// The blocks of the sidecar's further addresses: those of names, and the one that engines before version 25 make the agent's default
    /// gateway. Each is a first address and a prefix length.
    pub(crate) fn blocks(self) -> impl Iterator<Item = (Ipv4Addr, u8)> {
        let names = (26..=30).rev().map(move |length| (self.at(1 << (32 - length)), length));
        // The rest, up to the addresses of visiting sidecars.
        let rest = [(self.at(128), 26), (self.at(192), 27)];
        std::iter::once((self.at(GATEWAY), 32)).chain(names).chain(rest)
    }
}

/// A companion's network, as seen by a sidecar that visits it.
#[derive(Clone, Debug)]
pub struct Visit {
    /// The companion's run id.
    pub run: RunId,
    /// The network.
    pub network: RunNetwork,
    /// The index of this visitor.
    pub index: u32,
}

impl Visit {
    /// The visitor's address.
    pub(crate) fn address(&self) -> Ipv4Addr {
        self.network.visitor(self.index)
    }
}

/// The shim's side: hands the line to a sidecar's stand-in, with the network that the sidecar is to serve.
pub(crate) fn send_line(socket: BorrowedFd<'_>, line: &OwnedFd, network: RunNetwork) -> io::Result<()> {
    descriptor::send(socket, &network.0.to_le_bytes(), &[line.as_fd()])
}

/// The stand-in's side: waits for the line to the sidecar's container. Returns `None` if there will be none.
///
/// # Errors
/// When `recvmsg(2)` fails.
pub fn receive_line(socket: BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, RunNetwork)>> {
    let mut buffer = [0; 16];
    let (message, mut fds) = descriptor::receive(socket, &mut buffer)?;
    let number = message.try_into().ok().map(u16::from_le_bytes);
    Ok(fds.pop().zip(number.map(|number| RunNetwork::numbered(number.into()))))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_network_that_runs_share_is_never_another_engines_or_a_runs() {
        let kinds = [EngineKind::Docker, EngineKind::Podman];
        let all: Vec<_> = kinds
            .into_iter()
            .flat_map(|kind| RunNetwork::of_sidecars(kind).chain(RunNetwork::of_pool(kind)))
            .map(RunNetwork::number)
            .collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 12, "{all:?}");
        assert!(all.iter().all(|number| (NETWORKS as u16..512).contains(number)), "{all:?}");
        let of_docker: Vec<_> = RunNetwork::of_sidecars(EngineKind::Docker).map(RunNetwork::subnet).collect();
        assert_eq!(of_docker, ["198.19.255.0/24", "198.19.251.0/24", "198.19.247.0/24"]);
        assert_eq!(RunNetwork::of_sidecars(EngineKind::Podman).next().unwrap().subnet(), "198.19.253.0/24");
    }

    #[test]
    fn a_subnet_within_a_network_or_around_it_overlaps() {
        let network = RunNetwork::numbered(7);
        for subnet in ["198.18.7.0/24", "198.18.7.128/25", "198.18.7.9/32", "198.18.0.0/16", "0.0.0.0/0"] {
            assert!(network.overlaps(subnet), "{subnet}");
        }
        for subnet in ["198.18.8.0/24", "198.18.8.0/22", "10.0.0.0/8", "fd00::/64", "198.18.7.0", ""] {
            assert!(!network.overlaps(subnet), "{subnet}");
        }
    }

    #[test]
    fn the_blocks_are_the_names_and_neither_the_agent_nor_the_sidecar() {
        let network = RunNetwork::numbered(NETWORKS + 7);
        assert_eq!(network.subnet(), "198.18.7.0/24");
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
