//! The addresses handed out for names: one an IPv4 and one an IPv6 of ours, mapped back when they are dialled.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use policy::Hostname;

/// RFC 2544 benchmarking space, which no network routes: 198.18.0.0/15.
const V4_BASE: u32 = 0xc612_0000;
/// A unique local prefix of ours (RFC 4193), `fd6c:6f63:6b67::/96`.
const V6_BASE: u128 = 0xfd6c_6f63_6b67_0000_0000_0000_0000_0000;

/// The addresses that stand for names, of which the first is the sidecar's own: its ports are the explicit planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameRange {
    first: u32,
    /// How many names there is room for.
    names: u32,
    /// Whether there is an address of IPv6 for each as well.
    both: bool,
}

impl NameRange {
    /// The usual addresses of IPv4 alone: over a link, which knows no other family.
    #[must_use]
    pub fn of_ipv4() -> Self {
        Self::after(V4_BASE.into(), MOST)
    }

    /// A range of IPv4 alone: the sidecar's address, and as many for names after it.
    #[must_use]
    pub fn after(sidecar: Ipv4Addr, names: u32) -> Self {
        Self { first: sidecar.into(), names: names.max(1), both: false }
    }
}

impl Default for NameRange {
    /// Where every address is local, and so any of them can be the sidecar's.
    fn default() -> Self {
        Self { first: V4_BASE, names: MOST, both: true }
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
    range: NameRange,
    by_name: HashMap<Hostname, u32>,
    by_index: HashMap<u32, Hostname>,
    next: u32,
    denied: HashSet<String>,
}

impl Names {
    pub(crate) fn new(range: NameRange) -> Self {
        Self { range, ..Self::default() }
    }

    /// Whether an address is the sidecar's own.
    pub(crate) fn is_sidecar(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => u32::from(v4) == self.range.first,
            IpAddr::V6(v6) => self.range.both && u128::from(v6) == V6_BASE,
        }
    }

    /// The addresses of a name that means the sandbox itself.
    pub(crate) fn own(&self, name: &Hostname) -> Option<(Ipv4Addr, Option<Ipv6Addr>)> {
        match name.as_str() {
            "sidecar" => Some((self.range.first.into(), None)),
            "localhost" => Some((Ipv4Addr::LOCALHOST, Some(Ipv6Addr::LOCALHOST))),
            _ => None,
        }
    }

    /// The addresses of an allowed name.
    pub(crate) fn addresses(&mut self, name: &Hostname) -> (Ipv4Addr, Option<Ipv6Addr>) {
        let index = match self.by_name.get(name) {
            Some(index) => *index,
            None => self.add(name),
        };
        let v6 = self.range.both.then(|| Ipv6Addr::from(V6_BASE + u128::from(index)));
        (Ipv4Addr::from(self.range.first + index), v6)
    }

    fn add(&mut self, name: &Hostname) -> u32 {
        let index = 1 + self.next % self.range.names;
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
            IpAddr::V4(v4) => u32::from(v4).checked_sub(self.range.first)?,
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
        assert_eq!(names.name_of(a6.unwrap().into()), Some(&a));
        for other in
            ["198.18.0.0", "198.20.0.1", "93.184.216.34", "127.0.0.1", "::1", "fd6c:6f63:6b67::ffff:1"]
        {
            assert_eq!(names.name_of(other.parse().unwrap()), None, "{other}");
        }
    }

    #[test]
    fn a_small_range_is_used_again_and_has_one_family() {
        let mut names = Names::new(NameRange::after(Ipv4Addr::new(198, 18, 7, 3), 2));
        let name = |n: u32| Hostname::parse(&format!("n{n}.example.com")).unwrap();
        let given = [1, 2, 3].map(|n| names.addresses(&name(n)));
        let at = |last| (Ipv4Addr::new(198, 18, 7, last), None);
        assert_eq!(given, [at(4), at(5), at(4)]);
        assert_eq!(names.name_of(given[2].0.into()), Some(&name(3)));
        assert!(
            names.is_sidecar("198.18.7.3".parse().unwrap())
                && !names.is_sidecar("fd6c:6f63:6b67::".parse().unwrap())
        );
        assert_eq!(names.own(&Hostname::parse("sidecar").unwrap()), Some(at(3)));
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
