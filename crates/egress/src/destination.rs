//! The judged destination of an exchange. Nothing else is dialled for an agent.
//!
//! Only [`Destination::judge`] makes a [`PinnedAddr`]. A companion has no address and a proxy dials by itself, so neither is a pinned
//! address.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use policy::{Denial, Grant, Guard, Host, Hostname, Port, Proxy};

use crate::local_addresses::ThisMachine;

/// The destination of one exchange.
#[derive(Clone, Debug)]
pub(crate) enum Destination {
    /// The first of these addresses that answers; they begin in resolver order, the families in turn.
    Dial(Vec<PinnedAddr>),
    /// A port of a companion of the run.
    Companion(Hostname, Port),
    /// A proxy, which dials by itself.
    Proxy(Arc<Proxy>),
}

/// An address and port that passed the guard for one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PinnedAddr(SocketAddr);

impl PinnedAddr {
    /// The address to dial.
    pub(crate) fn socket_addr(self) -> SocketAddr {
        self.0
    }
}

impl From<PinnedAddr> for SocketAddr {
    fn from(pinned: PinnedAddr) -> Self {
        pinned.0
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
    /// Returns the granted companion, if the grant is for one. It is part of the run, so its name is not resolved and no proxy is used.
    pub(crate) fn companion(grant: &Grant) -> Option<Self> {
        match grant.host() {
            Host::Name(name) if grant.is_companion() => Some(Self::Companion(name.clone(), grant.port())),
            _ => None,
        }
    }

    /// Judges every resolved address, every time (E14).
    pub(crate) fn judge(
        machine: &ThisMachine,
        grant: &Grant,
        found: &[IpAddr],
        proxy: Option<Arc<Proxy>>,
    ) -> Result<Self, Denial> {
        match proxy {
            // The proxy resolves the name, so it need not resolve here.
            Some(proxy) if grant.is_told_nothing_by(found) => return Ok(Self::Proxy(proxy)),
            _ => vet(machine, grant, found)?,
        }
        let port = grant.port().number();
        Ok(match proxy {
            // The addresses have been judged, but the proxy dials.
            Some(proxy) => Self::Proxy(proxy),
            None => Self::Dial(found.iter().map(|ip| PinnedAddr(SocketAddr::new(*ip, port))).collect()),
        })
    }

    /// The peers that may answer. A proxy has none: it dials by itself.
    pub(crate) fn peers(&self) -> impl Iterator<Item = Peer> {
        let (addresses, companion) = match self {
            Self::Dial(addresses) => (&addresses[..], None),
            Self::Companion(_, port) => (&[][..], Some(Peer::Companion(*port))),
            Self::Proxy(_) => (&[][..], None),
        };
        addresses.iter().copied().map(Peer::Address).chain(companion)
    }
}

/// Denies addresses that the policy or this machine forbids.
fn vet(machine: &ThisMachine, grant: &Grant, found: &[IpAddr]) -> Result<(), Denial> {
    grant.vet(found)?;
    // Also where a rule names the address: a connection to itself would be taken, judged and passed on without end.
    let port = grant.port().number();
    found.iter().try_for_each(|ip| match machine.comes_back_from(*ip, port) {
        Ok(false) => Ok(()),
        Ok(true) => {
            let what = format!("this machine, and port {port} is the sidecar's own");
            Err(Denial::new(Guard::Address, grant.placed(*ip, &what)))
        }
        Err(error) => Err(untold(*ip, &error)),
    })?;
    let named = |ip: &IpAddr| grant.addresses().is_some_and(|list| list.contains(ip));
    found.iter().filter(|ip| !named(ip)).try_for_each(|ip| match machine.has(*ip) {
        Ok(false) => Ok(()),
        Ok(true) => Err(Denial::new(Guard::Address, grant.placed(*ip, "this machine"))),
        Err(error) => Err(untold(*ip, &error)),
    })
}

fn untold(ip: IpAddr, error: &std::io::Error) -> Denial {
    let why = format!("{ip} may be this machine's own, and the kernel does not tell: {error}");
    Denial::new(Guard::Address, why)
}

#[cfg(test)]
mod tests {
    use policy::{Asked, Plane, Port, View};

    use super::*;
    use crate::fixture::gate_for;

    #[test]
    fn a_proxy_is_not_asked_for_a_name_of_no_rule_without_an_address() {
        let rules = "egress.default = \"open-internet\"\negress.allow = [{ host = \"**.far.example\" }]\n\
            egress.deny = [{ host = \"198.18.6.6\" }]";
        let gate = gate_for(rules, Vec::new(), None);
        let proxy = || Some(Arc::new(Proxy::parse("corp", "http://proxy.example:3128", None).unwrap()));
        let judged = |host: &str, found: &[&str], proxy| {
            let (host, port) = (Host::parse(host).unwrap(), Port::parse("443").unwrap());
            let grant =
                gate.policy().decide(&Asked::connection(Plane::Forward, host, port, View::Opaque)).unwrap();
            let found: Vec<IpAddr> = found.iter().map(|it| it.parse().unwrap()).collect();
            let destination = Destination::judge(gate.this_machine(), &grant, &found, proxy);
            destination.map(|it| matches!(it, Destination::Proxy(_))).map_err(|denial| denial.guard)
        };
        for (host, found, through, verdict) in [
            ("a.example", &[][..], proxy(), Err(Guard::NoAddress)),
            ("a.example", &["93.184.216.34"], proxy(), Ok(true)),
            ("a.example", &["93.184.216.34", "10.0.0.5"], proxy(), Err(Guard::Address)),
            ("10.0.0.5", &["10.0.0.5"], proxy(), Err(Guard::Address)),
            ("a.far.example", &[], proxy(), Ok(true)),
            ("a.far.example", &["10.0.0.5"], proxy(), Err(Guard::Address)),
            ("a.far.example", &["198.18.5.5", "fd6c:6f63:6b67::5"], proxy(), Ok(true)),
            ("a.far.example", &["198.18.5.5", "10.0.0.5"], proxy(), Err(Guard::Address)),
            ("a.far.example", &["198.18.6.6"], proxy(), Err(Guard::DenyRule)),
            ("a.example", &["198.18.5.5"], proxy(), Err(Guard::Address)),
            ("a.far.example", &[], None, Err(Guard::NoAddress)),
            ("a.far.example", &["198.18.5.5"], None, Err(Guard::Address)),
        ] {
            assert_eq!(judged(host, found, through), verdict, "{host} {found:?}");
        }
    }
}
