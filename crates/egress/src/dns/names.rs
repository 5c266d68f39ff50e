//! Hands out an IPv4 and an IPv6 address for each allowed name, and maps dialled addresses back to names.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use policy::agreed::SIDECAR_NAME;
use policy::{Host, Hostname, NameNetwork, Wiring};

use crate::denied_once::{DeniedOnce, Novelty};

/// The addresses that stand for names. The first is the sidecar's own, whose ports are the explicit planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameRange {
    first: u32,
    /// The number of names there is room for.
    names: u32,
    /// Whether each name has an IPv6 address as well.
    both: bool,
}

impl NameRange {
    /// The range of a sandbox of this kernel. It has both families only where every address is local, and not for a network of the
    /// user's own: a program that refuses addresses which are not public would refuse those of our IPv6 prefix as well.
    #[must_use]
    pub fn of(network: NameNetwork, wiring: Wiring) -> Self {
        let both = wiring == Wiring::Redirect && network == NameNetwork::default();
        Self { both, ..Self::after(network.sidecar(), network.names().min(MOST)) }
    }

    /// A range of IPv4 alone: the sidecar's address, followed by that many for names.
    #[must_use]
    pub fn after(sidecar: Ipv4Addr, names: u32) -> Self {
        Self { first: sidecar.into(), names: names.max(1), both: false }
    }
}

impl Default for NameRange {
    /// The default range of both families, for a sandbox in which every address is local.
    fn default() -> Self {
        Self::of(NameNetwork::default(), Wiring::Redirect)
    }
}

/// How many names are known at once. A further name evicts the oldest.
const MOST: u32 = 65_536;

/// A name of the sandbox's own, which is answered whatever the policy says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnName {
    /// The sidecar, whose ports are the explicit planes.
    Sidecar,
    /// The loopback inside.
    Loopback,
}

impl OwnName {
    /// Returns what a name stands for, if it is one of them.
    #[must_use]
    pub fn of(name: &Hostname) -> Option<Self> {
        match name.as_str() {
            SIDECAR_NAME => Some(Self::Sidecar),
            "localhost" => Some(Self::Loopback),
            _ => None,
        }
    }
}

/// The addresses that a name is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NameAddresses {
    pub(super) v4: Ipv4Addr,
    pub(super) v6: Option<Ipv6Addr>,
}

/// The table of names and addresses of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Names {
    range: NameRange,
    by_name: HashMap<Hostname, u32>,
    by_index: HashMap<u32, Hostname>,
    next: u32,
    denied: DeniedOnce,
}

impl Names {
    pub(crate) fn new(range: NameRange) -> Self {
        Self { range, ..Self::default() }
    }

    /// Whether an address is the sidecar's own.
    pub(crate) fn is_sidecar(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => u32::from(v4) == self.range.first,
            IpAddr::V6(v6) => self.range.both && v6 == NameNetwork::beside_default(0),
        }
    }

    /// The addresses of a name that is the sandbox's own.
    pub(super) fn own(&self, name: &Hostname) -> Option<NameAddresses> {
        Some(match OwnName::of(name)? {
            OwnName::Sidecar => NameAddresses { v4: self.range.first.into(), v6: None },
            OwnName::Loopback => NameAddresses { v4: Ipv4Addr::LOCALHOST, v6: Some(Ipv6Addr::LOCALHOST) },
        })
    }

    /// Returns the addresses of an allowed name, and adds it to the table if it is new.
    pub(super) fn addresses(&mut self, name: &Hostname) -> NameAddresses {
        let index = match self.by_name.get(name) {
            Some(index) => *index,
            None => self.add(name),
        };
        let v6 = self.range.both.then(|| NameNetwork::beside_default(index));
        NameAddresses { v4: Ipv4Addr::from(self.range.first + index), v6 }
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

    /// Returns the name an address stands for, if it stands for one.
    pub(super) fn name_of(&self, address: IpAddr) -> Option<&Hostname> {
        let index = match address {
            IpAddr::V4(v4) => u32::from(v4).checked_sub(self.range.first)?,
            IpAddr::V6(v6) => NameNetwork::number_beside_default(v6)?,
        };
        self.by_index.get(&index)
    }

    /// Returns what is meant by an address: the name that it stands for, or itself.
    pub(crate) fn host_at(&self, address: IpAddr) -> Host {
        self.name_of(address).cloned().map_or(Host::Address(address), Host::Name)
    }

    /// Returns the name of an address for who asks by the address: one that it stands for, or the sandbox's own.
    pub(super) fn reverse(&self, address: IpAddr) -> Option<&str> {
        match address {
            loopback if loopback.is_loopback() => Some("localhost"),
            sidecar if self.is_sidecar(sidecar) => Some(SIDECAR_NAME),
            other => self.name_of(other).map(Hostname::as_str),
        }
    }

    /// Remembers a denied name, and returns whether it is to be recorded.
    pub(crate) fn denied(&mut self, name: &str) -> Novelty {
        self.denied.denied(name)
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
        let of_a = names.addresses(&a);
        let of_b = names.addresses(&b);
        assert_eq!(names.addresses(&a), of_a);
        assert_ne!(of_a.v4, of_b.v4);
        assert_eq!(names.name_of(of_a.v4.into()), Some(&a));
        assert_eq!(names.name_of(of_a.v6.unwrap().into()), Some(&a));
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
        let at = |last| NameAddresses { v4: Ipv4Addr::new(198, 18, 7, last), v6: None };
        assert_eq!(given, [at(4), at(5), at(4)]);
        assert_eq!(names.name_of(given[2].v4.into()), Some(&name(3)));
        assert!(
            names.is_sidecar("198.18.7.3".parse().unwrap())
                && !names.is_sidecar("fd6c:6f63:6b67::".parse().unwrap())
        );
        assert_eq!(names.own(&Hostname::parse("sidecar").unwrap()), Some(at(3)));
    }

    #[test]
    fn a_network_of_the_users_own_has_public_addresses_alone() {
        let network: NameNetwork = "22.0.0.0/16".parse().unwrap();
        let mut names = Names::new(NameRange::of(network, Wiring::Redirect));
        let name = Hostname::parse("api.example.com").unwrap();
        let given = names.addresses(&name);
        assert_eq!(given, NameAddresses { v4: Ipv4Addr::new(22, 0, 0, 1), v6: None });
        assert_eq!(names.name_of(given.v4.into()), Some(&name));
        assert!(names.is_sidecar("22.0.0.0".parse().unwrap()));
    }

    #[test]
    fn the_table_is_bounded_and_never_maps_to_a_name_it_forgot() {
        let mut names = Names::default();
        let first = Hostname::parse("n0.example.com").unwrap();
        let address = names.addresses(&first).v4;
        for n in 1..=MOST {
            names.addresses(&Hostname::parse(&format!("n{n}.example.com")).unwrap());
        }
        assert_eq!(names.by_index.len(), MOST as usize);
        assert_eq!(names.by_name.len(), MOST as usize);
        assert_ne!(names.name_of(address.into()), Some(&first));
    }
}
