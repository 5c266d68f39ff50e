//! A started sandbox, as its parent holds it.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use sys::cgroup::{Group, Usage};
use sys::descriptor;
use sys::process::{Child, Exit};

use crate::cover_watch::CoverWatch;
use crate::error::Error;
use crate::event::Event;
use crate::handshake;
use crate::launch::Stdio;
use crate::linux::ahead::Ahead;
use crate::orphans::Orphans;
use crate::run_network::Visit;

/// What a sandbox's init is given from outside, beside its plan.
#[derive(Debug)]
pub struct InitChannels {
    /// Where the command's standard streams lead.
    pub stdio: Stdio,
    /// To the sidecar.
    pub link: OwnedFd,
    /// To whoever may ask for sockets of the sandbox's network, where there is somebody.
    pub broker: Option<OwnedFd>,
    /// At an engine: the networks of companions, on which its sidecar has a place.
    pub visits: Vec<Visit>,
    /// The namespaces it is to live in, where they were begun ahead.
    pub ahead: Option<Ahead>,
}

/// The sidecar, to be started while its sandbox is made: when, is for the backend to say.
pub trait SidecarStart {
    /// Starts it, once.
    ///
    /// # Errors
    /// When it cannot be started.
    fn start(&mut self) -> Result<(), Error>;

    /// The certificate of the run's authority, in PEM, from a sidecar that was started: asked for as late as can be. At an engine it
    /// is not waited for, but handed over once it is told: [`Started::hand_over`].
    ///
    /// # Errors
    /// When it told none in time.
    fn authority(&mut self) -> io::Result<Vec<u8>>;
}

/// How long a failed init may take to say why.
const LAST_WORD: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How long it is waited for a turn to take away, where there are turns.
pub(crate) const LONGEST_END: Duration = Duration::from_secs(120);
/// How long taking away may take, from when it may begin, and how long what was asked for last may be under way.
const LONGEST_TAKING: Duration = LONGEST_END.saturating_add(Duration::from_secs(30));
const UNDER_WAY: Duration = Duration::from_secs(1);

/// How a sandbox is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Init is killed, and the kernel ends every process with it.
    Kill,
    /// The same, and what stands around the sandbox may be given back only after it.
    Outlived,
    /// Init is hung up on, ends every process below it, and then itself.
    HangUp,
    /// The same, and what it takes away is waited for.
    TakeAway,
}

/// A sandbox whose init runs.
#[derive(Debug)]
pub struct Started {
    pub(crate) init: Child,
    pub(crate) control: OwnedFd,
    pub(crate) group: Option<Group>,
    /// Whether what is protected still is, where something is.
    pub(crate) cover_watch: Option<CoverWatch>,
    /// What keeps others from taking down what stands around its link, until this is dropped.
    pub(crate) firewall: Option<OwnedFd>,
    /// On which whoever makes the sandbox still waits for the certificate of the run's authority, where it does.
    pub(crate) hand: RefCell<Option<OwnedFd>>,
    /// On which whoever takes away behind the run is handed the run's mark of life, where somebody may.
    pub(crate) mark: Option<OwnedFd>,
    pub(crate) ending: Ending,
    /// What is left of the run where its init was killed, and the kernel ends nothing with it.
    pub(crate) orphans: Option<Orphans>,
}

/// What has become of what a sandbox's init takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// All of it is gone.
    All,
    /// Somebody takes it away behind the run, and waits for the run's mark: [`Started::hand_mark`].
    Behind,
    /// Init takes nothing away, or not all of it is gone.
    Unknown,
}

/// The status of an init that left it to somebody else to take away.
pub(crate) const BEHIND: i32 = 3;

impl Started {
    /// One with nothing beside its init, the line to it and its group.
    pub(crate) fn of(init: Child, control: OwnedFd, group: Option<Group>, ending: Ending) -> Self {
        let (hand, orphans) = (None.into(), None);
        Self { init, control, group, cover_watch: None, firewall: None, hand, mark: None, ending, orphans }
    }

    /// A descriptor that becomes readable when init says something, or is gone.
    #[must_use]
    pub fn events(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// The next thing init says; `None` when it is gone.
    ///
    /// # Errors
    /// Whatever the socket gives.
    pub fn next_event(&self) -> io::Result<Option<Event>> {
        Event::receive(self.control.as_fd())
    }

    /// Why init failed, if it has said so, or is about to.
    pub(crate) fn failure(&self) -> Option<Error> {
        let mut said = [PollFd::from_borrowed_fd(self.control.as_fd(), PollFlags::IN)];
        rustix::event::poll(&mut said, Some(&LAST_WORD)).ok().filter(|ready| *ready > 0)?;
        match self.next_event() {
            Ok(Some(Event::Failed(failure))) => Some(Error::Step(failure)),
            _ => None,
        }
    }

    /// Hands over the certificate of the run's authority, in PEM, to whoever waits for it: once, and whoever does not wait hears nothing.
    pub fn hand_over(&self, certificate: &[u8]) {
        if let Some(hand) = self.hand.borrow_mut().take() {
            // One that is gone has said why, or its end says it.
            let _ = descriptor::send(&hand, certificate, &[]);
        }
    }

    /// Passes a signal to the command's process group.
    pub fn signal(&self, signal: i32) {
        // Init may be gone already; then there is nobody to tell.
        let _ = handshake::send_signal(self.control.as_fd(), signal);
    }

    /// Ends init, and with it every process of the sandbox.
    pub fn kill(&self) {
        let _ = match self.ending {
            Ending::Kill | Ending::Outlived => self.init.signal(Signal::KILL),
            Ending::HangUp | Ending::TakeAway => {
                rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both).map_err(Into::into)
            }
        };
    }

    /// Whether the sandbox holds something that can be given back only when its init is gone.
    #[must_use]
    pub fn outlives_its_end(&self) -> bool {
        self.group.is_some() || matches!(self.ending, Ending::Outlived | Ending::TakeAway)
    }

    /// Hands the mark of life of a run that is over to whoever takes away behind it, who holds its lock from now on and removes it at
    /// the end.
    ///
    /// # Errors
    /// When nobody is there, who would have it.
    pub fn hand_mark(&self, mark: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
        let line = self.mark.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        descriptor::send(line, std::path::absolute(path)?.as_os_str().as_encoded_bytes(), &[mark])
    }

    /// Waits until init is gone, and says what it has taken away of what was its own to take. One that takes things away may
    /// hang with whoever has them: it is ended after a while.
    pub fn wait(&self) -> Taken {
        if self.ending == Ending::TakeAway {
            let mut gone = [PollFd::from_borrowed_fd(self.init.pidfd(), PollFlags::IN)];
            let _ = rustix::event::poll(&mut gone, Timespec::try_from(LONGEST_TAKING).ok().as_ref());
            let _ = self.init.signal(Signal::KILL);
        }
        let ended = self.init.wait();
        if let (Some(orphans), Ok(Exit::Signal(_))) = (&self.orphans, &ended) {
            orphans.end();
        }
        if self.ending == Ending::TakeAway && !matches!(ended, Ok(Exit::Code(_))) {
            // What it asked for last may still be made: whoever takes it away now looks after that.
            std::thread::sleep(UNDER_WAY);
        }
        match ended {
            Ok(Exit::Code(0)) if self.ending == Ending::TakeAway => Taken::All,
            Ok(Exit::Code(BEHIND)) if self.mark.is_some() => Taken::Behind,
            _ => Taken::Unknown,
        }
    }

    /// What the sandbox has used.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.group.as_ref().map(Group::usage)
    }

    /// Becomes readable when somebody on this machine may have replaced what is protected, where something is.
    #[must_use]
    pub fn protection(&self) -> Option<BorrowedFd<'_>> {
        self.cover_watch.as_ref().map(AsFd::as_fd)
    }

    /// What is not protected any more, because somebody on this machine replaced it: by its path in the workspace.
    #[must_use]
    pub fn unprotected(&self) -> Option<&Path> {
        self.cover_watch.as_ref().and_then(CoverWatch::broken)
    }

    /// Watches no more over what is protected: what held names is about to be taken away.
    pub fn release(&mut self) {
        self.cover_watch = None;
    }
}
