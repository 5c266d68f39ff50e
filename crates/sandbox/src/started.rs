//! A started sandbox, as its parent sees it.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use sys::cgroup::{Group, Usage};
use sys::descriptor;
use sys::process::{Child, Exit};

use crate::cover_watch::CoverWatch;
use crate::descent::is_stopped_below;
use crate::error::Error;
use crate::event::Event;
use crate::handshake;
use crate::launch::Stdio;
use crate::linux::ahead::Ahead;
use crate::orphans::Orphans;
use crate::run_network::Visit;

/// The sockets and descriptors that a sandbox's init gets, beside its plan.
#[derive(Debug)]
pub struct InitChannels {
    /// The command's standard streams.
    pub stdio: Stdio,
    /// The socket to the sidecar.
    pub sidecar: OwnedFd,
    /// The inner end of the socket broker's line, if there is one.
    pub broker: Option<OwnedFd>,
    /// At an engine: the networks of companions that its sidecar visits.
    pub visits: Vec<Visit>,
    /// The namespaces that were made ahead, if they were.
    pub ahead: Option<Ahead>,
}

/// A sidecar that the backend starts while it makes the sandbox.
pub trait SidecarStart {
    /// Starts the sidecar. Called once.
    ///
    /// # Errors
    /// When it cannot be started.
    fn start(&mut self) -> Result<(), Error>;

    /// Waits for the certificate of the run's authority, in PEM, from the started sidecar. Called as late as possible. At an engine
    /// nobody waits for it here: it is handed over when it comes, by [`Started::hand_over`].
    ///
    /// # Errors
    /// When the sidecar sends none in time.
    fn authority(&mut self) -> io::Result<Vec<u8>>;
}

/// The longest wait for a failed init's reason.
const LAST_WORD: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The longest wait for an init that has reported the command's end.
const LONGEST_DYING: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// The longest wait for processes that were told to stop. One may be in a process group that the signal does not reach, in a backend
/// without a pid namespace.
const LONGEST_STOPPING: Duration = Duration::from_secs(2);

/// The longest wait for a slot to remove things at an engine.
pub(crate) const LONGEST_END: Duration = Duration::from_secs(120);
/// The longest time for removing things at an engine, the wait for a slot included; and the longest time for which the engine may still
/// work on the last request.
const LONGEST_TAKING: Duration = LONGEST_END.saturating_add(Duration::from_secs(30));
const UNDER_WAY: Duration = Duration::from_secs(1);

/// The longest time in which an init that was hung up on ends what is below it.
const LONGEST_HANGING_UP: Duration = Duration::from_secs(30);

/// How a sandbox is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Teardown {
    /// Init is killed, and the kernel ends every process with it.
    Kill,
    /// Init is killed, and the firewall around the sandbox is removed only after that.
    Outlived,
    /// Init's control socket is shut down. Init ends every process below it, and then itself. The command has the same user and may keep
    /// init from that: a second [`Started::kill`] then kills init, or [`Started::wait`] does after a while, and the parent ends the rest.
    HangUp,
    /// Init's control socket is shut down, and the parent waits for it to remove things at an engine.
    TakeAway,
}

/// A started sandbox.
#[derive(Debug)]
pub struct Started {
    pub(crate) init: Child,
    pub(crate) control: OwnedFd,
    pub(crate) group: Option<Group>,
    /// The watch over the covers of protected paths, if there are any.
    pub(crate) cover_watch: Option<CoverWatch>,
    /// The socket that owns the link's firewall, so that nobody else can remove it until this is dropped.
    pub(crate) firewall: Option<OwnedFd>,
    /// The socket by which the sandbox's maker gets the certificate of the run's authority, if it still waits for one.
    pub(crate) hand: RefCell<Option<OwnedFd>>,
    /// The socket by which the remover gets the run lock, if a remover may clean up after the run.
    pub(crate) remover: Option<OwnedFd>,
    pub(crate) teardown: Teardown,
    /// Whether init was hung up on.
    pub(crate) hung_up: Cell<bool>,
    /// The processes to end if init is killed, in a backend without a pid namespace.
    pub(crate) orphans: Option<Orphans>,
}

/// Whether everything that a sandbox's init removes is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Everything is gone.
    All,
    /// A remover process removes it after the run, and waits for the run lock: [`Started::hand_run_lock`].
    Behind,
    /// Init removes nothing, or not everything is gone.
    Unknown,
}

/// An init that has reported the command's end, and comes to its own.
#[derive(Debug)]
pub struct EndingInit(Child);

impl EndingInit {
    /// Reaps init, if nobody has done so yet. One that does not come to its end is left alone after a while.
    pub fn bury(&self) {
        let mut gone = [PollFd::from_borrowed_fd(self.0.pidfd(), PollFlags::IN)];
        let _ = rustix::event::poll(&mut gone, Some(&LONGEST_DYING));
        let _ = self.0.try_wait();
    }
}

/// The exit status of an init that left the removal to a remover process.
pub(crate) const BEHIND: i32 = 3;

impl Started {
    /// Returns a sandbox with its init, control socket and group alone.
    pub(crate) fn of(init: Child, control: OwnedFd, group: Option<Group>, teardown: Teardown) -> Self {
        Self {
            init,
            control,
            group,
            cover_watch: None,
            firewall: None,
            hand: None.into(),
            remover: None,
            teardown,
            hung_up: false.into(),
            orphans: None,
        }
    }

    /// Returns a descriptor that becomes readable when init reports an event, or is gone.
    #[must_use]
    pub fn events(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Receives init's next event. Returns `None` if init is gone.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn next_event(&self) -> io::Result<Option<Event>> {
        let mut event = Event::receive(self.control.as_fd())?;
        if let Some(Event::Started { shown, .. }) = &mut event
            && let (Some(watch), Some(shown)) = (&self.cover_watch, shown.take())
        {
            watch.look_at(shown);
        }
        Ok(event)
    }

    /// Returns the reason why init failed, if it reports one within a short time.
    pub(crate) fn failure(&self) -> Option<Error> {
        let mut said = [PollFd::from_borrowed_fd(self.control.as_fd(), PollFlags::IN)];
        rustix::event::poll(&mut said, Some(&LAST_WORD)).ok().filter(|ready| *ready > 0)?;
        match self.next_event() {
            Ok(Some(Event::Failed(failure))) => Some(Error::Step(failure)),
            _ => None,
        }
    }

    /// Hands the certificate of the run's authority, in PEM, to the sandbox's maker, if it waits for one. Does so once.
    pub fn hand_over(&self, certificate: &[u8]) {
        if let Some(hand) = self.hand.borrow_mut().take() {
            // A maker that is gone has reported why, or its end shows it.
            let _ = descriptor::send(&hand, certificate, &[]);
        }
    }

    /// Passes a signal to the command's process group.
    pub fn signal(&self, signal: i32) {
        // Init may be gone already, and then needs no signal.
        let _ = handshake::send_signal(self.control.as_fd(), signal);
    }

    /// Stops every process of the sandbox, and waits until they are. A signal is only sent at once: a process that waits for input would
    /// still take what is typed before it comes to the signal.
    pub fn suspend(&self) {
        self.signal(Signal::STOP.as_raw());
        // An engine's processes are not below init, and read no terminal of the caller's.
        let end = Instant::now() + LONGEST_STOPPING;
        while self.teardown != Teardown::TakeAway
            && !is_stopped_below(self.init.pid())
            && Instant::now() < end
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends init, and with it every process of the sandbox.
    pub fn kill(&self) {
        let hang_up = || rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both);
        let _ = match self.teardown {
            Teardown::Kill | Teardown::Outlived => self.init.signal(Signal::KILL),
            Teardown::HangUp if self.hung_up.replace(true) => self.init.signal(Signal::KILL),
            // The command may have stopped it.
            Teardown::HangUp => hang_up().map_err(Into::into).and_then(|()| self.init.signal(Signal::CONT)),
            Teardown::TakeAway => hang_up().map_err(Into::into),
        };
    }

    /// Whether something of the sandbox can be given back only after its init is gone.
    #[must_use]
    pub fn outlives_its_end(&self) -> bool {
        self.group.is_some() || matches!(self.teardown, Teardown::Outlived | Teardown::TakeAway)
    }

    /// Hands the lock of a finished run to the remover, which holds it from now on and removes its file at the end.
    ///
    /// # Errors
    /// When there is no remover.
    pub fn hand_run_lock(&self, lock: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
        let remover = self.remover.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        descriptor::send(remover, std::path::absolute(path)?.as_os_str().as_encoded_bytes(), &[lock])
    }

    /// Waits until init is gone. Returns whether everything that it removes is gone. Kills an init that has things to do after a while: it
    /// may hang with the engine, or the command may have stopped it.
    pub fn wait(&self) -> Taken {
        let longest = match self.teardown {
            Teardown::Kill | Teardown::Outlived => None,
            Teardown::HangUp => Some(LONGEST_HANGING_UP),
            Teardown::TakeAway => Some(LONGEST_TAKING),
        };
        if let Some(longest) = longest {
            let mut gone = [PollFd::from_borrowed_fd(self.init.pidfd(), PollFlags::IN)];
            let _ = rustix::event::poll(&mut gone, Timespec::try_from(longest).ok().as_ref());
            let _ = self.init.signal(Signal::KILL);
        }
        let ended = self.init.wait();
        if let (Some(orphans), Ok(Exit::Signal(_))) = (&self.orphans, &ended) {
            orphans.end();
        }
        if self.teardown == Teardown::TakeAway && !matches!(ended, Ok(Exit::Code(_))) {
            // The engine may still work on init's last request. The removal must begin after that.
            std::thread::sleep(UNDER_WAY);
        }
        match ended {
            Ok(Exit::Code(0)) if self.teardown == Teardown::TakeAway => Taken::All,
            Ok(Exit::Code(BEHIND)) if self.remover.is_some() => Taken::Behind,
            _ => Taken::Unknown,
        }
    }

    /// Returns sentences about processes of the run that go on, because nobody here may end them.
    #[must_use]
    pub fn left(&self) -> Vec<String> {
        self.orphans.as_ref().map(|orphans| orphans.left(self.init.pid())).unwrap_or_default()
    }

    /// Gives up all that is held of the sandbox but its init.
    #[must_use]
    pub fn into_init(self) -> EndingInit {
        EndingInit(self.init)
    }

    /// Returns the sandbox's resource usage, if it has a control group of ours.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.group.as_ref().map(Group::usage)
    }

    /// Returns a descriptor that becomes readable when somebody on this machine may have replaced a protected path.
    #[must_use]
    pub fn protection(&self) -> Option<BorrowedFd<'_>> {
        self.cover_watch.as_ref().map(AsFd::as_fd)
    }

    /// Returns the paths in the workspace that are not protected any more, because somebody on this machine replaced them. Waits so long
    /// for the server of a file system; where it takes longer, a later call returns what is found.
    #[must_use]
    pub fn unprotected(&self, patience: Duration) -> Vec<&Path> {
        self.cover_watch.as_ref().map(|watch| watch.broken(patience)).unwrap_or_default()
    }

    /// Stops watching protected paths, before the placeholders are removed.
    pub fn stop_watching_covers(&mut self) {
        self.cover_watch = None;
    }
}
