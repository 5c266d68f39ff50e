//! The addresses handed out for names: one an IPv4 and one an IPv6 of ours, mapped back when they are dialled.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use policy::Hostname;

/// RFC 2544 benchmarking space, which no network routes: 198.18.0.0/15. The first address is left out.
const V4_BASE: u32 = 0xc612_0000;
/// A unique local prefix of ours (RFC 4193), `fd6c:6f63:6b67::/96`.
const V6_BASE: u128 = 0xfd6c_6f63_6b67_0000_0000_0000_0000_0000;
/// The sidecar's own address inside, which stands for no name: its ports are the explicit planes.
pub(crate) fn is_sidecar(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => u32::from(v4) == V4_BASE,
        IpAddr::V6(v6) => u128::from(v6) == V6_BASE,
    }
}

/// How many names are known at once; after that the oldest makes room.
const MOST: u32 = 65_536;
/// How many denied names are remembered, so that each is recorded once.
const MOST_DENIED: usize = 4096;

/// Whether a denied name is worth a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// It was not denied before.
    First,
    /// It is the first one too many to remember.
    TooMany,
    /// There is nothing new in it.
    Known,
}

/// The table of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Names {
    by_name: HashMap<Hostname, u32>,
    by_index: HashMap<u32, Hostname>,
    next: u32,
    denied: HashSet<String>,
}

impl Names {
    /// The addresses of an allowed name.
    pub(crate) fn addresses(&mut self, name: &Hostname) -> (Ipv4Addr, Ipv6Addr) {
        let index = match self.by_name.get(name) {
            Some(index) => *index,
            None => self.add(name),
        };
        (Ipv4Addr::from(V4_BASE + index), Ipv6Addr::from(V6_BASE + u128::from(index)))
    }

    fn add(&mut self, name: &Hostname) -> u32 {
        let index = 1 + self.next % MOST;
        self.next = self.next.wrapping_add(1);
        if let Some(old) = self.by_index.insert(index, name.clone()) {
            self.by_name.remove(&old);
        }
        self.by_name.insert(name.clone(), index);
        index
    }

    /// The name that an address was handed out for; `None` if it never was.
    pub(crate) fn name_of(&self, address: IpAddr) -> Option<&Hostname> {
        let index = match address {
            IpAddr::V4(v4) => u32::from(v4).checked_sub(V4_BASE)?,
            IpAddr::V6(v6) => u32::try_from(u128::from(v6).checked_sub(V6_BASE)?).ok()?,
        };
        self.by_index.get(&index)
    }

    /// Remembers a denied name, and says whether that is news.
    pub(crate) fn denied(&mut self, name: &str) -> News {
        if self.denied.contains(name) || self.denied.len() > MOST_DENIED {
            return News::Known;
        }
        self.denied.insert(name.to_owned());
        if self.denied.len() > MOST_DENIED { News::TooMany } else { News::First }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_map_back_to_their_names() {
        let mut names = Names::default();
        let a = Hostname::parse("a.example.com").unwrap();
        let b = Hostname::parse("b.example.com").unwrap();
        let (a4, a6) = names.addresses(&a);
        let (b4, _) = names.addresses(&b);
        assert_eq!(names.addresses(&a), (a4, a6));
        assert_ne!(a4, b4);
        assert_eq!(names.name_of(a4.into()), Some(&a));
        assert_eq!(names.name_of(a6.into()), Some(&a));
        for other in
            ["198.18.0.0", "198.20.0.1", "93.184.216.34", "127.0.0.1", "::1", "fd6c:6f63:6b67::ffff:1"]
        {
            assert_eq!(names.name_of(other.parse().unwrap()), None, "{other}");
        }
    }

    #[test]
    fn the_table_is_bounded_and_never_maps_to_a_name_it_forgot() {
        let mut names = Names::default();
        let first = Hostname::parse("n0.example.com").unwrap();
        let (address, _) = names.addresses(&first);
        for n in 1..=MOST {
            names.addresses(&Hostname::parse(&format!("n{n}.example.com")).unwrap());
        }
        assert_eq!(names.by_index.len(), MOST as usize);
        assert_eq!(names.by_name.len(), MOST as usize);
        assert_ne!(names.name_of(address.into()), Some(&first));
    }
}
