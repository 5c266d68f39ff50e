//! The remover: a process that removes a run's containers and network after the run has ended. The shim tells it which, once all
//! processes of the command are dead, all output is written and the sidecar has ended. The parent hands it the run lock, so that
//! nobody takes the run for one that was killed. What it cannot remove it notes in the lock file, and then unlocks that: the next
//! start tries again, and reports it.
//!
//! ```text
//! shim ── fork ──► waits ── containers ──► removes ──► has the run lock: deletes its file, or notes in it what is left
//!                    └──── end of file ──► ends             ▲
//! parent ── run lock ───────────────────────────────────────┘
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
use super::engine_error::error_text;
use super::names::network_name;
use super::slots::Slots;
use crate::plan::engine::EngineAt;
use crate::undo;

/// How long the removal may take.
const LONGEST: Duration = Duration::from_secs(60);
/// The longest list of containers, and the longest path.
const LONGEST_LIST: usize = 2048;
const LONGEST_PATH: usize = 4096;

/// The shim's socket to its remover, which ends if this is dropped.
pub(super) struct Remover(OwnedFd);

impl Remover {
    /// Starts the process, from one with a single thread. `lock_socket` is the socket on which it is handed the run lock.
    pub(super) fn start(at: &EngineAt, run: &RunId, lock_socket: &OwnedFd) -> io::Result<Self> {
        let (request, ours) = descriptor::message_pair()?;
        let keep = [request.as_fd(), lock_socket.as_fd()];
        background::start(&keep, || live(&request, lock_socket, at, run))?;
        Ok(Self(ours))
    }

    /// Hands it the removal of these containers and of the run's network. Returns `false` when too many removers are busy: the
    /// removal would take more than a moment, and the run should wait for it.
    pub(super) fn take(self, slots: &Slots, containers: &[String]) -> bool {
        let Some(slot) = slots.slot_behind() else { return false };
        descriptor::send(&self.0, containers.join("\n").as_bytes(), &[slot.as_fd()]).is_ok()
    }
}

/// Runs the remover. `request` brings the list of containers and a slot, `lock_socket` the run lock and its path.
fn live(request: &OwnedFd, lock_socket: &OwnedFd, at: &EngineAt, run: &RunId) -> Option<()> {
    let mut list = [0; LONGEST_LIST];
    let (list, slot) = descriptor::receive(request, &mut list).ok()?;
    if list.is_empty() {
        return Some(());
    }
    let removed = remove(at, run, std::str::from_utf8(list).ok()?);
    drop(slot);
    let mut path = [0; LONGEST_PATH];
    let (path, mut locks) = descriptor::receive(lock_socket, &mut path).ok()?;
    // If it was not handed over, the process that holds it does the rest.
    let mut lock = File::from(locks.pop()?);
    match removed {
        Ok(()) => std::fs::remove_file(Path::new(std::str::from_utf8(path).ok()?)).ok(),
        Err(cause) => lock.write_all(undo::left(&cause).as_bytes()).ok(),
    }
}

fn remove(at: &EngineAt, run: &RunId, containers: &str) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let removed = async {
        let engine = Engine::at(at).map_err(|error| error_text(&error))?;
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
