//! The sidecar that serves alone, for people with a sandbox of their own. It listens on given addresses, in a confined process of its
//! own; the process that started it stays, and answers it for credentials.

mod bind;
mod ending;
mod inside;
mod outlet;
mod provide;

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use credential::Secret;
use egress::{ModelUse, Notice, SidecarMessage, Summary};
use policy::{NameNetwork, OrganisationName, Policy, RunId, Spending};
use rustix::event::PollFlags;
use rustix::net::{RecvFlags, Shutdown};
use rustix::process::Pid;
use sandbox::{Caller, Sidecar, Signals, wait_for};

use self::bind::{Bound, bind};
use self::ending::Ending;
use self::inside::Inside;
use self::provide::{Provided, provide};
use crate::authorities;
use crate::end_signals::end_asked;
use crate::error::{Error, plumbing};
use crate::missing_credential::MissingCredential;
use crate::name_files;
use crate::platform::Platform;
use crate::sidecar_messages::{self, LONGEST_GOOD_END, LONGEST_MESSAGE, is_too_late, panicked};

/// A sidecar without a run of this program's.
#[derive(Debug)]
pub struct Standalone {
    /// The rules.
    pub policy: Policy,
    /// What may be spent on models.
    pub spending: Spending,
    /// The network out of which DNS answers for allowed names.
    pub name_addresses: NameNetwork,
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
    pub file: Arc<File>,
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
    /// A credential that its policy asks for is not stored. It may be stored while the sidecar serves.
    Missing(&'a MissingCredential),
    /// Every socket is served.
    Listening(BoundAddresses),
    /// A credential could not be given to it, and why.
    Fault(&'a str),
    /// Something was denied, or was allowed and failed, the first time for its target and guard.
    Notice(&'a Notice),
    /// Something more was denied, and no further denial is told but for a fault's first.
    NoMoreDenials,
    /// It was told to end, and open exchanges have so long.
    Ending(Duration),
    /// It has ended, and models were used.
    Used(&'a ModelUse),
}

/// Serves until it is told to end. A confined process serves, as in a run; this process answers it for credentials, and tells `on_event`
/// what happens.
///
/// # Errors
/// When an address cannot be bound, a file cannot be written, or serving fails.
pub fn serve_standalone(
    sidecar: Standalone,
    caller: &mut Caller,
    stop: &Signals,
    mut on_event: impl FnMut(SidecarEvent<'_>),
) -> Result<(), Error> {
    // No other process may look into one that holds credentials.
    let _ = sandbox::undumpable();
    let Bound { listeners, addresses, socket_name } = bind(&sidecar)?;
    let Provided { credentials, route, outlets, platform, missing } = provide(&sidecar, caller)?;
    missing.iter().for_each(|missing| on_event(SidecarEvent::Missing(missing)));
    let ending = Ending::with(sidecar.grace);
    let summary = if sidecar.audit.is_some() { SummaryState::Awaited } else { SummaryState::Unneeded };
    let (link, link_inside) = sandbox::message_pair().map_err(plumbing("make a socket"))?;
    let bundle = caller.variable(authorities::VARIABLE).map(str::to_owned);
    let (notices, notices_inside) = sandbox::message_pair().map_err(plumbing("make a socket"))?;
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
    let child = sandbox::start_sidecar(inside, Inside::live)?;
    let mut parent = Parent { child, link, notices, stop, platform, addresses, ending, summary };
    let served = parent.attend(&mut on_event);
    parent.platform = None;
    // Removed while the sidecar still has the socket: meanwhile no other socket can have its inode, by which it is known.
    drop(socket_name);
    let served = served.and_then(|()| parent.await_end(&mut on_event));
    parent.report_notices(&mut on_event);
    let Parent { child, link, notices, summary, .. } = parent;
    drop((link, notices));
    child.end();
    match summary {
        SummaryState::Awaited => served.and(Err(Error::SidecarUntold { after: None })),
        SummaryState::Unneeded | SummaryState::Told => served,
    }
}

/// How long a sidecar without an audit may take, once told to end: less than `Sidecar::end` waits for its process.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(4);
/// How often it is looked whether it is waited for in vain.
const LOOK: Duration = Duration::from_millis(500);
/// How often orphans are reaped.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// The process that started a sidecar, and its ends of the sockets to it.
struct Parent<'a> {
    child: Sidecar,
    link: OwnedFd,
    notices: OwnedFd,
    stop: &'a Signals,
    platform: Option<Platform>,
    addresses: BoundAddresses,
    ending: Ending,
    summary: SummaryState,
}

/// The last message of a sidecar, which says that its audit is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SummaryState {
    /// There is no audit.
    Unneeded,
    Awaited,
    Told,
}

/// What that process waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Signals,
    Link,
    Gone,
    Notices,
    Questions,
}

impl Parent<'_> {
    /// Reports when the sidecar serves, and answers its questions until it has ended, or is to end at once.
    fn attend(&mut self, on_event: &mut dyn FnMut(SidecarEvent<'_>)) -> Result<(), Error> {
        // In a container this may be the first process, which inherits orphans.
        let is_first = rustix::process::getpid() == Pid::INIT;
        loop {
            if is_first {
                self.child.bury_others();
            }
            let ready = self.wait(is_first.then_some(REAP_INTERVAL))?;
            let signalled = ready.contains(&Source::Signals);
            if signalled && self.ending.is_at_once(self.stop, &self.link)? || self.ending.is_due() {
                return Ok(());
            }
            if let Some(left) = self.ending.takes_a_while() {
                on_event(SidecarEvent::Ending(left));
            }
            if ready.contains(&Source::Notices) {
                self.report_notices(on_event);
            }
            if ready.contains(&Source::Link) || ready.contains(&Source::Gone) {
                match receive_status(&self.link) {
                    Status::Ready => on_event(SidecarEvent::Listening(self.addresses)),
                    Status::Failed { why, remedy } => return Err(Error::SidecarFailed { why, remedy }),
                    Status::None if self.ending.has_begun() => return Ok(()),
                    Status::None => return Err(Error::SidecarLost),
                }
            }
            if ready.contains(&Source::Questions) {
                self.answer_questions(on_event);
            }
        }
    }

    fn wait(&self, patience: Option<Duration>) -> Result<Vec<Source>, Error> {
        let mut sources = vec![
            (Source::Signals, self.stop.as_fd(), PollFlags::IN),
            (Source::Link, self.link.as_fd(), PollFlags::IN),
            (Source::Gone, self.child.gone(), PollFlags::IN),
            (Source::Notices, self.notices.as_fd(), PollFlags::IN),
        ];
        let questions = self.platform.as_ref().map(Platform::questions);
        sources.extend(questions.map(|questions| (Source::Questions, questions, PollFlags::IN)));
        let patience = [patience, self.ending.left()].into_iter().flatten().min();
        wait_for(&sources, patience).map_err(plumbing("wait for the sidecar"))
    }

    /// Answers the sidecar's questions for credentials. A question that cannot be answered completely ends the answering: later ones
    /// fail at once.
    fn answer_questions(&mut self, on_event: &mut dyn FnMut(SidecarEvent<'_>)) {
        let Some(platform) = &mut self.platform else { return };
        let more = platform.answer();
        while let Some(fault) = platform.next_fault() {
            on_event(SidecarEvent::Fault(fault));
        }
        if !more {
            self.platform = None;
        }
    }

    /// Tells the sidecar to end now, and waits until it has closed its audit.
    ///
    /// # Errors
    /// When records could not be written.
    fn await_end(&mut self, on_event: &mut dyn FnMut(SidecarEvent<'_>)) -> Result<(), Error> {
        // This direction only: on the other one comes its last status.
        let _ = rustix::net::shutdown(&self.link, Shutdown::Write);
        let begin = Instant::now();
        let longest = match self.summary {
            SummaryState::Unneeded => CLOSE_TIMEOUT,
            SummaryState::Awaited | SummaryState::Told => LONGEST_GOOD_END,
        };
        loop {
            let is_in_vain = || self.child.is_stopped() || end_asked(self.stop).is_some();
            if is_too_late(begin.elapsed(), longest, is_in_vain) {
                return Ok(());
            }
            let sources = [
                (Source::Link, self.link.as_fd(), PollFlags::IN),
                (Source::Notices, self.notices.as_fd(), PollFlags::IN),
            ];
            let ready = wait_for(&sources, Some(LOOK)).map_err(plumbing("wait for the sidecar"))?;
            // It waits until its summary is read, and gives its status only then.
            self.report_notices(on_event);
            if ready.contains(&Source::Link) {
                match receive_status(&self.link) {
                    Status::Failed { why, remedy } => return Err(Error::SidecarFailed { why, remedy }),
                    Status::None => return Ok(()),
                    Status::Ready => {}
                }
            }
        }
    }

    /// Reports denials since the last call, and of the summary the use of models, and records that are missing from the audit.
    fn report_notices(&mut self, on_event: &mut dyn FnMut(SidecarEvent<'_>)) {
        while let Ok(Some(message)) = sidecar_messages::next(&self.notices) {
            match message {
                SidecarMessage::Notice(notice) => on_event(SidecarEvent::Notice(&notice)),
                SidecarMessage::NoMoreDenials => on_event(SidecarEvent::NoMoreDenials),
                SidecarMessage::Summary(summary) => {
                    self.summary = SummaryState::Told;
                    summary.models.iter().for_each(|used| on_event(SidecarEvent::Used(used)));
                    // Records that could not be written are the error that the sidecar ends with.
                    let omitted = Summary { unwritten: None, ..summary };
                    omitted.missing_records().for_each(|missing| on_event(SidecarEvent::Fault(&missing)));
                }
                SidecarMessage::Panicked(what) => on_event(SidecarEvent::Fault(&panicked(&what))),
                SidecarMessage::NameFilesChanged => name_files::send(self.notices.as_fd()),
                SidecarMessage::Authority(_) | SidecarMessage::Failed { .. } => {}
            }
        }
    }
}

/// The message of a sidecar that serves; any other says why it does not.
const READY: &[u8] = b"ready";

/// What the sidecar says about itself.
enum Status {
    Ready,
    Failed { why: String, remedy: Option<String> },
    None,
}

fn receive_status(link: &OwnedFd) -> Status {
    let mut buffer = [0; LONGEST_MESSAGE];
    match rustix::net::recv(link, &mut buffer[..], RecvFlags::DONTWAIT) {
        Ok((length, _)) if buffer[..length] == *READY => Status::Ready,
        Ok((length, _)) => match SidecarMessage::parse(&buffer[..length]) {
            Some(SidecarMessage::Failed { why, remedy }) => Status::Failed { why, remedy },
            _ => Status::None,
        },
        Err(_) => Status::None,
    }
}

fn unwritten(path: &Path, source: std::io::Error) -> Error {
    Error::Write { path: path.into(), source }
}
