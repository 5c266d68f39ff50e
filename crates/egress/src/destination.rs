//! Where an exchange goes once it has been judged: what is dialled for an agent, and nothing else is.
//!
//! Only [`Destination::judge`] makes a [`PinnedAddr`]. A companion of the run has no address, and a proxy dials by itself: neither is
//! a pinned address, and neither passes for one.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use policy::{Denial, Grant, Guard, Host, Hostname, Port, Proxy};

use crate::gate::Gate;

/// Where one exchange goes.
#[derive(Clone, Debug)]
pub(crate) enum Destination {
    /// To the first of these that answers, in the order in which they were found.
    Dial(Vec<PinnedAddr>),
    /// To a companion of the run.
    Companion(Hostname, Port),
    /// Through a proxy, which dials by itself.
    Proxy(Arc<Proxy>),
}

/// An address and port that passed the guard for one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PinnedAddr(SocketAddr);

impl PinnedAddr {
    /// What is dialled.
    pub(crate) fn socket_addr(self) -> SocketAddr {
        self.0
    }
}

/// The other end of a connection that goes through no proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    /// A pinned address.
    Address(PinnedAddr),
    /// A port of the companion that was granted.
    Companion(Port),
}

impl Destination {
    /// The companion that was granted, if it is one that was. It is part of the run: its name is not resolved, and no proxy is on the
    /// way to it.
    pub(crate) fn companion(grant: &Grant) -> Option<Self> {
        match grant.host() {
            Host::Name(name) if grant.is_companion() => Some(Self::Companion(name.clone(), grant.port())),
            _ => None,
        }
    }

    /// Judges every address that was found, every time (E14).
    pub(crate) fn judge(
        gate: &Gate,
        grant: &Grant,
        found: &[IpAddr],
        proxy: Option<Arc<Proxy>>,
    ) -> Result<Self, Denial> {
        match proxy {
            // Behind a proxy the names of the world need not resolve here.
            Some(proxy) if found.is_empty() => return Ok(Self::Proxy(proxy)),
            _ => vet(gate, grant, found)?,
        }
        let port = grant.port().number();
        Ok(match proxy {
            // The addresses have been judged and are not used.
            Some(proxy) => Self::Proxy(proxy),
            None => Self::Dial(found.iter().map(|ip| PinnedAddr(SocketAddr::new(*ip, port))).collect()),
        })
    }

    /// Whoever may answer there, unless that is for a proxy to find out.
    pub(crate) fn peers(&self) -> impl Iterator<Item = Peer> {
        let (addresses, companion) = match self {
            Self::Dial(addresses) => (&addresses[..], None),
            Self::Companion(_, port) => (&[][..], Some(Peer::Companion(*port))),
            Self::Proxy(_) => (&[][..], None),
        };
        addresses.iter().copied().map(Peer::Address).chain(companion)
    }
}

fn vet(gate: &Gate, grant: &Grant, found: &[IpAddr]) -> Result<(), Denial> {
    grant.vet(found)?;
    let named = |ip: &IpAddr| grant.addresses().is_some_and(|list| list.contains(ip));
    found.iter().filter(|ip| !named(ip)).try_for_each(|ip| match gate.is_own(*ip) {
        Ok(false) => Ok(()),
        Ok(true) => Err(Denial::new(Guard::Address, grant.placed(*ip, "this machine"))),
        Err(error) => {
            let why = format!("{ip} may be this machine's own, and the kernel does not tell: {error}");
            Err(Denial::new(Guard::Address, why))
        }
    })
}
