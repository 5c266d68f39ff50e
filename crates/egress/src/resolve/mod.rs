//! Resolves names to addresses with the sidecar's own resolver. Its answers are not trusted: the address guard judges them.

mod connections;
mod hosts;
mod name_servers;
mod places;
mod recent;
mod sockets;

use std::cell::{OnceCell, RefCell};
use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use policy::{Denial, Guard, Host};
use tokio::sync::Mutex;
use tokio::time::Instant;

use self::hosts::stated;
use self::name_servers::{HEAD_START, NameServers, Unresolved};
use self::places::Places;
use self::recent::Recent;
use crate::connection_slots::most_for_look_ups;
use crate::file_opener::{FileOpener, NameFiles};
use crate::read_file::ReadFile;

/// The file that tells which resolvers are asked.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The file that tells addresses of names.
pub const HOSTS: &str = "/etc/hosts";

/// How long a failed look-up is remembered, for exchanges that need no address and for names whose last addresses are known.
const FAILED: Duration = Duration::from_secs(30);
/// How long what was told last counts where no server tells anything (RFC 8767).
const LAST: Duration = Duration::from_mins(10);

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
    /// Those of all look-ups, whatever the files were when they began.
    places: OnceCell<Places>,
}

/// The files that tell how names resolve, and the resolver that is built from them.
#[derive(Debug)]
struct SystemResolver {
    resolv_conf: ReadFile,
    hosts: ReadFile,
    /// The content of that file, in small letters.
    names: Vec<u8>,
    servers: OnceCell<NameServers>,
    /// The names of which no server told anything a moment ago, or only after one that is silent was waited for.
    failed: Recent<Unresolved>,
    /// The addresses that each name had last. That it has none, or does not exist, is an answer too, and ends this.
    last: Recent<Vec<IpAddr>>,
}

impl Answers {
    /// Takes `resolv.conf` and `hosts` as they were at the start, and what opens them when they have changed.
    pub(crate) fn system(resolv_conf: ReadFile, hosts: ReadFile, opener: Option<FileOpener>) -> Self {
        let current = RefCell::new(SystemResolver::of(resolv_conf, hosts));
        let (renewing, places) = (Mutex::new(()), OnceCell::new());
        Self::System(Box::new(SystemAnswers { current, opener, renewing, places }))
    }

    /// Returns the addresses of a host. An address resolves to itself.
    pub(crate) async fn of(&self, host: &Host) -> Result<Vec<IpAddr>, Denial> {
        let name = match host {
            Host::Address(address) => return Ok(vec![*address]),
            Host::Name(name) => name,
        };
        match self {
            Self::Given(list) => Ok(list.clone()),
            Self::System(system) => Box::pin(system.look_up(name.as_str(), Needed::Yes)).await,
        }
    }

    /// Returns the addresses of a host as [`of`](Self::of) does, for who can do without: where a failure was waited for a moment ago, it
    /// is not waited for again.
    pub(crate) async fn if_told(&self, host: &Host) -> Result<Vec<IpAddr>, Denial> {
        match (self, host) {
            (Self::System(system), Host::Name(name)) => {
                Box::pin(system.look_up(name.as_str(), Needed::No)).await
            }
            _ => self.of(host).await,
        }
    }
}

/// Whether an exchange ends without an address.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needed {
    Yes,
    No,
}

impl SystemAnswers {
    async fn look_up(&self, name: &str, needed: Needed) -> Result<Vec<IpAddr>, Denial> {
        let current = self.current().await;
        let places = self.places.get_or_init(|| Places::new(most_for_look_ups()));
        current.look_up(name, needed, places).await
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
        let names = hosts.content.to_ascii_lowercase();
        let (failed, last) = (Recent::within(FAILED), Recent::within(LAST));
        Rc::new(Self { resolv_conf, hosts, names, servers: OnceCell::new(), failed, last })
    }

    async fn look_up(&self, name: &str, needed: Needed, places: &Places) -> Result<Vec<IpAddr>, Denial> {
        let stated = stated(&self.names, name);
        if !stated.is_empty() {
            return Ok(stated);
        }
        let servers = self.servers().map_err(|why| self.denial(name, Unresolved::Untold(why)))?;
        if let Some(known) = self.known(name, needed) {
            return known;
        }
        let queued = Instant::now();
        let place = places.take(name, servers.most_descriptors()).await;
        // Whoever had to wait takes what others have learned meanwhile.
        if let Some(why) = self.failed.after(name, queued) {
            return self.last.of(name).ok_or_else(|| self.denial(name, why));
        }
        let began = Instant::now();
        let told = servers.look_up(name).await;
        drop(place);
        self.remember(name, &told, began.elapsed());
        told.or_else(|why| match why {
            Unresolved::Untold(_) => self.last.of(name).ok_or(why),
            why => Err(why),
        })
        .map_err(|why| self.denial(name, why))
    }

    /// Returns what a failure of a moment ago says of a name.
    fn known(&self, name: &str, needed: Needed) -> Option<Result<Vec<IpAddr>, Denial>> {
        let why = self.failed.of(name)?;
        let last = self.last.of(name).map(Ok);
        last.or_else(|| (needed == Needed::No).then(|| Err(self.denial(name, why))))
    }

    /// Says why a name has no address, and what to do about it.
    fn denial(&self, name: &str, why: Unresolved) -> Denial {
        let (why, hint) = match why {
            Unresolved::NoSuchName if name.contains('.') => {
                ("no such name".into(), "see how the name is spelled, and that it is one that exists")
            }
            Unresolved::NoSuchName => (
                "no such name".into(),
                "write the whole name: it is asked for as it is, in DNS and /etc/hosts alone, and no search domain is added",
            ),
            Unresolved::NoAddress => (
                "there is such a name, but it has no address".into(),
                "see what the name stands for (`getent hosts`): it may be meant for mail, say",
            ),
            Unresolved::Untold(why) => (
                why,
                "see whether this machine finds it (`getent hosts`), and what its /etc/resolv.conf names",
            ),
        };
        let hint = self.outdated().unwrap_or_else(|| hint.into());
        Denial::new(Guard::NoAddress, format!("{name} does not resolve: {why}")).with_hint(hint)
    }

    /// Returns the servers, which are read at the first question. That there are none is asked again each time.
    fn servers(&self) -> Result<&NameServers, String> {
        match self.servers.get() {
            Some(servers) => Ok(servers),
            None => NameServers::of(&self.resolv_conf.content).map(|of| self.servers.get_or_init(|| of)),
        }
    }

    /// Remembers what was told. A failure that was waited for longer than a head start would be waited for again at each connection.
    fn remember(&self, name: &str, told: &Result<Vec<IpAddr>, Unresolved>, took: Duration) {
        match told {
            Ok(found) => self.last.note(name, found.clone()),
            Err(Unresolved::NoSuchName | Unresolved::NoAddress) => self.last.forget(name),
            Err(Unresolved::Untold(_)) => {}
        }
        match told {
            Err(why @ Unresolved::Untold(_)) => self.failed.note(name, why.clone()),
            Err(why) if took > HEAD_START => self.failed.note(name, why.clone()),
            _ => self.failed.forget(name),
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
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs::File;
    use std::os::fd::BorrowedFd;
    use std::os::unix::ffi::OsStrExt;
    use std::sync::Arc;

    use hickory_resolver::proto::op::{Message, ResponseCode};
    use hickory_resolver::proto::rr::rdata::A;
    use hickory_resolver::proto::rr::{RData, Record, RecordType};
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
    use tempfile::TempDir;
    use tokio::net::UdpSocket;

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

    /// Answers each question with a code, or with an address that counts no longer than for that.
    async fn serve(socket: UdpSocket, code: Arc<std::sync::Mutex<ResponseCode>>) {
        let mut octets = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut octets).await {
            let question = Message::from_vec(&octets[..length]).unwrap();
            let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
            answer.queries.clone_from(&question.queries);
            answer.metadata.response_code = *code.lock().unwrap();
            let asked = &question.queries[0];
            if answer.metadata.response_code == ResponseCode::NoError && asked.query_type() == RecordType::A {
                let data = RData::A(A("192.0.2.1".parse().unwrap()));
                answer.answers.push(Record::from_rdata(asked.name().clone(), 0, data));
            }
            socket.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_was_told_last_counts_while_no_server_tells_anything() {
        let folder = tempfile::tempdir().unwrap();
        let of = |conf: &str| SystemResolver::of(file(&folder, conf, ""), file(&folder, "hosts", ""));
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let servers = NameServers::at(socket.local_addr().unwrap());
        let code = Arc::new(std::sync::Mutex::new(ResponseCode::NoError));
        tokio::spawn(serve(socket, Arc::clone(&code)));
        let (resolver, places) = (of("resolv.conf"), Places::new(0));
        resolver.servers.set(servers).unwrap();
        let answers = async |now: ResponseCode, name: &str| {
            *code.lock().unwrap() = now;
            resolver.look_up(name, Needed::Yes, &places).await.map(|found| found.len())
        };
        assert_eq!(answers(ResponseCode::NoError, "one.example").await.unwrap(), 1);
        assert_eq!(answers(ResponseCode::ServFail, "one.example").await.unwrap(), 1);
        answers(ResponseCode::ServFail, "two.example").await.unwrap_err();
        assert!(resolver.look_up("one.example", Needed::No, &places).await.is_ok());
        // That there is no such name may have been waited for as well, until a server before had failed.
        for (took, is_remembered) in [(HEAD_START * 3, true), (HEAD_START / 2, false)] {
            resolver.remember("three.example", &Err(Unresolved::NoSuchName), took);
            *code.lock().unwrap() = ResponseCode::NoError;
            let told = resolver.look_up("three.example", Needed::No, &places).await;
            assert_eq!(told.is_err_and(|denial| denial.reason.contains("no such name")), is_remembered);
        }
        resolver.remember("three.example", &Err(Unresolved::NoSuchName), HEAD_START * 3);
        assert!(answers(ResponseCode::NoError, "three.example").await.is_ok(), "an address is needed");
        // Once a server has said that there is no such name, it counts no longer.
        assert_eq!(answers(ResponseCode::NoError, "three.example").await.unwrap(), 1);
        for code in [ResponseCode::NXDomain, ResponseCode::ServFail] {
            answers(code, "three.example").await.unwrap_err();
        }
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn who_waited_for_a_place_does_not_ask_again_what_failed_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let resolver = SystemResolver::of(file(&folder, "resolv.conf", ""), file(&folder, "hosts", ""));
        resolver.servers.set(NameServers::at(silent.local_addr().unwrap())).unwrap();
        let took = async |askers: usize| {
            let (began, places) = (Instant::now(), Places::new(0));
            let name = format!("of-{askers}.example");
            let asked = (0..askers).map(|_| resolver.look_up(&name, Needed::Yes, &places));
            assert!(futures_util::future::join_all(asked).await.iter().all(Result::is_err));
            began.elapsed()
        };
        let alone = took(1).await;
        assert!(alone >= HEAD_START && took(30).await < alone * 2, "{alone:?}");
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn who_waited_for_a_place_asks_again_what_failed_before() {
        let folder = tempfile::tempdir().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let resolver = SystemResolver::of(file(&folder, "resolv.conf", ""), file(&folder, "hosts", ""));
        resolver.servers.set(NameServers::at(socket.local_addr().unwrap())).unwrap();
        let code = Arc::new(std::sync::Mutex::new(ResponseCode::NoError));
        tokio::spawn(serve(socket, code));
        resolver.remember("one.example", &Err(Unresolved::Untold("it was silent".into())), HEAD_START * 3);
        let places = Places::new(0);
        let place = places.take("one.example", resolver.servers().unwrap().most_descriptors()).await;
        let (told, ()) = tokio::join!(resolver.look_up("one.example", Needed::Yes, &places), async {
            tokio::time::sleep(HEAD_START * 2).await;
            drop(place);
        });
        assert_eq!(told.map(|found| found.len()), Ok(1));
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
            let asked = "other.internal does not resolve: name server 127.0.0.1: ";
            assert!(denial.reason.starts_with(asked), "as the C library does: {}", denial.reason);
        }
    }
}
