//! Taking slots: of the runs of one person's that begin at once, a few make their containers at a time, and of those that end a few
//! take them away. An engine that is asked
//! for hundreds at once begins all of them and ends none for minutes, and whoever waits for one half of a run gives up on the other.
//!
//! A place is a lock on an empty file (flock(2)), which one process has until it lets go or ends, however that is. The files are in a
//! folder that nobody else may look into: whoever could open one could hold up everybody's runs. Whoever finds no place for
//! long enough, or no such folder, goes on without: slots make runs faster, and are not what makes them safe.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use tokio::sync::mpsc::{Receiver, Sender};

use super::streams::Word;
use crate::started::LONGEST_END;

/// How many make their containers at the same time: more of them are not faster, on any number of processors that an engine
/// shares with its own locks.
const PLACES: usize = 8;
/// How long a run waits for its slot at an engine.
pub const LONGEST_TURN: Duration = Duration::from_secs(600);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(40);

/// How many take away behind their runs at the same time: an engine has done that within a second.
const PLACES_BEHIND: usize = 4;

/// What may be sent to a command without an end in mind: kept for it. Whatever else comes asks for the end.
const NO_END: [Signal; 3] = [Signal::USR1, Signal::USR2, Signal::CONT];

/// Where the runs of one person take slots at one engine.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    folder: PathBuf,
    /// The engine, as the names of the files begin.
    engine: String,
}

impl Slots {
    /// Those at the engine behind `socket`, in a folder of the person's own, which is made when it is needed.
    pub(super) fn of(folder: &Path, socket: &Path) -> Self {
        Self { folder: folder.into(), engine: socket.display().to_string().replace('/', "%") }
    }

    /// Waits for a place among those that take away at the end of their runs: an engine that is asked for hundreds of that at once
    /// answers none of them in time. Whoever finds no place for long enough goes on without.
    pub(super) async fn await_end(&self) -> Option<OwnedFd> {
        let until = Instant::now() + LONGEST_END;
        loop {
            let place = self.free("end", PLACES).ok()?;
            if place.is_some() || Instant::now() > until {
                return place;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// A place among those that take away behind their runs, at once or not at all.
    pub(super) fn place_behind(&self) -> Option<OwnedFd> {
        self.free("behind", PLACES_BEHIND).ok()?
    }

    /// Waits to be the one who fills the pool. Nothing where somebody waits already: who counts after this moment counts for this one
    /// too.
    pub(super) async fn await_filling(&self) -> Option<OwnedFd> {
        let _next = self.free("fills-next", 1).ok()??;
        loop {
            if let Some(place) = self.free("fills", 1).ok()? {
                return Some(place);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// A place that nobody has, where there is one.
    fn free(&self, what: &str, places: usize) -> io::Result<Option<OwnedFd>> {
        let folder = self.open()?;
        for place in 0..places {
            let name = format!("{}.{what}-{place}", self.engine);
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&folder, name, flags, Mode::RUSR | Mode::WUSR)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(file)),
                Err(Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(None)
    }

    /// The folder, if it is this user's and nobody else's.
    fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let once = || rustix::fs::open(&self.folder, flags, Mode::empty());
        let folder = match once() {
            Err(Errno::NOENT) => {
                // Not what is above it: a state directory that was removed is not made again by whoever outlives its runs.
                DirBuilder::new().mode(0o700).create(&self.folder)?;
                once()?
            }
            opened => opened?,
        };
        let about = rustix::fs::fstat(&folder)?;
        if about.st_uid != rustix::process::geteuid().as_raw() || about.st_mode & 0o077 != 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(folder)
    }
}

/// A place among those that make their containers, until it is dropped.
pub(super) struct Slot(Option<OwnedFd>);

impl Slot {
    /// Waits for a place; `None` where the run is over before that: its parent is gone, or hands on a signal that asks for the end.
    /// What else is said meanwhile is kept for later.
    pub(super) async fn take(
        slots: &Slots,
        words: &Sender<Word>,
        heard: &mut Receiver<Word>,
    ) -> Option<Self> {
        let until = Instant::now() + LONGEST_TURN;
        let mut said = Vec::new();
        let place = loop {
            match slots.free("slot", PLACES) {
                Ok(None) if Instant::now() <= until => {}
                found => break found.unwrap_or_default(),
            }
            match tokio::time::timeout(LOOK, heard.recv()).await {
                Ok(None | Some(Word::ParentGone)) => return None,
                Ok(Some(Word::Signal(number))) if NO_END.iter().all(|kept| kept.as_raw() != number) => {
                    return None;
                }
                Ok(Some(word)) => said.push(word),
                Err(_) => {}
            }
        };
        for word in said {
            // As many fit as could have been said at once.
            let _ = words.try_send(word);
        }
        Some(Self(place))
    }

    /// Lets the next one begin.
    pub(super) fn end(self) {
        drop(self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Slots at an engine, in a folder that is not there yet.
    fn slots() -> (tempfile::TempDir, Slots) {
        let directory = tempfile::tempdir().unwrap();
        let slots = Slots::of(&directory.path().join("slots"), Path::new("/run/docker.sock"));
        (directory, slots)
    }

    fn all(slots: &Slots) -> Vec<OwnedFd> {
        (0..PLACES).map(|_| slots.free("slot", PLACES).unwrap().unwrap()).collect()
    }

    #[test]
    fn there_are_as_many_places_as_there_are_and_each_comes_back() {
        let (_directory, slots) = slots();
        let mut all = all(&slots);
        assert!(slots.free("slot", PLACES).unwrap().is_none());
        let elsewhere = Slots::of(&slots.folder, Path::new("/elsewhere/docker.sock"));
        assert!(elsewhere.free("slot", PLACES).unwrap().is_some(), "another engine has its own");
        all.pop();
        assert!(slots.free("slot", PLACES).unwrap().is_some());
    }

    #[test]
    fn what_another_user_could_open_is_not_used() {
        let (directory, slots) = slots();
        drop(slots.free("slot", PLACES).unwrap().unwrap());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&slots.folder), 0o700);
        let linked = Slots { folder: directory.path().join("link"), ..slots.clone() };
        std::os::unix::fs::symlink(&slots.folder, &linked.folder).unwrap();
        assert!(linked.free("slot", PLACES).is_err());
        for mode in [0o750, 0o701, 0o777] {
            std::fs::set_permissions(&slots.folder, PermissionsExt::from_mode(mode)).unwrap();
            assert!(slots.free("slot", PLACES).is_err(), "{mode:o}");
        }
    }

    #[tokio::test]
    async fn whoever_has_no_folder_goes_on_without() {
        let (_directory, slots) = slots();
        let slots = Slots { folder: "/proc/nowhere".into(), ..slots };
        let (words, mut heard) = tokio::sync::mpsc::channel(4);
        let taken = tokio::time::timeout(LOOK, Slot::take(&slots, &words, &mut heard)).await;
        assert!(taken.unwrap().is_some_and(|slot| slot.0.is_none()));
        assert!(tokio::time::timeout(LOOK, slots.await_end()).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn one_fills_and_one_waits_to_fill() {
        let (_directory, slots) = slots();
        let first = slots.await_filling().await;
        assert!(first.is_some());
        let mut second = std::pin::pin!(slots.await_filling());
        assert!(tokio::time::timeout(LOOK * 2, &mut second).await.is_err(), "two fill at once");
        assert!(slots.await_filling().await.is_none(), "two wait");
        drop(first);
        assert!(second.await.is_some());
    }

    #[tokio::test]
    async fn whoever_waits_hears_that_the_run_is_over_and_keeps_the_rest() {
        let (_directory, slots) = slots();
        let all = all(&slots);
        let (words, mut heard) = tokio::sync::mpsc::channel(4);
        for over in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].map(|it| Word::Signal(it.as_raw()))
        {
            words.try_send(over).unwrap();
            let taken = tokio::time::timeout(LOOK * 100, Slot::take(&slots, &words, &mut heard)).await;
            assert!(taken.unwrap().is_none());
        }
        words.try_send(Word::Signal(Signal::USR1.as_raw())).unwrap();
        words.try_send(Word::ParentGone).unwrap();
        assert!(Slot::take(&slots, &words, &mut heard).await.is_none());
        words.try_send(Word::Signal(Signal::USR2.as_raw())).unwrap();
        let waits = Slot::take(&slots, &words, &mut heard);
        let frees = async {
            tokio::time::sleep(LOOK * 3).await;
            drop(all);
        };
        let (slot, ()) = tokio::join!(waits, frees);
        assert!(slot.is_some_and(|slot| slot.0.is_some()));
        assert_eq!(heard.try_recv(), Ok(Word::Signal(Signal::USR2.as_raw())));
    }
}
