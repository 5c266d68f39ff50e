//! The name servers of `resolv.conf`, asked as a machine's own programs ask them: in order, and the next one where one fails.
//!
//! Each server has a resolver of its own: the library takes the servers of one resolver for copies of each other, asks two at once,
//! and believes the faster. A private network's server knows names that a public one denies, whatever their order of speed.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use hickory_resolver::Resolver;
use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::{DnsError, NetError, NoRecords};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::RecordType;
use resolv_conf::{Config, ScopedIp};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use tokio::time::{Instant, timeout, timeout_at};

use super::connections::Connections;
use super::recent::Recent;
use super::sockets::Sockets;
use crate::connection_slots::LOOK_UP;

/// Where name servers listen.
const PORT: u16 = 53;
/// How long one question may wait for its answer, and how often it is asked.
const TIMEOUT: Duration = Duration::from_secs(3);
const ATTEMPTS: u32 = 2;

/// How many servers are asked: the C library takes as many.
const MOST: usize = 3;
/// How many descriptors one question has at once: the library sends it up to three times, each from a socket of its own.
const SOCKETS: u32 = 3;
const _: () = assert!(LOOK_UP == MOST * 2 * SOCKETS as usize);
/// How long one is waited for before the next is asked as well.
pub(super) const HEAD_START: Duration = Duration::from_secs(1);
/// How long one that was silent has no head start, and is asked but once.
const SILENT: Duration = Duration::from_secs(60);

/// How long the question for one family is waited for once the other has addresses: some networks swallow that for IPv6. And how long if
/// that did not do a moment ago (RFC 8305 §3).
const OTHER_FAMILY: Duration = Duration::from_secs(1);
const OTHER_FAMILY_AGAIN: Duration = Duration::from_millis(50);

/// How long an answer counts, whatever it says: networks change behind an unchanged server.
const LONGEST_FOUND: Duration = Duration::from_secs(60);
const LONGEST_NOT_FOUND: Duration = Duration::from_secs(5);

/// The servers, in order.
pub(super) struct NameServers {
    servers: Vec<NameServer>,
}

/// Why a name has no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unresolved {
    NoSuchName,
    NoAddress,
    /// No server told.
    Untold(String),
}

struct NameServer {
    address: IpAddr,
    sockets: Sockets,
    resolver: Resolver<Connections>,
    /// Asked for, in this order: a host without IPv6 answers at once.
    families: &'static [RecordType],
    /// When it last did not answer, if it has not since.
    silent: Cell<Option<Instant>>,
    /// The names of which it has told the addresses of one family alone, and nothing of the other.
    told_by_half: Recent<()>,
}

type Answer = Result<Vec<IpAddr>, Unresolved>;

/// What a server answers of one family.
type Family = Result<Vec<IpAddr>, NetError>;

/// What a server that is asked has answered so far.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Heard {
    #[default]
    Nothing,
    Something,
    /// What counts. The rest is waited for but briefly.
    Enough,
}

impl std::fmt::Debug for NameServers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.servers.iter().map(|server| server.address)).finish()
    }
}

impl NameServers {
    /// Takes the servers that `resolv.conf` names, or else this machine's, as the C library does.
    pub(super) fn of(resolv_conf: &[u8]) -> Result<Self, String> {
        let (config, _) = Config::parse_with_errors(&about_servers(resolv_conf));
        let mut named = config.nameservers.clone();
        if named.is_empty() {
            named.push(ScopedIp::V4(Ipv4Addr::LOCALHOST));
        }
        // One that cannot be asked, as by an interface that is not there, takes no other away.
        let (mut servers, mut refused) = (Vec::new(), None);
        for server in named.into_iter().take(MOST) {
            match NameServer::of(server, &config) {
                Ok(server) => servers.push(server),
                Err(why) => drop(refused.get_or_insert(why)),
            }
        }
        refused.filter(|_| servers.is_empty()).map_or(Ok(Self { servers }), Err)
    }

    /// Takes one server at any port.
    #[cfg(test)]
    pub(super) fn at(address: SocketAddr) -> Self {
        Self { servers: vec![NameServer::at(address, &Config::new()).unwrap()] }
    }

    /// Returns how many descriptors a look-up takes at most.
    pub(super) fn most_descriptors(&self) -> u32 {
        self.servers.iter().flat_map(|server| server.families).map(|_| SOCKETS).sum()
    }

    /// Returns the addresses of a name, IPv4 first. The first server that knows them counts; that there is no such name counts once each
    /// server before has failed.
    pub(super) async fn look_up(&self, name: &str) -> Answer {
        let heard: [Cell<Heard>; MOST] = Default::default();
        let (mut asked, mut answers) = (Vec::new(), Vec::<Option<Answer>>::new());
        loop {
            let next = self.servers.get(asked.len()).zip(heard.get(asked.len()));
            let can_none_tell = answers.iter().all(|answer| matches!(answer, Some(Err(why)) if !why.ends()));
            match next {
                Some(next) if can_none_tell => self.begin(next, name, &mut asked, &mut answers),
                _ => {
                    if let Some(told) = told(&answers) {
                        return told;
                    }
                    let last = asked.len() - 1;
                    let Some(next) = next.filter(|_| heard[last].get() != Heard::Enough) else {
                        one_more(&mut asked, &mut answers).await;
                        continue;
                    };
                    let (last, heard) = (&self.servers[last], &heard[last]);
                    let head_start = if last.is_silent() { Duration::ZERO } else { HEAD_START };
                    if timeout(head_start, one_more(&mut asked, &mut answers)).await.is_err()
                        && heard.get() != Heard::Enough
                    {
                        // Only a head start that was let pass counts, so that one which answers has its place again.
                        let is_silent = matches!(answers.last(), Some(None)) && heard.get() == Heard::Nothing;
                        if !head_start.is_zero() && is_silent {
                            last.silent.set(Some(Instant::now()));
                        }
                        self.begin(next, name, &mut asked, &mut answers);
                    }
                }
            }
        }
    }

    /// Asks one more server. One that was silent has less time, if there is another.
    fn begin<'a>(
        &self,
        (server, heard): (&'a NameServer, &'a Cell<Heard>),
        name: &'a str,
        asked: &mut Vec<Asked<'a>>,
        answers: &mut Vec<Option<Answer>>,
    ) {
        let is_short = self.servers.len() > 1 && server.is_silent();
        let patience = if is_short { TIMEOUT } else { TIMEOUT * ATTEMPTS };
        asked.push(Box::pin(server.ask(name, patience, heard)));
        answers.push(None);
    }
}

impl Unresolved {
    /// Whether the servers behind the one that says so are not asked. That a name is there without an address is said also by servers that
    /// only know where else to ask.
    fn ends(&self) -> bool {
        *self == Self::NoSuchName
    }
}

type Asked<'a, T = Answer> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Waits until one more of those asked has answered.
async fn one_more<T>(asked: &mut [Asked<'_, T>], answers: &mut [Option<T>]) {
    poll_fn(|context| {
        for (asked, answer) in asked.iter_mut().zip(&mut *answers).filter(|(_, answer)| answer.is_none()) {
            if let Poll::Ready(told) = asked.as_mut().poll(context) {
                *answer = Some(told);
                return Poll::Ready(());
            }
        }
        Poll::Pending
    })
    .await;
}

/// Returns what the answers so far come to, if a later one cannot change it.
fn told(answers: &[Option<Answer>]) -> Option<Answer> {
    if let Some(found) = answers.iter().flatten().find(|answer| answer.is_ok()) {
        return Some(found.clone());
    }
    let (mut untold, mut is_there) = (Vec::new(), false);
    for answer in answers {
        match answer.as_ref()? {
            Err(Unresolved::Untold(why)) => untold.push(why.as_str()),
            Err(Unresolved::NoAddress) => is_there = true,
            told => return Some(told.clone()),
        }
    }
    let why = if is_there { Unresolved::NoAddress } else { Unresolved::Untold(untold.join("; ")) };
    (!answers.is_empty()).then_some(Err(why))
}

impl NameServer {
    fn of(server: ScopedIp, config: &Config) -> Result<Self, String> {
        // The C library takes an unspecified address for this machine too.
        let address = match server {
            ScopedIp::V6(address, Some(zone)) => {
                SocketAddrV6::new(address, PORT, 0, interface(&zone)?).into()
            }
            ScopedIp::V4(Ipv4Addr::UNSPECIFIED) => (Ipv4Addr::LOCALHOST, PORT).into(),
            ScopedIp::V6(Ipv6Addr::UNSPECIFIED, None) => (Ipv6Addr::LOCALHOST, PORT).into(),
            server => SocketAddr::new(server.into(), PORT),
        };
        Self::at(address, config)
    }

    fn at(address: SocketAddr, config: &Config) -> Result<Self, String> {
        let ip = address.ip();
        let mut server =
            if config.use_vc { NameServerConfig::tcp(ip) } else { NameServerConfig::udp_and_tcp(ip) };
        server.connections.iter_mut().for_each(|over| over.port = address.port());
        let mut options = ResolverOpts::default();
        options.use_hosts_file = ResolveHosts::Never; // its content is asked before
        options.edns0 = config.edns0;
        options.timeout = TIMEOUT;
        options.attempts = 1; // those after the first
        options.positive_max_ttl = Some(LONGEST_FOUND);
        options.negative_max_ttl = Some(LONGEST_NOT_FOUND);
        let interface = match address {
            SocketAddr::V6(address) => address.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let sockets = Sockets::on_interface(interface);
        let connections = Connections { sockets: sockets.clone(), timeout: TIMEOUT };
        let alone = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
        let mut builder = Resolver::builder_with_config(alone, connections);
        *builder.options_mut() = options;
        let resolver = builder.build().map_err(|error| error.to_string())?;
        let families: &[_] =
            if config.no_aaaa { &[RecordType::A] } else { &[RecordType::A, RecordType::AAAA] };
        let (silent, told_by_half) = (Cell::new(None), Recent::within(SILENT));
        Ok(Self { address: ip, sockets, resolver, families, silent, told_by_half })
    }

    fn is_silent(&self) -> bool {
        self.silent.get().is_some_and(|since| since.elapsed() < SILENT)
    }

    /// Asks for each family by itself. One that has addresses is an answer, whatever becomes of the other.
    async fn ask(&self, name: &str, patience: Duration, heard: &Cell<Heard>) -> Answer {
        let was_told_by_half = self.told_by_half.of(name).is_some();
        let briefly = if was_told_by_half { OTHER_FAMILY_AGAIN } else { OTHER_FAMILY };
        let families = self.ask_for_families(name, patience, briefly, heard).await;
        let unanswered = families.iter().filter(|family| matches!(family, Err(NetError::Timeout))).count();
        self.silent.set((unanswered == families.len()).then(Instant::now));
        let mut addresses: Vec<IpAddr> = families.iter().flatten().flatten().copied().collect();
        addresses.dedup();
        if addresses.is_empty() {
            return Err(self.why_none(&families, unanswered));
        }
        match unanswered {
            0 => self.told_by_half.forget(name),
            _ if was_told_by_half => {}
            _ => self.told_by_half.note(name, ()),
        }
        Ok(addresses)
    }

    async fn ask_for_families(
        &self,
        name: &str,
        patience: Duration,
        briefly: Duration,
        heard: &Cell<Heard>,
    ) -> Vec<Family> {
        let mut asked: Vec<Asked<'_, Family>> = Vec::new();
        for family in self.families {
            asked.push(Box::pin(self.ask_for(name, *family)));
        }
        let mut answers: Vec<Option<Family>> = self.families.iter().map(|_| None).collect();
        let mut end = Instant::now() + patience;
        while answers.iter().any(Option::is_none) {
            if timeout_at(end, one_more(&mut asked, &mut answers)).await.is_err() {
                break;
            }
            if heard.get() != Heard::Enough {
                heard.set(Heard::of(&answers));
                if heard.get() == Heard::Enough {
                    end = end.min(Instant::now() + briefly);
                }
            }
        }
        answers.into_iter().map(|answer| answer.unwrap_or(Err(NetError::Timeout))).collect()
    }

    async fn ask_for(&self, name: &str, family: RecordType) -> Family {
        // The dot keeps search domains out: the server is asked for the name that was judged.
        let found = self.resolver.lookup(format!("{name}."), family).await?;
        Ok(found.answers().iter().filter_map(|record| record.data.ip_addr()).collect())
    }

    /// Says why there are no addresses: what is said of IPv4, unless that is that it has none and IPv6's are not told.
    fn why_none(&self, families: &[Family], unanswered: usize) -> Unresolved {
        let mut whys = families.iter().zip(self.families).map(|(family, records)| match family {
            Ok(_) => Unresolved::NoAddress,
            Err(NetError::Timeout) if unanswered < families.len() => {
                self.untold(&format!("it does not answer what it is asked of {records} records"))
            }
            Err(error) => self.why(error),
        });
        let first = whys.next().unwrap_or(Unresolved::NoAddress);
        let is_untold = |why: &Unresolved| matches!(why, Unresolved::Untold(_));
        if first == Unresolved::NoAddress { whys.find(is_untold).unwrap_or(first) } else { first }
    }

    fn why(&self, error: &NetError) -> Unresolved {
        let why = match error {
            NetError::Dns(DnsError::NoRecordsFound(NoRecords { response_code, .. })) => {
                return match response_code {
                    ResponseCode::NXDomain => Unresolved::NoSuchName,
                    _ => Unresolved::NoAddress,
                };
            }
            NetError::Dns(DnsError::ResponseCode(code)) => format!("it answers \"{code}\""),
            NetError::Timeout => "it does not answer".into(),
            NetError::Io(error) => error.to_string(),
            NetError::NoConnections => self.sockets.failure().unwrap_or_else(|| error.to_string()),
            error => error.to_string(),
        };
        self.untold(&why)
    }

    fn untold(&self, why: &str) -> Unresolved {
        Unresolved::Untold(format!("name server {}: {why}", self.address))
    }
}

impl Heard {
    /// Addresses of IPv4 are enough, and so is it that the name does not exist where it is asked for those: some deny it for IPv6 alone.
    /// Those of IPv6 alone are not, for this machine may have none itself.
    fn of(answers: &[Option<Family>]) -> Self {
        let has_addresses = matches!(answers.first(), Some(Some(Ok(addresses))) if !addresses.is_empty());
        let is_denied = matches!(answers.first(), Some(Some(Err(NetError::Dns(DnsError::NoRecordsFound(why)))))
                if why.response_code == ResponseCode::NXDomain);
        let is_told = |answer: &Family| !matches!(answer, Err(NetError::Timeout));
        match answers.iter().flatten().any(is_told) {
            _ if has_addresses || is_denied => Self::Enough,
            true => Self::Something,
            false => Self::Nothing,
        }
    }
}

/// Returns the number of a network interface, by which the zone of an address may be named too.
fn interface(zone: &str) -> Result<u32, String> {
    let named = || {
        let socket = socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        name_to_index(&socket, zone)
    };
    let failed = |error| format!("resolv.conf: the network interface {}: {error}", zone.escape_default());
    zone.parse().or_else(|_| named()).map_err(failed)
}

/// Returns the lines of `resolv.conf` that say which servers are asked, and how. Search domains are not used, so a wrong one is no error.
fn about_servers(resolv_conf: &[u8]) -> Vec<u8> {
    let says = |line: &&[u8]| line.starts_with(b"nameserver") || line.starts_with(b"options");
    let lines = resolv_conf.split(|octet| *octet == b'\n').map(<[u8]>::trim_ascii);
    lines.filter(says).collect::<Vec<_>>().join(&b'\n')
}

#[cfg(test)]
mod tests {
    use hickory_resolver::proto::op::{Message, Query};
    use hickory_resolver::proto::rr::rdata::A;
    use hickory_resolver::proto::rr::{RData, Record};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, UdpSocket};

    use super::*;

    /// What a server of a test does with each question.
    #[derive(Clone, Copy)]
    enum Does {
        Answer(&'static str, Duration),
        /// Answers, and swallows what is asked of IPv6.
        SwallowIpv6,
        Refuse(ResponseCode),
        Nothing,
    }

    /// Starts one server for each, and returns them in order.
    async fn servers(all: &[Does]) -> NameServers {
        let mut servers = Vec::new();
        for does in all {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            servers.push(NameServer::at(socket.local_addr().unwrap(), &Config::new()).unwrap());
            tokio::spawn(serve(socket, *does));
        }
        NameServers { servers }
    }

    async fn serve(socket: UdpSocket, does: Does) {
        let mut octets = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut octets).await {
            let question = Message::from_vec(&octets[..length]).unwrap();
            let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
            answer.queries.clone_from(&question.queries);
            match does {
                Does::Nothing => continue,
                Does::SwallowIpv6 if question.queries[0].query_type() == RecordType::AAAA => continue,
                Does::SwallowIpv6 => {
                    let data = RData::A(A("192.0.2.1".parse().unwrap()));
                    let name = question.queries[0].name().clone();
                    answer.answers.push(Record::from_rdata(name, 3600, data));
                }
                Does::Refuse(code) => answer.metadata.response_code = code,
                Does::Answer(address, after) => {
                    tokio::time::sleep(after).await;
                    answer = answer_with(address, &octets[..length]);
                }
            }
            socket.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
        }
    }

    /// Returns the answer to a question that has an IPv4 address, and no other.
    fn answer_with(address: &str, question: &[u8]) -> Message {
        let question = Message::from_vec(question).unwrap();
        let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
        let asked = &question.queries[0];
        if asked.query_type() == RecordType::A {
            let data = RData::A(A(address.parse().unwrap()));
            answer.answers.push(Record::from_rdata(asked.name().clone(), 3600, data));
        }
        answer.queries = question.queries;
        answer
    }

    const AT_ONCE: Duration = Duration::ZERO;

    #[tokio::test(flavor = "current_thread")]
    async fn the_next_server_is_asked_where_one_cannot_tell() {
        for code in [ResponseCode::ServFail, ResponseCode::Refused, ResponseCode::NotImp] {
            for order in [[0, 1], [1, 0]] {
                let all = [Does::Refuse(code), Does::Answer("192.0.2.1", AT_ONCE)];
                let servers = servers(&order.map(|at| all[at])).await;
                let found = servers.look_up("one.example").await.unwrap();
                assert_eq!(found, ["192.0.2.1".parse::<IpAddr>().unwrap()], "{code} {order:?}");
            }
        }
        let none =
            servers(&[Does::Refuse(ResponseCode::ServFail), Does::Refuse(ResponseCode::Refused)]).await;
        let Err(Unresolved::Untold(why)) = none.look_up("one.example").await else { panic!("found") };
        assert!(why.contains("Server Failure") && why.contains("; name server 127.0.0.1: "), "{why}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_first_server_that_knows_counts_and_not_the_faster() {
        let known = Does::Answer("192.0.2.1", Duration::from_millis(300));
        let denied = Does::Refuse(ResponseCode::NXDomain);
        let of = async |all: &[Does]| servers(all).await.look_up("one.example").await;
        assert_eq!(of(&[known, denied]).await.unwrap().len(), 1);
        assert_eq!(of(&[denied, known]).await, Err(Unresolved::NoSuchName));
        let empty = Does::Refuse(ResponseCode::NoError);
        assert_eq!(of(&[empty, known]).await.unwrap().len(), 1, "it may only know where else to ask");
        let failing = Does::Refuse(ResponseCode::ServFail);
        assert_eq!(of(&[failing, empty, failing]).await, Err(Unresolved::NoAddress));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_silent_server_keeps_nobody_waiting_twice() {
        let servers = servers(&[Does::Nothing, Does::Answer("192.0.2.1", AT_ONCE)]).await;
        let began = Instant::now();
        assert_eq!(servers.look_up("one.example").await.unwrap().len(), 1);
        assert!((HEAD_START..TIMEOUT).contains(&began.elapsed()), "{:?}", began.elapsed());
        let began = Instant::now();
        assert_eq!(servers.look_up("two.example").await.unwrap().len(), 1);
        assert!(began.elapsed() < HEAD_START, "{:?}", began.elapsed());
        // It had no head start, so it let none pass.
        let noted = servers.servers[0].silent.get().unwrap();
        assert!(noted < began);
        // One that answers again has its place again.
        let answering = NameServers { servers: vec![servers.servers.into_iter().nth(1).unwrap()] };
        answering.servers[0].silent.set(Some(Instant::now()));
        assert_eq!(answering.look_up("three.example").await.unwrap().len(), 1);
        assert!(!answering.servers[0].is_silent());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_server_that_swallows_one_family_has_told_the_other() {
        let servers = servers(&[Does::SwallowIpv6, Does::Answer("192.0.2.2", AT_ONCE)]).await;
        let timed = async || {
            let began = Instant::now();
            let found = servers.look_up("one.example").await.unwrap();
            assert_eq!(found, ["192.0.2.1".parse::<IpAddr>().unwrap()], "the first that knows counts");
            began.elapsed()
        };
        let took = timed().await;
        assert!((OTHER_FAMILY..2 * OTHER_FAMILY).contains(&took), "{took:?}");
        assert!(!servers.servers[0].is_silent(), "it has answered");
        // It is not waited for anew at each connection.
        let took = timed().await;
        assert!(took < OTHER_FAMILY, "{took:?}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_told_of_one_family_alone_is_no_more_than_that() {
        let servers = servers(&[Does::Nothing]).await;
        let server = &servers.servers[0];
        let no_records = |code| {
            let query = Query::query("one.example.".parse().unwrap(), RecordType::A);
            Err(NetError::from(NoRecords::new(query, code)))
        };
        let empty = || no_records(ResponseCode::NoError);
        let denied = || no_records(ResponseCode::NXDomain);
        let late = || Err(NetError::Timeout);
        let why = |four, six| match server.why_none(&[four, six], 1) {
            Unresolved::Untold(why) => why,
            other => format!("{other:?}"),
        };
        let untold = |records| {
            format!("name server 127.0.0.1: it does not answer what it is asked of {records} records")
        };
        assert_eq!(why(empty(), late()), untold("AAAA"));
        assert_eq!([why(late(), empty()), why(late(), denied())], [untold("A"), untold("A")]);
        assert_eq!(why(denied(), late()), "NoSuchName");
        assert_eq!(server.why_none(&[empty(), empty()], 0), Unresolved::NoAddress);
        let failed = || Err(DnsError::ResponseCode(ResponseCode::ServFail).into());
        let half = server.why_none(&[empty(), failed()], 0);
        assert!(matches!(&half, Unresolved::Untold(why) if why.contains("it answers")), "{half:?}");
        assert!(Heard::of(&[Some(denied()), None]) == Heard::Enough);
        assert!(Heard::of(&[None, Some(denied())]) == Heard::Something);
        assert!(Heard::of(&[Some(empty()), None]) == Heard::Something);
        let known = |address: &str| Some(Ok(vec![address.parse().unwrap()]));
        assert!(Heard::of(&[known("192.0.2.1"), None]) == Heard::Enough);
        assert!(Heard::of(&[None, known("2001:db8::1")]) == Heard::Something, "there may be no way to it");
        assert!(Heard::of(&[Some(late()), None]) == Heard::Nothing);
    }

    /// Answers the first question of each connection with an address, and keeps the connection without a word to any other.
    async fn serve_one_of_each_connection(listener: TcpListener) {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut octets = vec![0; stream.read_u16().await.unwrap().into()];
            stream.read_exact(&mut octets).await.unwrap();
            let answer = answer_with("192.0.2.1", &octets).to_vec().unwrap();
            stream.write_u16(answer.len().try_into().unwrap()).await.unwrap();
            stream.write_all(&answer).await.unwrap();
            kept.push(stream);
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_connection_that_has_died_costs_no_name() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = Config::new();
        config.use_vc = true;
        let server = NameServer::at(listener.local_addr().unwrap(), &config).unwrap();
        let servers = NameServers { servers: vec![server] };
        tokio::spawn(serve_one_of_each_connection(listener));
        for name in ["one.example", "two.example", "three.example"] {
            assert_eq!(servers.look_up(name).await.unwrap().len(), 1, "{name}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn that_nobody_listens_is_told_at_once_and_by_name() {
        let free = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let servers = NameServers { servers: vec![NameServer::at(free, &Config::new()).unwrap()] };
        let began = Instant::now();
        let Err(Unresolved::Untold(why)) = servers.look_up("one.example").await else { panic!("found") };
        assert!(why.contains("Connection refused"), "{why}");
        assert!(began.elapsed() < TIMEOUT, "{:?}", began.elapsed());
    }

    #[test]
    fn what_resolv_conf_says_is_heeded() {
        let of = |text: &str| {
            let servers = NameServers::of(text.as_bytes()).unwrap().servers;
            servers.iter().map(|server| server.address.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(of("# none\nsearch a..example\n"), ["127.0.0.1"]);
        assert_eq!(of("nameserver 0.0.0.0\nnameserver ::\n"), ["127.0.0.1", "::1"]);
        let many = "nameserver 192.0.2.1\n".repeat(5);
        assert_eq!(of(&many).len(), MOST);
        let on = |text: &str| NameServers::of(text.as_bytes()).map(|of| of.servers[0].sockets.interface());
        assert_eq!(on("nameserver fe80::1%7").unwrap(), 7);
        assert_eq!(on("nameserver fe80::1%lo").unwrap(), 1);
        assert_eq!(of("nameserver fe80::1%none0\nnameserver 192.0.2.1\n"), ["192.0.2.1"]);
        assert!(on("nameserver fe80::1%none0").unwrap_err().contains("the network interface none0: "));
        let families = |text: &str| NameServers::of(text.as_bytes()).unwrap().servers[0].families;
        assert_eq!(families("options use-vc no-aaaa"), [RecordType::A]);
        assert_eq!(families("options edns0"), [RecordType::A, RecordType::AAAA]);
    }

    #[test]
    fn a_search_domain_that_is_none_takes_no_server_away() {
        let conf =
            b"# \xff\ndomain a..b\nsearch good..bad\n nameserver 192.0.2.1\noptions edns0\nsortlist x\n";
        assert_eq!(about_servers(conf), b"nameserver 192.0.2.1\noptions edns0");
    }
}
