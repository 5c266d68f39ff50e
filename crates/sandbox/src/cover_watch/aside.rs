//! Looks that are made by a thread of its own, now and then and whenever the kernel tells of a change. Who asks for one waits for it only so
//! long.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::event::epoll;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

/// The time between two looks where the kernel may not tell of a change.
const ROUND: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

type Look = dyn Fn() -> Vec<usize> + Send + Sync;

/// A clock beside the kernel's own notice, and the looks that they ask for.
pub(super) struct Aside {
    /// The watched directories once more. The kernel ends a watch when a descriptor of its directory is closed, whichever: so it ends here
    /// also if the thread, which holds the others, is held up.
    _watched: Vec<OwnedFd>,
    clock: OwnedFd,
    /// Becomes readable with the clock or the notice.
    either: OwnedFd,
    look: Arc<Look>,
    /// Begun by the first look: what starts a sandbox forks, and is one thread while it does.
    looker: OnceCell<Option<Looker>>,
}

/// The thread that looks, as it is asked.
struct Looker {
    questions: Sender<()>,
    answers: Receiver<Vec<usize>>,
    /// Whether a question has no answer yet.
    is_asked: Cell<bool>,
}

impl Aside {
    pub(super) fn beside(
        notice: impl AsFd,
        watched: &[OwnedFd],
        look: impl Fn() -> Vec<usize> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let clock = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let rounds = Itimerspec { it_interval: ROUND, it_value: ROUND };
        rustix::time::timerfd_settime(&clock, TimerfdTimerFlags::empty(), &rounds)?;
        let either = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, source) in [(0, clock.as_fd()), (1, notice.as_fd())] {
            epoll::add(&either, source, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        }
        let watched = watched.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        Ok(Self { _watched: watched, clock, either, look: Arc::new(look), looker: OnceCell::new() })
    }

    /// Asks for a look and waits so long for what it finds. If it takes longer, a later call returns that.
    pub(super) fn look(&self, patience: Duration) -> Vec<usize> {
        let _ = rustix::io::read(&self.clock, &mut [0; 8]); // begins the next round
        match self.looker.get_or_init(|| Looker::begin(&self.look).ok()) {
            Some(looker) => looker.look(patience),
            // Better late than never.
            None => (self.look)(),
        }
    }
}

impl Looker {
    fn begin(look: &Arc<Look>) -> io::Result<Self> {
        let (questions, asked) = channel();
        let (answered, answers) = channel();
        let look = Arc::clone(look);
        // Ends when nobody asks any more.
        thread::Builder::new()
            .name("lockgate-looks".into())
            .spawn(move || asked.iter().all(|()| answered.send(look()).is_ok()))?;
        Ok(Self { questions, answers, is_asked: Cell::new(false) })
    }

    fn look(&self, patience: Duration) -> Vec<usize> {
        // What was found by a question of before may be over; that it was so is enough.
        let before = if self.is_asked.get() { self.answer(patience) } else { Some(Vec::new()) };
        match before {
            Some(found) if found.is_empty() => {
                self.is_asked.set(self.questions.send(()).is_ok());
                self.answer(patience).unwrap_or_default()
            }
            found => found.unwrap_or_default(),
        }
    }

    fn answer(&self, patience: Duration) -> Option<Vec<usize>> {
        let found = self.answers.recv_timeout(patience).ok()?;
        self.is_asked.set(false);
        Some(found)
    }
}

impl AsFd for Aside {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.either.as_fd()
    }
}

impl fmt::Debug for Aside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aside").field("either", &self.either).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Instant;

    use super::*;

    #[test]
    fn who_asks_waits_only_so_long_and_is_told_what_was_found_later() {
        let (server, answers) = channel::<Vec<usize>>();
        let answers = Mutex::new(answers);
        let look = move || answers.lock().unwrap().recv().unwrap_or_default();
        let aside = Aside::beside(nothing_ever(), &[], look).unwrap();
        let (short, long) = (Duration::from_millis(5), Duration::from_secs(60));
        let began = Instant::now();
        for _ in 0..3 {
            assert!(aside.look(short).is_empty());
        }
        assert!(began.elapsed() < long);
        server.send(vec![2]).unwrap();
        assert_eq!(aside.look(long), [2]);
        // The next question is a new one.
        server.send(vec![]).unwrap();
        assert!(aside.look(long).is_empty());
        for found in [vec![], vec![0, 1]] {
            assert!(aside.look(short).is_empty());
            server.send(found).unwrap();
        }
        server.send(vec![7]).unwrap();
        assert_eq!(aside.look(long), [0, 1]);
    }

    /// A notice that never comes.
    fn nothing_ever() -> OwnedFd {
        epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()
    }
}
