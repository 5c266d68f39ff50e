//! The sidecar that serves alone, for people with a sandbox of their own. It listens on given addresses, in a confined process of its
//! own; the process that started it stays, and answers it for credentials.

mod bind;
mod ending;
mod inside;
mod listen;
mod outlet;
mod provide;

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use credential::Secret;
use egress::{Notice, SidecarMessage};
use policy::{OrganisationName, Policy, RunId, Spending};
use rustix::event::PollFlags;
use rustix::net::RecvFlags;
use rustix::process::Pid;
use sandbox::{Caller, Sidecar, Signals, wait_for};

use self::bind::{Bound, bind};
use self::ending::Ending;
use self::inside::Inside;
use self::provide::{Provided, provide};
use crate::error::{Error, plumbing};
use crate::platform::Platform;

/// A sidecar without a run of this program's.
#[derive(Debug)]
pub struct Standalone {
    /// The rules.
    pub policy: Policy,
    /// What may be spent on models.
    pub spending: Spending,
    /// The organisation whose credentials are used instead of the person's own.
    pub organisation: Option<OrganisationName>,
    /// The address of the explicit proxy.
    pub forward: SocketAddr,
    /// The address of the gateway.
    pub gateway: Option<SocketAddr>,
    /// The path of the gateway's Unix socket.
    pub gateway_socket: Option<PathBuf>,
    /// The address of DNS, over UDP and TCP.
    pub dns: Option<SocketAddr>,
    /// The address to which connections are redirected.
    pub transparent: Option<SocketAddr>,
    /// The file for the certificate of this sidecar's authority; without it no TLS is terminated.
    pub authority: Option<PathBuf>,
    /// The file for the placeholders, as lines of `NAME=VALUE`.
    pub environment: Option<PathBuf>,
    /// The audit.
    pub audit: Option<AuditFile>,
    /// The run that its records name.
    pub run: RunId,
    /// How long open exchanges may take once it is told to end.
    pub grace: Duration,
}

/// The file of an audit.
#[derive(Debug)]
pub struct AuditFile {
    /// Its path.
    pub path: PathBuf,
    /// The file, opened for appending.
    pub file: File,
    /// The key that signs them.
    pub key: Secret,
}

/// The addresses of a sidecar, with the ports that the kernel chose where none was named.
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

/// An event of a sidecar that serves.
#[derive(Clone, Copy, Debug)]
pub enum SidecarEvent<'a> {
    /// Every socket is served.
    Listening(BoundAddresses),
    /// A credential could not be given to it, and why.
    Fault(&'a str),
    /// Something was denied, the first time for its target and guard.
    Denied(&'a Notice),
    /// It was told to end, and open exchanges have so long.
    Ending(Duration),
}

/// Serves until it is told to end. A confined process serves, as in a run; this process answers it for credentials, and tells `hear_of`
/// what happens.
///
/// # Errors
/// When an address cannot be bound, a file cannot be written, or serving fails.
pub fn serve_standalone(
    sidecar: Standalone,
    caller: &mut Caller,
    stop: &Signals,
    mut hear_of: impl FnMut(SidecarEvent<'_>),
) -> Result<(), Error> {
    // No other process may look into one that holds credentials.
    let _ = sandbox::undumpable();
    let Bound { listeners, addresses, socket_name } = bind(&sidecar)?;
    let Provided { credentials, route, outlets, platform } = provide(&sidecar, caller)?;
    let mut ending = Ending::with(sidecar.grace);
    let (link, link_inside) = sandbox::message_pair().map_err(plumbing("make a socket"))?;
    let bundle = caller.variable("SSL_CERT_FILE").map(str::to_owned);
    let (notices, notices_inside) = sandbox::message_pair().map_err(plumbing("make a socket"))?;
    let line = Line { link, notices };
    let inside = Inside {
        sidecar,
        listeners,
        credentials,
        route,
        outlets,
        bundle,
        link: link_inside,
        notices: notices_inside,
    };
    let child = sandbox::start_sidecar(&inside.descriptors(), || inside.live())?;
    drop(inside);
    let served = attend(&child, &line, stop, platform, addresses, &mut ending, &mut hear_of);
    line.tell_denials(&mut hear_of);
    // Removed while the sidecar still has the socket, whose inode no other socket can have meanwhile.
    drop(socket_name);
    drop(line);
    child.end();
    served
}

/// How often orphans are reaped.
const BURIAL: Duration = Duration::from_secs(1);

/// This process's ends of the sockets to the process that serves.
struct Line {
    link: OwnedFd,
    notices: OwnedFd,
}

impl Line {
    /// Reports what has been denied since.
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

/// Reports when the sidecar serves, and answers its questions until it has ended, or is to end at once.
fn attend(
    child: &Sidecar,
    line: &Line,
    stop: &Signals,
    mut platform: Option<Platform>,
    addresses: BoundAddresses,
    ending: &mut Ending,
    hear_of: &mut dyn FnMut(SidecarEvent<'_>),
) -> Result<(), Error> {
    // In a container this may be the first process, which inherits orphans.
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
                Word::Ready => hear_of(SidecarEvent::Listening(addresses)),
                Word::Failed { why, remedy } => return Err(Error::SidecarFailed { why, remedy }),
                Word::None if ending.has_begun() => return Ok(()),
                Word::None => return Err(Error::SidecarLost),
            }
        }
        // A question that cannot be answered completely ends the answering: later questions fail at once.
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

/// The message of a sidecar that serves; any other says why it does not.
const READY: &[u8] = b"ready";
const LONGEST_WORD: usize = 8 << 10;

/// A message of the sidecar about itself.
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

fn unwritten(path: &Path, source: std::io::Error) -> Error {
    Error::Write { path: path.into(), source }
}
