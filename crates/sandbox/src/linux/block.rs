//! The addresses of a veth pair: a block of four from a range of ours, one for the host's end and one for the sandbox's.
//!
//! The range is 240.76.0.0/16, of the reserved class that was never assigned (RFC 1112): no network routes it, the address guard of every
//! sidecar refuses it, and Linux accepts it like any other. It is separate from 198.18.0.0/15, which has names and the networks of engines.
//! 100.64.0.0/10 is not usable: carriers number links with it, and private networks drop packets from it.

use std::net::Ipv4Addr;

use policy::RunId;
use sys::link::Subnet;

/// 240.76.0.0/16, and the number of its blocks.
const RANGE: u32 = 0xf04c_0000;
const BLOCKS: u32 = 1 << 14;
const PREFIX: u8 = 30;
/// The most blocks that a run tries. Another run may have taken one, or it may be routed elsewhere.
const MOST_TRIES: u32 = 256;

/// A block of four addresses: network, host, sandbox, and broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block(u32);

impl Block {
    /// The blocks that a run tries, in an order of its own, so that two runs hardly ever try the same.
    pub(super) fn candidates(run: &RunId) -> impl Iterator<Item = Self> + use<> {
        let hash =
            run.as_str().bytes().fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
        // The high bits of this hash are better distributed.
        let first = hash >> 16;
        (0..MOST_TRIES).map(move |n| Self(first.wrapping_add(n) % BLOCKS))
    }

    /// Returns the block that contains an address.
    pub(super) fn holding(address: Ipv4Addr) -> Self {
        Self((u32::from(address).wrapping_sub(RANGE) >> 2) % BLOCKS)
    }

    fn first(self) -> u32 {
        RANGE + (self.0 << 2)
    }

    /// The block as a subnet.
    pub(super) fn subnet(self) -> Subnet {
        Subnet { first: self.first().into(), length: PREFIX }
    }

    /// The address of the host's end.
    pub(super) fn host(self) -> Ipv4Addr {
        (self.first() + 1).into()
    }

    /// The address of the sandbox's end.
    pub(super) fn sandbox(self) -> Ipv4Addr {
        (self.first() + 2).into()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn run(n: u32) -> RunId {
        let mut bytes = [7; 12];
        bytes[..4].copy_from_slice(&n.wrapping_mul(0x9e37_79b9).to_le_bytes());
        RunId::from_random(bytes)
    }

    #[test]
    fn every_block_lies_in_the_range_and_apart_from_every_other() {
        let range = |address: Ipv4Addr| address.octets()[..2] == [240, 76];
        let mut seen = HashSet::new();
        for n in 0..BLOCKS {
            let block = Block(n);
            let subnet = block.subnet();
            assert_eq!(u32::from(subnet.first) % 4, 0);
            for (place, address) in [(1, block.host()), (2, block.sandbox())] {
                assert!(range(address), "{address}");
                assert_eq!(u32::from(address), u32::from(subnet.first) + place);
                assert_eq!(Block::holding(address), block);
                assert!(seen.insert(address), "{address} is in two blocks");
            }
        }
    }

    #[test]
    fn a_run_tries_each_of_its_blocks_once_and_two_runs_begin_apart() {
        let mut begins = HashSet::new();
        for n in 0..1000 {
            let tried: Vec<_> = Block::candidates(&run(n)).collect();
            let different: HashSet<_> = tried.iter().map(|block| block.0).collect();
            assert_eq!((tried.len(), different.len()), (MOST_TRIES as usize, MOST_TRIES as usize));
            begins.insert(tried[0].0);
        }
        assert!(begins.len() > 900, "only {} of 1000 runs begin at a block of their own", begins.len());
    }

    #[test]
    fn two_hundred_runs_that_each_take_the_first_free_block_find_one() {
        let mut taken = HashSet::new();
        for n in 0..200 {
            // The worst case: all of them begin at the same block.
            let found = Block::candidates(&run(1)).find(|block| taken.insert(block.0));
            assert!(found.is_some(), "run {n} found none");
        }
    }
}
