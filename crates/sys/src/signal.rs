//! Signals: blocked and read from a descriptor, ignored, or sent.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::{Pid, Signal};

/// A signalfd(2) of blocked signals.
#[derive(Debug)]
pub struct Signals(OwnedFd);

/// The signals that a person or a supervisor sends, which are passed on to the command.
pub const FORWARDED: &[libc::c_int] = &[
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
];

impl Signals {
    /// Blocks the given signals for this process and opens a descriptor for them.
    ///
    /// # Errors
    /// When `pthread_sigmask(3)` or `signalfd(2)` fails.
    pub fn block(signals: &[i32]) -> io::Result<Self> {
        let set = set_of(signals);
        change_mask(libc::SIG_BLOCK, &set)?;
        // SAFETY: the set is initialised.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just opened this descriptor for us and nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Blocks the signals of [`FORWARDED`] and `more`, but those that are ignored.
    ///
    /// # Errors
    /// When `pthread_sigmask(3)` or `signalfd(2)` fails.
    pub fn block_forwarded(more: &[i32]) -> io::Result<Self> {
        ignore_sigpipe();
        Self::block_heeded(&[FORWARDED, more].concat())
    }

    /// Blocks the given signals. One that was ignored when this program began, as under `nohup`, stays ignored.
    ///
    /// # Errors
    /// When `pthread_sigmask(3)` or `signalfd(2)` fails.
    pub fn block_heeded(signals: &[i32]) -> io::Result<Self> {
        let heeded: Vec<i32> = signals.iter().copied().filter(|signal| !is_ignored(*signal)).collect();
        Self::block(&heeded)
    }

    /// Returns the number of the next pending signal, if there is one.
    ///
    /// # Errors
    /// When `read(2)` fails, except with `EAGAIN`.
    pub fn next(&self) -> io::Result<Option<i32>> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is as large as the record, and it is read only if the kernel has filled all of it.
        let read = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if read == size as isize {
            // SAFETY: the whole record was written.
            let number = unsafe { info.assume_init() }.ssi_signo;
            return Ok(i32::try_from(number).ok());
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            error => Err(error),
        }
    }
}

impl From<Signals> for OwnedFd {
    fn from(signals: Signals) -> Self {
        signals.0
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether a signal is ignored.
#[must_use]
pub fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the call changes nothing, and the record is read only if the kernel has written it.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// A stop of this process as by the terminal's Ctrl-Z, whose signal is blocked: asked for, and not carried out yet. A SIGCONT takes it back
/// meanwhile, signal(7).
#[derive(Debug)]
#[must_use = "the process goes on until it is carried out"]
pub struct TerminalStop(());

impl TerminalStop {
    /// Asks for it. Returns `None` where this process has been told to go on since, which the stop would undo.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    pub fn ask() -> io::Result<Option<Self>> {
        if is_pending(libc::SIGCONT) {
            return Ok(None);
        }
        rustix::process::kill_process(rustix::process::getpid(), Signal::TSTP)?;
        Ok(Some(Self(())))
    }

    /// Stops this process, unless that has been taken back: not at all in a process group that nobody would continue, an orphaned one of
    /// setpgid(2). Returns once it goes on.
    ///
    /// # Errors
    /// When the signal cannot be let through.
    pub fn carry_out(self) -> io::Result<()> {
        let_through(&[libc::SIGTSTP])?;
        change_mask(libc::SIG_BLOCK, &set_of(&[libc::SIGTSTP]))
    }
}

/// Lets signals through to this thread: one that came while it was blocked takes effect now.
///
/// # Errors
/// When `pthread_sigmask(3)` fails.
pub fn let_through(signals: &[i32]) -> io::Result<()> {
    change_mask(libc::SIG_UNBLOCK, &set_of(signals))
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set before it is read; the numbers are checked by `sigaddset`.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

/// Changes which signals this thread, and those that it starts from now on, have blocked.
fn change_mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the set is only read. No handler of ours could run.
    match unsafe { libc::pthread_sigmask(how, set, std::ptr::null_mut()) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Whether a blocked signal waits for this process.
fn is_pending(signal: i32) -> bool {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the set is read only if the kernel has written it.
    unsafe { libc::sigpending(set.as_mut_ptr()) == 0 && libc::sigismember(set.as_ptr(), signal) == 1 }
}

/// Blocks every signal that can be blocked, in this thread.
///
/// # Errors
/// When `pthread_sigmask(3)` fails.
pub fn block_all() -> io::Result<()> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigfillset` initialises the set before it is read.
    let all = unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    };
    change_mask(libc::SIG_BLOCK, &all)
}

/// Restores the default disposition of `SIGCHLD`. If the program was started with it ignored, the kernel would discard the exit status
/// of children, wait(2).
pub fn reset_sigchld() {
    // SAFETY: SIG_DFL is a valid disposition and replaces no handler of ours.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Ignores `SIGPIPE`, so that a write to a closed pipe is an error and does not end the process.
fn ignore_sigpipe() {
    // SAFETY: SIG_IGN is a valid disposition and replaces no handler of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Ignores `SIGXFSZ`, so that a write beyond the largest file size (`ulimit -f`) is an error and does not end the process.
pub fn ignore_sigxfsz() {
    // SAFETY: SIG_IGN is a valid disposition and replaces no handler of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Sends a signal to every other process of the pid namespace of which this process is the init. Does nothing if there is none.
///
/// # Errors
/// When this process is no init, for it would reach all that its user may, or `kill(2)` fails.
pub fn send_to_all_as_init(signal: Signal) -> io::Result<()> {
    if rustix::process::getpid() != Pid::INIT {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "only an init may signal all other processes",
        ));
    }
    // SAFETY: `kill` touches no memory of ours.
    if unsafe { libc::kill(-1, signal.as_raw()) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(error) }
}

/// Sends a signal, by its number, which may be a real-time signal's, to the process group that `leader` leads.
///
/// # Errors
/// When `kill(2)` fails.
pub fn send_to_group(leader: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: `kill` touches no memory of ours.
    match unsafe { libc::kill(-leader.as_raw_nonzero().get(), signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_came_while_it_was_blocked_takes_effect_once_it_is_let_through() {
        // The default action is to ignore it, so that this program goes on.
        let signals = Signals::block_heeded(&[libc::SIGWINCH]).unwrap();
        // SAFETY: the call touches no memory of ours.
        assert_eq!(unsafe { libc::raise(libc::SIGWINCH) }, 0);
        assert!(is_pending(libc::SIGWINCH));
        let_through(&[libc::SIGWINCH]).unwrap();
        assert!(!is_pending(libc::SIGWINCH) && signals.next().unwrap().is_none());
    }
}
