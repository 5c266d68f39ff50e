//! Takes away what an engine has of a run that is over, in a process of its own that the run's end does not wait for. It is told what
//! by the shim, once all that the command started is dead, all it wrote is written and the sidecar has said its last word; and is
//! handed the run's mark of life, so that nobody takes the run for one that was killed. What it cannot take away it says in the mark
//! and lets go of that: the next start tries again, and tells.
//!
//! ```text
//! shim ── fork ──► waits ── these containers ──► takes away ──► the mark is there: removes it, or says in it what is left
//!                      └──── the end ──► ends                         ▲
//! parent ── the mark ─────────────────────────────────────────────────┘
//! ```

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use policy::RunId;
use sys::descriptor;

use super::background;
use super::engine::Engine;
use super::engine_error::told;
use super::names::network_name;
use super::slots::Slots;
use crate::plan::engine::EngineAt;
use crate::undo;

/// How long it may take.
const LONGEST: Duration = Duration::from_secs(60);
/// The longest list of containers, and the longest path.
const LONGEST_LIST: usize = 2048;
const LONGEST_PATH: usize = 4096;

/// Whoever takes away behind a run, if it is asked to.
pub(super) struct Remover(OwnedFd);

impl Remover {
    /// Starts the process; `mark` is where it is handed the run's mark of life. This one has a single thread still.
    pub(super) fn start(at: &EngineAt, run: &RunId, mark: &OwnedFd) -> io::Result<Self> {
        let (word, ours) = descriptor::message_pair()?;
        background::start(&[word.as_fd(), mark.as_fd()], || live(&word, mark, at, run))?;
        Ok(Self(ours))
    }

    /// Leaves it to take these containers away, and the network of the run. It is not left to it where others are busy with the
    /// same: they would take longer than a moment, of which somebody should know.
    pub(super) fn take(self, slots: &Slots, containers: &[String]) -> bool {
        let Some(place) = slots.place_behind() else { return false };
        descriptor::send(&self.0, containers.join("\n").as_bytes(), &[place.as_fd()]).is_ok()
    }
}

fn live(word: &OwnedFd, mark: &OwnedFd, at: &EngineAt, run: &RunId) -> Option<()> {
    let mut list = [0; LONGEST_LIST];
    let (list, place) = descriptor::receive(word, &mut list).ok()?;
    if list.is_empty() {
        return Some(());
    }
    let taken = take_away(at, run, std::str::from_utf8(list).ok()?);
    drop(place);
    let mut path = [0; LONGEST_PATH];
    let (path, mut marks) = descriptor::receive(mark, &mut path).ok()?;
    // Without it, whoever has it looks after the rest.
    let mut mark = File::from(marks.pop()?);
    match taken {
        Ok(()) => std::fs::remove_file(Path::new(std::str::from_utf8(path).ok()?)).ok(),
        Err(cause) => mark.write_all(undo::left(&cause).as_bytes()).ok(),
    }
}

fn take_away(at: &EngineAt, run: &RunId, containers: &str) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let removed = async {
        let engine = Engine::at(at).map_err(|error| told(&error))?;
        let removed = containers.lines().map(|container| engine.remove_ended(container));
        let removed = futures_util::future::join_all(removed).await;
        let network = engine.remove_network(&network_name(run)).await;
        removed.into_iter().collect::<Result<(), String>>().and(network)
    };
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let late = |_| Err(format!("the engine took longer than {} s", LONGEST.as_secs()));
        tokio::time::timeout(LONGEST, removed).await.unwrap_or_else(late)
    })
}
