//! The sidecar alone, for those who bring their own sandbox: on addresses it is told, in a process of its own that is shut
//! in. The process that started it stays, and answers it for credentials.

mod ending;
mod inside;
mod listen;
mod outlet;

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use credential::{Placeholder, Secret, Vault};
use egress::{Notice, PlatformAddress, RunToken, SidecarMessage, Summary};
use policy::{OrganisationName, Policy, ProviderId, RunId, Spending};
use rustix::event::PollFlags;
use rustix::net::RecvFlags;
use rustix::process::Pid;
use sandbox::{Caller, Sidecar, Signals, wait_for};

use self::ending::Ending;
use self::inside::{Inside, Outlets};
use self::listen::bind;
use self::outlet::Outlet;
use crate::error::{Error, plumbing};
use crate::platform::{History, Platform, Sources};
use crate::random_ids::placeholders;
use crate::sidecar::SidecarCredentials;
use crate::state::StateDirectory;

/// The variables by which a platform tells a sidecar of itself. S0.23, S0.41
const TOKEN: &str = "RUN_TOKEN";
const PLATFORM: &str = "PLATFORM_API_URL";
const CONFIGURE: &str = "CONFIG_SECRET";

/// A sidecar without a run of ours.
#[derive(Debug)]
pub struct Standalone {
    /// The rules.
    pub policy: Policy,
    /// What may be spent on models.
    pub spending: Spending,
    /// The organisation whose credentials are given, in place of the person's own.
    pub organisation: Option<OrganisationName>,
    /// Where the explicit proxy listens.
    pub forward: SocketAddr,
    /// Where the gateway listens.
    pub gateway: Option<SocketAddr>,
    /// Where the gateway listens as a Unix socket.
    pub gateway_socket: Option<PathBuf>,
    /// Where DNS is answered, over UDP and TCP.
    pub dns: Option<SocketAddr>,
    /// Where connections arrive that were redirected.
    pub transparent: Option<SocketAddr>,
    /// Gets the certificate of this sidecar's authority; without it no TLS is opened.
    pub authority: Option<PathBuf>,
    /// Gets the placeholders, as lines of `NAME=VALUE`.
    pub environment: Option<PathBuf>,
    /// Where records go.
    pub audit: Option<AuditFile>,
    /// The name its records carry.
    pub run: RunId,
    /// How long what is under way may take once it is told to end.
    pub grace: Duration,
}

/// A file of records.
#[derive(Debug)]
pub struct AuditFile {
    /// Where it is.
    pub path: PathBuf,
    /// The file, opened for appending.
    pub file: File,
    /// The key that signs them.
    pub key: Secret,
}

/// Where a sidecar listens: the ports that were found, where none was named.
#[derive(Clone, Copy, Debug)]
pub struct BoundAddresses {
    /// The explicit proxy.
    pub forward: SocketAddr,
    /// The gateway.
    pub gateway: Option<SocketAddr>,
    /// DNS.
    pub dns: Option<SocketAddr>,
    /// Redirected connections.
    pub transparent: Option<SocketAddr>,
}

/// What is heard of a sidecar while it serves.
#[derive(Clone, Copy, Debug)]
pub enum SidecarEvent<'a> {
    /// Every socket is served.
    Listening(BoundAddresses),
    /// A credential could not be given to it, and why.
    Fault(&'a str),
    /// Something was denied, the first time for its target and guard.
    Denied(&'a Notice),
    /// It was told to end, and what is under way has so long.
    Ending(Duration),
}

/// Serves until it is told to end. What serves is a process of its own that is shut in, as that of a run is; this one answers
/// it for credentials. What becomes of it is told to `hear_of`.
///
/// # Errors
/// When an address cannot be bound, a file cannot be written, or serving fails.
pub fn serve_standalone(
    sidecar: Standalone,
    caller: &mut Caller,
    stop: &Signals,
    mut hear_of: impl FnMut(SidecarEvent<'_>),
) -> Result<(), Error> {
    // Nobody may look into a process that holds credentials.
    let _ = sandbox::undumpable();
    let (listeners, places, name) = bind(&sidecar)?;
    let (credentials, place, outlets, platform) = provide(&sidecar, caller)?;
    let mut ending = Ending::with(sidecar.grace);
    let (link, link_inside) = sandbox::message_pair().map_err(plumbing("make a socket"))?;
    let bundle = caller.variable("SSL_CERT_FILE").map(str::to_owned);
    let (notices, notices_inside) = sandbox::message_pair().map_err(plumbing("make a socket"))?;
    let line = Line { link, notices };
    let inside = Inside {
        sidecar,
        listeners,
        credentials,
        place,
        outlets,
        bundle,
        link: link_inside,
        notices: notices_inside,
    };
    let child = sandbox::start_sidecar(&inside.descriptors(), || inside.live())?;
    drop(inside);
    let served = attend(&child, &line, stop, platform, places, &mut ending, &mut hear_of);
    // While the sidecar still has the socket: nothing else can have what tells it from others.
    drop(name);
    let served = served.and_then(|()| line.hear_the_end(&mut hear_of));
    line.tell_denials(&mut hear_of);
    drop(line);
    child.end();
    served
}

/// How long the last word of one that was told to end may take: less than it is waited for.
const LAST_WORD: Duration = Duration::from_secs(4);

/// How long those whose parents have ended may wait to be taken away.
const BURIAL: Duration = Duration::from_secs(1);

/// What the process that serves is told over, and tells.
struct Line {
    link: OwnedFd,
    notices: OwnedFd,
}

impl Line {
    /// Tells the process that serves to end now, and hears whether all was recorded.
    fn hear_the_end(&self, hear_of: &mut dyn FnMut(SidecarEvent<'_>)) -> Result<(), Error> {
        // Only this direction: the other one is for its last word.
        let _ = rustix::net::shutdown(&self.link, Shutdown::Write);
        let until = Instant::now() + LAST_WORD;
        loop {
            let mut fds = [PollFd::new(&self.link, PollFlags::IN), PollFd::new(&self.notices, PollFlags::IN)];
            let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
            let ready = rustix::event::poll(&mut fds, left.as_ref());
            let is_told = !fds[0].revents().is_empty();
            // It waits until what it came to is read, and says only then that something went wrong.
            self.tell_denials(hear_of);
            match is_told.then(|| hear(&self.link)) {
                Some(Word::Failed { why, remedy }) => return Err(Error::SidecarFailed { why, remedy }),
                Some(Word::None) => return Ok(()),
                None if ready == Ok(0) => return Ok(()),
                Some(Word::Ready) | None => {}
            }
        }
    }

    /// Tells what has been denied since.
    fn tell_denials(&self, hear_of: &mut dyn FnMut(SidecarEvent<'_>)) {
        let mut buffer = [0; LONGEST_WORD];
        while let Ok((length @ 1.., _)) =
            rustix::net::recv(&self.notices, &mut buffer[..], RecvFlags::DONTWAIT)
        {
            match SidecarMessage::parse(&buffer[..length]) {
                Some(SidecarMessage::Denied(notice)) => hear_of(SidecarEvent::Denied(&notice)),
                Some(SidecarMessage::Summary(summary)) => {
                    // What could not be written is the error it ends with.
                    let omitted = Summary { unwritten: None, ..summary };
                    omitted.missing_records().for_each(|missing| hear_of(SidecarEvent::Fault(&missing)));
                }
                _ => {}
            }
        }
    }
}

/// What the process that started a sidecar waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Signals,
    Link,
    Gone,
    Notices,
    Questions,
}

/// Hears when the sidecar serves, and answers its questions until it has ended, or is to end at once.
fn attend(
    child: &Sidecar,
    line: &Line,
    stop: &Signals,
    mut platform: Option<Platform>,
    places: BoundAddresses,
    ending: &mut Ending,
    hear_of: &mut dyn FnMut(SidecarEvent<'_>),
) -> Result<(), Error> {
    // In a container it may be the first process, to which come those whose parents have ended.
    let is_first = rustix::process::getpid() == Pid::INIT;
    let burial = is_first.then_some(BURIAL);
    loop {
        if is_first {
            child.bury_others();
        }
        let mut sources = vec![
            (Source::Signals, stop.as_fd(), PollFlags::IN),
            (Source::Link, line.link.as_fd(), PollFlags::IN),
            (Source::Gone, child.gone(), PollFlags::IN),
            (Source::Notices, line.notices.as_fd(), PollFlags::IN),
        ];
        let questions = platform.as_ref().map(Platform::questions);
        sources.extend(questions.map(|questions| (Source::Questions, questions, PollFlags::IN)));
        let patience = [burial, ending.left()].into_iter().flatten().min();
        let ready = wait_for(&sources, patience).map_err(plumbing("wait for the sidecar"))?;
        if ready.contains(&Source::Signals) && ending.is_at_once(stop, &line.link)? || ending.is_due() {
            return Ok(());
        }
        if let Some(left) = ending.takes_a_while() {
            hear_of(SidecarEvent::Ending(left));
        }
        if ready.contains(&Source::Notices) {
            line.tell_denials(hear_of);
        }
        if ready.contains(&Source::Link) || ready.contains(&Source::Gone) {
            match hear(&line.link) {
                Word::Ready => hear_of(SidecarEvent::Listening(places)),
                Word::Failed { why, remedy } => return Err(Error::SidecarFailed { why, remedy }),
                Word::None if ending.has_begun() => return Ok(()),
                Word::None => return Err(Error::SidecarLost),
            }
        }
        // A question that cannot be answered whole ends the answering: what is asked after it fails at once.
        if ready.contains(&Source::Questions) {
            platform = platform.and_then(|mut platform| {
                let more = platform.answer();
                while let Some(fault) = platform.next_fault() {
                    hear_of(SidecarEvent::Fault(fault));
                }
                more.then_some(platform)
            });
        }
    }
}

/// What the sidecar says once it serves; anything else it says is why it does not.
const READY: &[u8] = b"ready";
const LONGEST_WORD: usize = 8 << 10;

/// What the sidecar says of itself.
enum Word {
    Ready,
    Failed { why: String, remedy: Option<String> },
    None,
}

fn hear(link: &OwnedFd) -> Word {
    let mut buffer = [0; LONGEST_WORD];
    match rustix::net::recv(link, &mut buffer[..], RecvFlags::DONTWAIT) {
        Ok((length, _)) if buffer[..length] == *READY => Word::Ready,
        Ok((length, _)) => match SidecarMessage::parse(&buffer[..length]) {
            Some(SidecarMessage::Failed { why, remedy }) => Word::Failed { why, remedy },
            _ => Word::None,
        },
        Err(_) => Word::None,
    }
}

/// A platform elsewhere: one that the environment names, or one that `/configure` will name.
#[derive(Default)]
struct PlatformRoute {
    address: Option<(PlatformAddress, RunToken)>,
    configure_once: Option<Secret>,
}

/// A platform that the environment names; one that `/configure` will name; or else a vault, the organisation's that was named or
/// the person's own, which this process answers from.
fn provide(
    sidecar: &Standalone,
    caller: &mut Caller,
) -> Result<(SidecarCredentials, PlatformRoute, Outlets, Option<Platform>), Error> {
    let (policy, organisation) = (&sidecar.policy, sidecar.organisation.as_ref());
    let placeholders = placeholders(policy)?;
    let find = |path: &Option<PathBuf>, mode| path.as_ref().map(|path| Outlet::find(path, mode)).transpose();
    let outlets = Outlets {
        environment: find(&sidecar.environment, 0o600)?.map(|it| (it, lines(policy, &placeholders))),
        authority: find(&sidecar.authority, 0o666)?,
    };
    let placeholders = placeholders.into_iter().map(|(p, provider)| (p, provider.id().clone())).collect();
    let mut credentials = SidecarCredentials { placeholders, ..SidecarCredentials::default() };
    // What comes out of a file often ends with a line.
    let variable = |name: &str| {
        let text = caller.variable(name).map(|text| text.trim_end_matches(['\r', '\n']));
        text.filter(|text| !text.is_empty())
    };
    let secret = |name: &str| variable(name).map(|text| Secret::from_text(text.to_owned()));
    let mut place = PlatformRoute { address: None, configure_once: secret(CONFIGURE) };
    match (secret(TOKEN), variable(PLATFORM)) {
        (Some(token), Some(address)) => place.address = Some(judged(address, token)?),
        (None, None) => {}
        // Credentials would come out of another vault than whoever set it believes.
        (Some(_), None) => return Err(Error::HalfPlatform { set: TOKEN, lacks: PLATFORM }),
        (None, Some(_)) => return Err(Error::HalfPlatform { set: PLATFORM, lacks: TOKEN }),
    }
    if place.address.is_some() || place.configure_once.is_some() {
        if let Some(organisation) = organisation.cloned() {
            let platform = if place.address.is_some() { PLATFORM } else { CONFIGURE };
            return Err(Error::OrganisationBesidePlatform { organisation, platform });
        }
        let sources = Sources::without_vault(caller)?;
        // The users and passwords of the environment's proxies stay here: no other platform knows them.
        if !providers_used(policy).any(is_own) {
            return Ok((credentials, place, outlets, None));
        }
        let (platform, theirs) = Platform::pair(Some(sources), policy, None)?;
        credentials.own = Some(theirs);
        return Ok((credentials, place, outlets, Some(platform)));
    }
    let directory = StateDirectory::of(caller);
    let history = |directory| History { directory, workspace: caller.directory.clone() };
    let history = directory.as_ref().ok().cloned().map(history);
    // Where nothing of it would be asked for, no vault is needed.
    let sources = match providers_used(policy).all(is_own) {
        true => Sources::without_vault(caller)?,
        false => {
            let directory = directory?;
            credentials.generation = Some(Vault::generation_file(&directory.vault(organisation))?);
            Sources::prepare(caller, &directory, organisation)?
        }
    };
    credentials.organisation = organisation.cloned();
    let (platform, theirs) = Platform::pair(Some(sources), policy, history)?;
    credentials.platform = Some(theirs);
    Ok((credentials, place, outlets, Some(platform)))
}

/// Whose credentials a sidecar may ask for.
fn providers_used(policy: &Policy) -> impl Iterator<Item = &ProviderId> {
    let proxies = policy.proxies().declared().filter_map(|proxy| proxy.credential.as_ref());
    policy.providers().map(|provider| provider.id()).chain(proxies)
}

fn is_own(id: &ProviderId) -> bool {
    ProviderId::is_own(id.as_str())
}

/// Where the environment says that a platform is, and by what right it is asked.
fn judged(address: &str, token: Secret) -> Result<(PlatformAddress, RunToken), Error> {
    let bad = |variable: &str, why: &str| Error::ParseSettings { path: variable.into(), why: why.into() };
    let form = "write it as http://ADDRESS:PORT, with an address and no name";
    let address = address.parse().map_err(|_| bad(PLATFORM, form))?;
    let token = token.try_into().map_err(|why| bad(TOKEN, &format!("it {why}")))?;
    Ok((address, token))
}

/// What a sandbox of one's own is to be given.
fn lines(policy: &Policy, placeholders: &[(Placeholder, Arc<policy::Provider>)]) -> String {
    let mut lines = String::new();
    for (placeholder, provider) in placeholders {
        for name in provider.environment() {
            lines.push_str(&format!("{name}={placeholder}\n"));
        }
    }
    debug_assert_eq!(policy.providers().count(), placeholders.len());
    lines
}

fn unwritten(path: &Path, source: std::io::Error) -> Error {
    Error::Write { path: path.into(), source }
}
