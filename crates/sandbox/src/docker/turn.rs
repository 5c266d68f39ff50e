//! Taking turns: of the runs of one person's that begin at once, a few make their containers at a time, and of those that end a few
//! take them away. An engine that is asked
//! for hundreds at once begins all of them and ends none for minutes, and whoever waits for one half of a run gives up on the other.
//!
//! A place is a name in the kernel's abstract space (unix(7)), which one process has until it lets go or ends, however that is.
//! Whoever finds no place for long enough goes on without: turns make runs faster, and are not what makes them safe.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{Receiver, Sender};

use super::streams::Word;
use crate::event::Failure;
use crate::started::LONGEST_END;

/// How many make their containers at the same time: more of them are not faster, on any number of processors that an engine
/// shares with its own locks.
const PLACES: usize = 8;
/// How long a run waits for its turn at an engine.
pub const LONGEST_TURN: Duration = Duration::from_secs(600);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(40);

/// How many take away behind their runs at the same time: an engine has done that within a second.
const PLACES_BEHIND: usize = 4;

/// A place, until it is dropped.
pub(super) struct Turn(Option<UnixListener>);

impl Turn {
    /// Waits for a place at the engine behind `socket`. What is said meanwhile is kept for later, but that the parent is gone.
    pub(super) async fn take(
        socket: &Path,
        words: &Sender<Word>,
        heard: &mut Receiver<Word>,
    ) -> Result<Self, Failure> {
        let until = Instant::now() + LONGEST_TURN;
        let mut said = Vec::new();
        let place = loop {
            if let Some(place) = free(socket) {
                break Some(place);
            }
            if Instant::now() > until {
                break None;
            }
            match tokio::time::timeout(LOOK, heard.recv()).await {
                Ok(None | Some(Word::ParentGone)) => {
                    let cause = "the run was ended before its turn came".into();
                    return Err(Failure { step: "wait for the engine".into(), cause });
                }
                Ok(Some(word)) => said.push(word),
                Err(_) => {}
            }
        };
        for word in said {
            // As many fit as could have been said at once.
            let _ = words.try_send(word);
        }
        Ok(Self(place))
    }

    /// Lets the next one begin.
    pub(super) fn end(self) {
        drop(self.0);
    }
}

/// Waits for a place among those that take away at the end of their runs: an engine that is asked for hundreds of that at once answers
/// none of them in time. Whoever finds no place for long enough goes on without.
pub(super) async fn await_end(socket: &Path) -> Option<UnixListener> {
    let until = Instant::now() + LONGEST_END;
    loop {
        let place = free_of("end", PLACES, socket);
        if place.is_some() || Instant::now() > until {
            return place;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// A place among those that take away behind their runs, at once or not at all.
pub(super) fn place_behind(socket: &Path) -> Option<UnixListener> {
    free_of("behind", PLACES_BEHIND, socket)
}

/// Waits to be the one who fills the pool. Nothing where somebody waits already: who counts after this moment counts for this one too.
pub(super) async fn await_filling(socket: &Path) -> Option<UnixListener> {
    let _next = free_of("fills-next", 1, socket)?;
    loop {
        if let Some(place) = free_of("fills", 1, socket) {
            return Some(place);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// A place that nobody has.
fn free(socket: &Path) -> Option<UnixListener> {
    free_of("turn", PLACES, socket)
}

fn free_of(what: &str, places: usize, socket: &Path) -> Option<UnixListener> {
    let user = rustix::process::geteuid().as_raw();
    let name = |place| format!("lockgate-{what}-{user}-{place}-{}", socket.display());
    (0..places).find_map(|place| {
        let name = name(place);
        let address = SocketAddr::from_abstract_name(&name.as_bytes()[..name.len().min(100)]).ok()?;
        UnixListener::bind_addr(&address).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_places_as_there_are_and_each_comes_back() {
        let here = std::env::temp_dir().join(format!("{}", std::process::id()));
        let mut all: Vec<UnixListener> = (0..PLACES).map(|_| free(&here).unwrap()).collect();
        assert!(free(&here).is_none());
        assert!(free(Path::new("/elsewhere/docker.sock")).is_some(), "another engine has its own");
        all.pop();
        assert!(free(&here).is_some());
    }

    #[tokio::test]
    async fn one_fills_and_one_waits_to_fill() {
        let here = std::env::temp_dir().join(format!("fills-{}", std::process::id()));
        let first = await_filling(&here).await;
        assert!(first.is_some());
        let mut second = std::pin::pin!(await_filling(&here));
        assert!(tokio::time::timeout(LOOK * 2, &mut second).await.is_err(), "two fill at once");
        assert!(await_filling(&here).await.is_none(), "two wait");
        drop(first);
        assert!(second.await.is_some());
    }

    #[test]
    fn whoever_waits_hears_that_the_run_is_over_and_keeps_the_rest() {
        let here = std::env::temp_dir().join(format!("{}-waits", std::process::id()));
        let all: Vec<UnixListener> = (0..PLACES).map(|_| free(&here).unwrap()).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (words, mut heard) = tokio::sync::mpsc::channel(4);
            words.try_send(Word::Signal(2)).unwrap();
            words.try_send(Word::ParentGone).unwrap();
            assert!(Turn::take(&here, &words, &mut heard).await.is_err());
            words.try_send(Word::Signal(15)).unwrap();
            let waits = Turn::take(&here, &words, &mut heard);
            let frees = async {
                tokio::time::sleep(LOOK * 3).await;
                drop(all);
            };
            let (turn, ()) = tokio::join!(waits, frees);
            assert!(turn.is_ok_and(|turn| turn.0.is_some()));
            assert_eq!(heard.try_recv(), Ok(Word::Signal(15)));
        });
    }
}
