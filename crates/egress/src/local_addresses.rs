//! Tells the addresses of this machine. A service on it may rely on a firewall that a local connection does not pass.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;

/// Returns the addresses of this machine's network interfaces, for a sidecar whose kernel has others.
///
/// # Errors
/// Whatever `getifaddrs(3)` returns.
pub fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let of = |address: SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|it| it.ip().into());
        v4.or_else(|| address.as_sockaddr_in6().map(|it| it.ip().into()))
    };
    Ok(getifaddrs()?.filter_map(|link| of(link.address?)).collect())
}

/// An address that no machine has (RFC 1112 §4). A socket that can be bound to it can be bound to any.
const NOBODYS: Ipv4Addr = Ipv4Addr::new(240, 0, 0, 1);

/// Asks the kernel which addresses are this machine's.
#[derive(Debug, Default)]
pub(crate) struct LocalAddresses {
    /// The addresses of the interfaces at the start, if sockets can be bound to any address (`net.ipv4.ip_nonlocal_bind`).
    at_start: Vec<IpAddr>,
}

/// This machine's addresses, to which only a rule leads that names them, and where the sidecar listens, to which none does.
#[derive(Debug)]
pub(crate) struct ThisMachine {
    /// Those of the machine that the sidecar's kernel does not know.
    given: Vec<IpAddr>,
    local: LocalAddresses,
    /// Whether the kernel is asked. Given answers are judged alike on every machine.
    is_asked: bool,
    /// Where the sidecar listens.
    listeners: Vec<SocketAddr>,
}

impl ThisMachine {
    pub(crate) fn new(
        given: Vec<IpAddr>,
        listeners: Vec<SocketAddr>,
        local: LocalAddresses,
        is_asked: bool,
    ) -> Self {
        Self { given, local, is_asked, listeners }
    }

    /// Whether a connection to there would come back to this sidecar.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub(crate) fn comes_back_from(&self, address: IpAddr, port: u16) -> io::Result<bool> {
        for own in &self.listeners {
            if self.local.comes_to(*own, address, port)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether an address is the machine's own.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub(crate) fn has(&self, address: IpAddr) -> io::Result<bool> {
        Ok(self.given.contains(&address) || (self.is_asked && self.local.has(address)?))
    }
}

impl LocalAddresses {
    /// Lists the addresses at once where they cannot be asked for later: a confined process has no netlink sockets.
    ///
    /// # Errors
    /// Whatever `getifaddrs(3)` returns.
    pub(crate) fn look() -> io::Result<Self> {
        let at_start = if binds(NOBODYS)? { own_addresses()? } else { Vec::new() };
        Ok(Self { at_start })
    }

    /// Whether an address belongs to this machine. Nothing is sent.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub(crate) fn has(&self, address: IpAddr) -> io::Result<bool> {
        match address {
            // The source address does not tell: for a second address of a network the kernel prefers the first.
            IpAddr::V4(v4) if !binds(v4)? => Ok(false),
            IpAddr::V4(_) if !binds(NOBODYS)? => Ok(true),
            _ => Ok(self.at_start.contains(&address) || is_its_own_source(address)?),
        }
    }

    /// Whether a connection to an address and port of this machine's comes to a listener.
    ///
    /// # Errors
    /// When it cannot be asked whether the address is this machine's.
    pub(crate) fn comes_to(&self, listener: SocketAddr, address: IpAddr, port: u16) -> io::Result<bool> {
        if listener.port() != port {
            return Ok(false);
        }
        let (bound, address) = (listener.ip().to_canonical(), address.to_canonical());
        // connect(2) goes to loopback where it is given no address.
        let address = match address {
            IpAddr::V4(address) if address.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(address) if address.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            address => address,
        };
        match bound.is_unspecified() {
            true => Ok(address.is_loopback() || self.has(address)?),
            false => Ok(bound == address),
        }
    }
}

/// Whether a socket can be bound to an address.
fn binds(address: Ipv4Addr) -> io::Result<bool> {
    match UdpSocket::bind((address, 0)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the kernel would send to an address from that address itself.
fn is_its_own_source(address: IpAddr) -> io::Result<bool> {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind((any, 0))
        .and_then(|socket| socket.connect((address, 9)).and_then(|()| socket.local_addr()));
    match source {
        Ok(source) => Ok(source.ip() == address),
        // A machine always has a route to itself, so an address without a route is another's.
        Err(error) if is_no_route(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_no_route(error: &io::Error) -> bool {
    use io::ErrorKind::{AddrNotAvailable, HostUnreachable, NetworkUnreachable, PermissionDenied};
    // A routing rule may prohibit the route; a kernel without IPv6 has no such sockets.
    matches!(error.kind(), AddrNotAvailable | HostUnreachable | NetworkUnreachable | PermissionDenied)
        || matches!(
            error.raw_os_error().map(rustix::io::Errno::from_raw_os_error),
            Some(rustix::io::Errno::AFNOSUPPORT | rustix::io::Errno::INVAL)
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::options_for;
    use crate::{Answers, Gate, GateOptions, check};

    fn local() -> LocalAddresses {
        LocalAddresses::look().unwrap()
    }

    #[test]
    fn what_a_link_has_is_this_machines() {
        let own = own_addresses().unwrap();
        assert!(own.contains(&Ipv4Addr::LOCALHOST.into()), "{own:?}");
        for address in
            own.into_iter().filter(|it| !matches!(it, IpAddr::V6(it) if it.is_unicast_link_local()))
        {
            assert!(local().has(address).unwrap(), "{address}");
        }
        // TEST-NET-3, which no machine has.
        assert!(!local().has(Ipv4Addr::new(203, 0, 113, 7).into()).unwrap());
    }

    #[test]
    fn no_rule_leads_back_to_the_sidecar_itself() {
        let policy = "[egress]\nallow = [{ host = \"127.0.0.1\", ports = [18082, 18083] }]\n";
        let method = policy::Method::parse("GET").unwrap();
        for own in ["127.0.0.1:18082", "0.0.0.0:18082", "[::]:18082", "[::ffff:127.0.0.1]:18082"] {
            let outcome = |listeners: Vec<SocketAddr>, port: u16| {
                let answers = Some(Answers::Given(Vec::new()));
                let gate = Gate::open(GateOptions { answers, listeners, ..options_for(policy) }).unwrap();
                let verdict = check(&gate, &method, &format!("http://127.0.0.1:{port}/")).unwrap();
                verdict.outcome.map(drop).map_err(|denial| denial.guard)
            };
            let listeners = vec![own.parse().unwrap()];
            assert_eq!(outcome(Vec::new(), 18082), Ok(()), "{own}");
            assert_eq!(outcome(listeners.clone(), 18082), Err(policy::Guard::Address), "{own}");
            assert_eq!(outcome(listeners, 18083), Ok(()), "{own}");
        }
        let comes = |listener: &str, address: &str, port| {
            local().comes_to(listener.parse().unwrap(), address.parse().unwrap(), port).unwrap()
        };
        assert!(comes("127.0.0.1:7", "0.0.0.0", 7) && comes("[::1]:7", "::", 7));
        assert!(!comes("127.0.0.1:7", "127.0.0.2", 7), "nobody is there");
        // TEST-NET-3, which nobody has.
        assert!(!comes("0.0.0.0:7", "203.0.113.7", 7));
    }

    #[test]
    fn a_question_that_cannot_be_asked_is_no_answer() {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let none = rustix::process::Rlimit { current: Some(0), ..limit };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, none).unwrap();
        let asked = LocalAddresses::default().has(Ipv4Addr::LOCALHOST.into());
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        assert!(asked.is_err());
    }

    #[test]
    fn what_another_kernel_has_is_no_way_out() {
        let policy = "[egress]\ndefault = \"open-internet\"";
        let address: IpAddr = Ipv4Addr::new(93, 184, 216, 99).into();
        let verdict = |machine: Vec<IpAddr>| {
            let answers = Some(Answers::Given(vec![address]));
            let gate = Gate::open(GateOptions { answers, machine, ..options_for(policy) });
            let method = policy::Method::parse("GET").unwrap();
            let outcomes = ["http://www.example.org/", "http://93.184.216.99:7777/"]
                .map(|target| check(gate.as_ref().unwrap(), &method, target).unwrap().outcome);
            outcomes.map(|outcome| outcome.map(drop).map_err(|denial| denial.guard))
        };
        assert_eq!(verdict(Vec::new()), [Ok(()), Ok(())]);
        assert_eq!(verdict(vec![address]), [Err(policy::Guard::Address); 2]);
    }
}
