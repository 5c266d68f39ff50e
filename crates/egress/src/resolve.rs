//! Resolves names to addresses with the sidecar's own resolver. Its answers are not trusted: the address guard judges them.

use std::cell::{OnceCell, RefCell};
use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use hickory_resolver::config::{LookupIpStrategy, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, Resolver, TokioResolver};
use policy::{Denial, Guard, Host};
use tokio::sync::Mutex;

use crate::file_opener::{FileOpener, NameFiles};
use crate::read_file::ReadFile;

/// The file that tells which resolvers are asked.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The file that tells addresses of names.
pub const HOSTS: &str = "/etc/hosts";

/// How long one question may wait for its answer, and how often it is asked.
const TIMEOUT: Duration = Duration::from_secs(3);
const ATTEMPTS: usize = 2;

/// The source of addresses.
#[derive(Debug)]
pub enum Answers {
    /// The host's resolver configuration, read at the start. The resolver is built at the first question.
    System(Box<SystemAnswers>),
    /// A fixed answer for every name, as the rows of `policy check` give it. With it no address is asked for whether it is this machine's:
    /// a row is decided from what it says.
    Given(Vec<IpAddr>),
}

/// The host's resolver configuration as it is by now, as far as this process learns of it.
#[derive(Debug)]
pub struct SystemAnswers {
    current: RefCell<Rc<SystemResolver>>,
    /// Without it the files are read once.
    opener: Option<FileOpener>,
    /// Held by the one exchange that has them opened anew.
    renewing: Mutex<()>,
}

/// The files that tell how names resolve, and the resolver that is built from them.
#[derive(Debug)]
struct SystemResolver {
    resolv_conf: ReadFile,
    hosts: ReadFile,
    resolver: OnceCell<Result<Built, String>>,
}

#[derive(Debug)]
struct Built {
    hosts: Hosts,
    resolver: TokioResolver,
    /// Why there is no server to ask, if so. Names then have only the addresses in `hosts`.
    asks_nobody: Option<String>,
}

impl Answers {
    /// Takes `resolv.conf` and `hosts` as they were at the start, and what opens them when they have changed.
    pub(crate) fn system(resolv_conf: ReadFile, hosts: ReadFile, opener: Option<FileOpener>) -> Self {
        let current = RefCell::new(SystemResolver::of(resolv_conf, hosts));
        Self::System(Box::new(SystemAnswers { current, opener, renewing: Mutex::new(()) }))
    }

    /// Returns the addresses of a host. An address resolves to itself.
    pub(crate) async fn of(&self, host: &Host) -> Result<Vec<IpAddr>, Denial> {
        let name = match host {
            Host::Address(address) => return Ok(vec![*address]),
            Host::Name(name) => name,
        };
        match self {
            Self::Given(list) => Ok(list.clone()),
            Self::System(system) => Box::pin(system.look_up(name.as_str())).await,
        }
    }
}

impl SystemAnswers {
    async fn look_up(&self, name: &str) -> Result<Vec<IpAddr>, Denial> {
        let current = self.current().await;
        current.look_up(name).await
    }

    /// Returns the resolver of the files as they are, if they can be had anew, or else as they were.
    async fn current(&self) -> Rc<SystemResolver> {
        let known = || Rc::clone(&self.current.borrow());
        let Some(opener) = self.opener.as_ref().filter(|_| known().changed().is_some()) else {
            return known();
        };
        let _alone = self.renewing.lock().await;
        // Another exchange may have had them opened meanwhile.
        if known().changed().is_some()
            && let Some(NameFiles { resolv_conf, hosts }) = opener.open().await
        {
            let before = known();
            let [resolv_conf, hosts] = [(&before.resolv_conf, resolv_conf), (&before.hosts, hosts)]
                .map(|(before, file)| before.followed_by(file));
            *self.current.borrow_mut() = SystemResolver::of(resolv_conf, hosts);
        }
        known()
    }
}

impl SystemResolver {
    fn of(resolv_conf: ReadFile, hosts: ReadFile) -> Rc<Self> {
        Rc::new(Self { resolv_conf, hosts, resolver: OnceCell::new() })
    }

    async fn look_up(&self, name: &str) -> Result<Vec<IpAddr>, Denial> {
        let failed = |why: String, hint: &str| {
            let hint = self.outdated().unwrap_or_else(|| hint.into());
            Denial::new(Guard::NoAddress, format!("{name} does not resolve: {why}")).with_hint(hint)
        };
        let not_found = |why: String| {
            failed(
                why,
                "see whether this machine finds it (`getent hosts`), and what its /etc/resolv.conf names",
            )
        };
        let Built { hosts, resolver, asks_nobody } =
            self.resolver.get_or_init(|| self.build()).as_ref().map_err(|e| not_found(e.clone()))?;
        let stated = stated(hosts, name);
        if !stated.is_empty() {
            return Ok(stated);
        }
        // The dot keeps search domains out: the resolver asks for the name that was judged.
        match resolver.lookup_ip(format!("{name}.")).await {
            Ok(found) => {
                let mut addresses: Vec<IpAddr> = found.iter().collect();
                addresses.sort_by_key(IpAddr::is_ipv6); // a host without IPv6 answers at once
                addresses.dedup();
                Ok(addresses)
            }
            Err(_) if asks_nobody.is_some() => Err(not_found(asks_nobody.clone().unwrap_or_default())),
            Err(error) if error.is_no_records_found() => Err(failed(
                "no such name".into(),
                "see how the name is spelled, and that it is one that exists",
            )),
            Err(error) => Err(not_found(error.to_string())),
        }
    }

    /// Says what to do about a file that is another by now. What it says may be why a name is not found, so no other hint is true then.
    fn outdated(&self) -> Option<String> {
        let path = self.changed()?;
        Some(format!(
            "{} was written since the sidecar read it: try again, and if it stays so, start the run, or a sidecar alone, again",
            path.display()
        ))
    }

    /// Returns the path of a file that is another by now.
    fn changed(&self) -> Option<&Path> {
        [&self.resolv_conf, &self.hosts].into_iter().find(|file| file.has_changed()).map(ReadFile::path)
    }

    fn build(&self) -> Result<Built, String> {
        let read = hickory_resolver::system_conf::parse_resolv_conf(servers(&self.resolv_conf.content));
        let (config, mut options, asks_nobody) = match read {
            Ok((config, options)) => (config, options, None),
            Err(error) => {
                let nobody = ResolverConfig::from_parts(None, Vec::new(), Vec::new());
                (nobody, ResolverOpts::default(), Some(format!("resolv.conf: {error}")))
            }
        };
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.use_hosts_file = ResolveHosts::Never; // its content is asked before
        options.timeout = TIMEOUT;
        options.attempts = ATTEMPTS - 1; // those after the first
        let mut builder = Resolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        let resolver = builder.build().map_err(|e| e.to_string())?;
        let mut hosts = Hosts::default();
        // A comment may be in any encoding.
        hosts
            .read_hosts_conf(String::from_utf8_lossy(&self.hosts.content).as_bytes())
            .map_err(|error| format!("hosts: {error}"))?;
        Ok(Built { hosts, resolver, asks_nobody })
    }
}

/// Returns the addresses that the hosts file states for a name. If it states any, no server is asked: one that states one family would
/// otherwise get the other from there.
fn stated(hosts: &Hosts, name: &str) -> Vec<IpAddr> {
    let Ok(name) = Name::from_ascii(name) else { return Vec::new() };
    let of = |kind| hosts.lookup_static_host(&Query::query(name.clone(), kind));
    let found = [RecordType::A, RecordType::AAAA].into_iter().filter_map(of);
    found.flat_map(|of| of.answers().iter().filter_map(|it| it.data.ip_addr()).collect::<Vec<_>>()).collect()
}

/// Returns the lines of `resolv.conf` that say which servers are asked, and how. Search domains are not used, so a wrong one is no error.
fn servers(resolv_conf: &[u8]) -> Vec<u8> {
    let says = |line: &&[u8]| line.starts_with(b"nameserver") || line.starts_with(b"options");
    let lines = resolv_conf.split(|octet| *octet == b'\n').map(<[u8]>::trim_ascii);
    lines.filter(says).collect::<Vec<_>>().join(&b'\n')
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs::File;
    use std::os::fd::BorrowedFd;
    use std::os::unix::ffi::OsStrExt;

    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
    use tempfile::TempDir;

    use super::*;
    use crate::notice::SidecarMessage;

    /// Writes a file, and reads it as at the start.
    fn file(folder: &TempDir, name: &str, content: impl AsRef<[u8]>) -> ReadFile {
        std::fs::write(folder.path().join(name), content).unwrap();
        ReadFile::open(&folder.path().join(name))
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_file_that_changed_since_the_start_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let answers = Answers::system(file(&folder, "resolv.conf", ""), file(&folder, "hosts", ""), None);
        let name = Host::parse("inner.example").unwrap();
        let hint = async || answers.of(&name).await.unwrap_err().hint.unwrap().to_string();
        assert!(hint().await.contains("getent hosts"), "{}", hint().await);
        for changed in ["hosts", "resolv.conf"] {
            std::fs::write(folder.path().join(changed), "# another network\n").unwrap();
            let hint = hint().await;
            let path = folder.path().join(changed);
            assert!(hint.contains(path.to_str().unwrap()) && hint.contains("again"), "{changed}: {hint}");
        }
    }

    /// Takes the answer of a test: the folder in which the files are.
    fn opened_in_the_folder(socket: BorrowedFd<'_>) -> std::io::Result<NameFiles> {
        let mut folder = [0; 256];
        let (length, _) = rustix::net::recv(socket, &mut folder[..], RecvFlags::DONTWAIT)?;
        let folder = Path::new(OsStr::from_bytes(&folder[..length]));
        let open = |name: &str| File::open(folder.join(name)).ok();
        Ok(NameFiles { resolv_conf: open("resolv.conf"), hosts: open("hosts") })
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_changed_is_opened_by_who_may() {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, watcher) = rustix::net::socketpair(kind.0, kind.1, kind.2, None).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let answer = || {
            rustix::net::send(&watcher, folder.path().as_os_str().as_bytes(), SendFlags::empty()).unwrap();
        };
        let asked = || {
            let mut message = [0; 256];
            let (length, _) = rustix::net::recv(&watcher, &mut message[..], RecvFlags::DONTWAIT).ok()?;
            SidecarMessage::parse(&message[..length])
        };
        let (conf, hosts) =
            (file(&folder, "resolv.conf", ""), file(&folder, "hosts", "10.0.0.1 one.example\n"));
        let opener = FileOpener::over(ours, opened_in_the_folder);
        let answers = Answers::system(conf, hosts, Some(opener));
        let of = async |name: &str| answers.of(&Host::parse(name).unwrap()).await;
        assert_eq!(of("one.example").await.unwrap(), ["10.0.0.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(asked(), None, "nothing changed");

        std::fs::write(folder.path().join("hosts"), "10.0.0.2 one.example\n10.0.0.2 two.example\n").unwrap();
        let answered = async {
            tokio::task::yield_now().await; // the question is sent by the first
            assert_eq!(asked(), Some(SidecarMessage::NameFilesChanged));
            answer();
        };
        let (one, two, ()) = tokio::join!(of("one.example"), of("two.example"), answered);
        assert_eq!([one.unwrap(), two.unwrap()], [["10.0.0.2".parse::<IpAddr>().unwrap()]; 2]);
        assert_eq!(asked(), None, "one asks for all");

        std::fs::remove_file(folder.path().join("hosts")).unwrap();
        let denial = of("three.example").await.unwrap_err();
        assert_eq!(asked(), None, "it was asked a moment ago");
        assert!(denial.hint.unwrap().to_string().contains("try again"));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn names_of_the_hosts_file_need_no_server() {
        let hosts = b"# Schr\xf6dinger's\n10.9.8.7 platform.internal\nfd00::7 six.internal\n".to_vec();
        for conf in ["", "search a..example\n"] {
            let folder = tempfile::tempdir().unwrap();
            let answers =
                Answers::system(file(&folder, "resolv.conf", conf), file(&folder, "hosts", &hosts), None);
            for (name, address) in [("platform.internal", "10.9.8.7"), ("six.internal", "fd00::7")] {
                let found = answers.of(&Host::parse(name).unwrap()).await.unwrap();
                assert_eq!(found, [address.parse::<IpAddr>().unwrap()]);
            }
            assert_eq!(answers.of(&Host::parse("PLATFORM.internal").unwrap()).await.unwrap().len(), 1);
            let denial = answers.of(&Host::parse("other.internal").unwrap()).await.unwrap_err();
            assert!(denial.reason.contains("resolv.conf: ") && denial.reason.contains("no nameservers"));
        }
    }

    #[test]
    fn what_the_hosts_file_states_in_one_family_is_all_of_a_name() {
        let mut hosts = Hosts::default();
        let text = b"93.184.216.34 one.example\nfd00::1 two.example\n93.184.216.35 two.example\n";
        hosts.read_hosts_conf(&text[..]).unwrap();
        let of = |name: &str| stated(&hosts, name).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(of("one.example"), ["93.184.216.34"], "and no server is asked for the other");
        assert_eq!(of("two.example"), ["93.184.216.35", "fd00::1"]);
        assert!(of("three.example").is_empty() && of("example").is_empty());
    }

    #[test]
    fn a_search_domain_that_is_none_takes_no_server_away() {
        let conf =
            b"# \xff\ndomain a..b\nsearch good..bad\n nameserver 192.0.2.1\noptions edns0\nsortlist x\n";
        assert_eq!(servers(conf), b"nameserver 192.0.2.1\noptions edns0");
    }
}
