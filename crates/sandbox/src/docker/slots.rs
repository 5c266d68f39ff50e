//! Slots: a limit on how many runs of one user make or remove containers at an engine at the same time. An engine that is asked
//! for hundreds of containers at once begins all of them and finishes none for minutes, and a process that waits for one half
//! of a run gives up on the other.
//!
//! A slot is a lock on an empty file (flock(2)), which one process holds until it unlocks it or ends. The files are in a
//! directory that no other user may enter: a user who could open one could hold up everybody's runs. A run that gets no slot for
//! long enough, or finds no such directory, goes on without: slots make runs faster, and are not what makes them safe.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use super::streams::{Mailbox, ShimEvent};
use crate::started::LONGEST_END;

/// How many runs make their containers at the same time. More are not faster on any number of processors, because of the
/// engine's own locks.
const SLOTS: usize = 8;
/// How long a run waits for a slot at an engine.
pub const LONGEST_SLOT_WAIT: Duration = Duration::from_secs(600);
/// How often a waiting run tries again.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(40);

/// How many removers work behind their runs at the same time: an engine has done that within a second.
const SLOTS_BEHIND: usize = 4;

/// Signals that do not ask for the end of a command: they are kept for it. Any other signal asks for the end.
const NO_END: [Signal; 3] = [Signal::USR1, Signal::USR2, Signal::CONT];

/// The slots of one user at one engine.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    folder: PathBuf,
    /// The engine, as the prefix of the file names.
    engine: String,
}

impl Slots {
    /// Returns the slots at the engine behind `socket`, in a directory of the user's own, which is made when it is needed.
    pub(super) fn of(folder: &Path, socket: &Path) -> Self {
        Self { folder: folder.into(), engine: socket.display().to_string().replace('/', "%") }
    }

    /// Waits for a slot to remove containers at the end of a run, since an engine that is asked for hundreds of removals at once
    /// answers none in time. Returns `None` when the wait was too long.
    pub(super) async fn await_end(&self) -> Option<OwnedFd> {
        let until = Instant::now() + LONGEST_END;
        loop {
            let slot = self.take_free("end", SLOTS).ok()?;
            if slot.is_some() || Instant::now() > until {
                return slot;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Takes a slot to remove containers behind a run, without waiting.
    pub(super) fn slot_behind(&self) -> Option<OwnedFd> {
        self.take_free("behind", SLOTS_BEHIND).ok()?
    }

    /// Waits to be the process that fills the pool. Returns `None` when another waits already: that one will count the pool's
    /// members later than now, and so counts for this one too.
    pub(super) async fn await_filling(&self) -> Option<OwnedFd> {
        let _next = self.take_free("fills-next", 1).ok()??;
        loop {
            if let Some(slot) = self.take_free("fills", 1).ok()? {
                return Some(slot);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Takes one of `count` slots of a kind, if one is free.
    pub(super) fn take_free(&self, kind: &str, count: usize) -> io::Result<Option<OwnedFd>> {
        for number in 0..count {
            let file = self.file(&format!("{kind}-{number}"))?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(file.into())),
                Err(Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(None)
    }

    /// Opens a file of this engine's in the directory; makes it if it is not there.
    pub(super) fn file(&self, name: &str) -> io::Result<File> {
        let name = format!("{}.{name}", self.engine);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(self.open()?, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Opens the directory, if it belongs to this user and no other may enter it.
    fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let once = || rustix::fs::open(&self.folder, flags, Mode::empty());
        let folder = match once() {
            Err(Errno::NOENT) => {
                // Without its parents: a process that outlives its run must not make a removed state directory again.
                DirBuilder::new().mode(0o700).create(&self.folder)?;
                once()?
            }
            found => found?,
        };
        let about = rustix::fs::fstat(&folder)?;
        if about.st_uid != rustix::process::geteuid().as_raw() || about.st_mode & 0o077 != 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(folder)
    }
}

/// A slot to make containers, or the permission to go on without one, until it is dropped.
pub(super) struct Slot(Option<OwnedFd>);

impl Slot {
    /// Waits for a slot. Returns `None` when the run is over before that: its parent is gone, or passes on a signal that asks for
    /// the end. Other events go back into the mailbox.
    pub(super) async fn take(slots: &Slots, mailbox: &mut Mailbox) -> Option<Self> {
        let until = Instant::now() + LONGEST_SLOT_WAIT;
        let mut kept_events = Vec::new();
        let slot = loop {
            match slots.take_free("turn", SLOTS) {
                Ok(None) if Instant::now() <= until => {}
                found => break found.unwrap_or_default(),
            }
            match tokio::time::timeout(POLL_INTERVAL, mailbox.receiver.recv()).await {
                Ok(None | Some(ShimEvent::ParentGone)) => return None,
                Ok(Some(ShimEvent::Signal(number))) if NO_END.iter().all(|kept| kept.as_raw() != number) => {
                    return None;
                }
                Ok(Some(event)) => kept_events.push(event),
                Err(_) => {}
            }
        };
        for event in kept_events {
            // As many fit as could have waited at once.
            let _ = mailbox.sender.try_send(event);
        }
        Some(Self(slot))
    }

    /// Gives the slot to the next run.
    pub(super) fn end(self) {
        drop(self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Returns slots in a directory that does not exist yet.
    fn slots() -> (tempfile::TempDir, Slots) {
        let directory = tempfile::tempdir().unwrap();
        let slots = Slots::of(&directory.path().join("slots"), Path::new("/run/docker.sock"));
        (directory, slots)
    }

    fn all(slots: &Slots) -> Vec<OwnedFd> {
        (0..SLOTS).map(|_| slots.take_free("turn", SLOTS).unwrap().unwrap()).collect()
    }

    #[test]
    fn there_are_as_many_places_as_there_are_and_each_comes_back() {
        let (_directory, slots) = slots();
        let mut all = all(&slots);
        assert!(slots.take_free("turn", SLOTS).unwrap().is_none());
        let elsewhere = Slots::of(&slots.folder, Path::new("/elsewhere/docker.sock"));
        assert!(elsewhere.take_free("turn", SLOTS).unwrap().is_some(), "another engine has its own");
        all.pop();
        assert!(slots.take_free("turn", SLOTS).unwrap().is_some());
    }

    #[test]
    fn what_another_user_could_open_is_not_used() {
        let (directory, slots) = slots();
        drop(slots.take_free("turn", SLOTS).unwrap().unwrap());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&slots.folder), 0o700);
        let linked = Slots { folder: directory.path().join("link"), ..slots.clone() };
        std::os::unix::fs::symlink(&slots.folder, &linked.folder).unwrap();
        assert!(linked.take_free("turn", SLOTS).is_err());
        for mode in [0o750, 0o701, 0o777] {
            std::fs::set_permissions(&slots.folder, PermissionsExt::from_mode(mode)).unwrap();
            assert!(slots.take_free("turn", SLOTS).is_err(), "{mode:o}");
        }
    }

    #[tokio::test]
    async fn whoever_has_no_folder_goes_on_without() {
        let (_directory, slots) = slots();
        let slots = Slots { folder: "/proc/nowhere".into(), ..slots };
        let mut mailbox = Mailbox::new();
        let taken = tokio::time::timeout(POLL_INTERVAL, Slot::take(&slots, &mut mailbox)).await;
        assert!(taken.unwrap().is_some_and(|slot| slot.0.is_none()));
        assert!(tokio::time::timeout(POLL_INTERVAL, slots.await_end()).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn one_fills_and_one_waits_to_fill() {
        let (_directory, slots) = slots();
        let first = slots.await_filling().await;
        assert!(first.is_some());
        let mut second = std::pin::pin!(slots.await_filling());
        assert!(tokio::time::timeout(POLL_INTERVAL * 2, &mut second).await.is_err(), "two fill at once");
        assert!(slots.await_filling().await.is_none(), "two wait");
        drop(first);
        assert!(second.await.is_some());
    }

    #[tokio::test]
    async fn whoever_waits_hears_that_the_run_is_over_and_keeps_the_rest() {
        let (_directory, slots) = slots();
        let all = all(&slots);
        let mut mailbox = Mailbox::new();
        for over in
            [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].map(|it| ShimEvent::Signal(it.as_raw()))
        {
            mailbox.sender.try_send(over).unwrap();
            let taken = tokio::time::timeout(POLL_INTERVAL * 100, Slot::take(&slots, &mut mailbox)).await;
            assert!(taken.unwrap().is_none());
        }
        mailbox.sender.try_send(ShimEvent::Signal(Signal::USR1.as_raw())).unwrap();
        mailbox.sender.try_send(ShimEvent::ParentGone).unwrap();
        assert!(Slot::take(&slots, &mut mailbox).await.is_none());
        mailbox.sender.try_send(ShimEvent::Signal(Signal::USR2.as_raw())).unwrap();
        let waits = Slot::take(&slots, &mut mailbox);
        let frees = async {
            tokio::time::sleep(POLL_INTERVAL * 3).await;
            drop(all);
        };
        let (slot, ()) = tokio::join!(waits, frees);
        assert!(slot.is_some_and(|slot| slot.0.is_some()));
        assert_eq!(mailbox.receiver.try_recv(), Ok(ShimEvent::Signal(Signal::USR2.as_raw())));
    }
}
