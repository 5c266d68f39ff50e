//! The addresses of a link: a block of four out of a range of ours, of which the host's end has one and the sandbox's another.
//!
//! The range is 240.76.0.0/16, of the class that was kept for later and never given out (RFC 1112): no network routes it, the
//! address guard of every sidecar refuses it, and Linux takes it like any other. It is apart from 198.18.0.0/15, where names and
//! the networks of engines are; 100.64.0.0/10 is not for us, as carriers number links with it and private networks drop what
//! claims to come from it.

use std::net::Ipv4Addr;

use policy::RunId;
use sys::link::Subnet;

/// 240.76.0.0/16, and how many blocks it has.
const RANGE: u32 = 0xf04c_0000;
const BLOCKS: u32 = 1 << 14;
const PREFIX: u8 = 30;
/// How many blocks a run tries: each is taken by another run, or routed elsewhere.
const MOST_TRIES: u32 = 256;

/// Four addresses: the network's own, the host's, the sandbox's, and the one for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block(u32);

impl Block {
    /// The blocks a run tries, in its own order, so that two runs hardly ever want the same.
    pub(super) fn candidates(run: &RunId) -> impl Iterator<Item = Self> + use<> {
        let hash =
            run.as_str().bytes().fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
        // The high bits are the better ones of this hash.
        let first = hash >> 16;
        (0..MOST_TRIES).map(move |n| Self(first.wrapping_add(n) % BLOCKS))
    }

    /// The block that an address of one is in.
    pub(super) fn holding(address: Ipv4Addr) -> Self {
        Self((u32::from(address).wrapping_sub(RANGE) >> 2) % BLOCKS)
    }

    fn first(self) -> u32 {
        RANGE + (self.0 << 2)
    }

    /// As the kernel is told of it.
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
            // All of them as close together as can be: they begin at the same block.
            let found = Block::candidates(&run(1)).find(|block| taken.insert(block.0));
            assert!(found.is_some(), "run {n} found none");
        }
    }
}
