//! The replenisher: a process that fills the pool, for which neither the start nor the end of a run waits. It begins once the run
//! is over, or has lasted for a while. Of one user's replenishers one fills at a time, and one more waits. It finishes what it
//! began, also when the run is over, and removes what it could not finish; if it is killed, the next one removes what it left.
//!
//! ```text
//! shim ── fork ──► waits ── the command begins, then: a while or the end ──► fills ──► ends
//!                      └──── the end, and no command has begun ──────────────────────────┘
//! ```

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::{PipeFlags, pipe_with};

use super::engine::Engine;
use super::names::POOLED;
use super::pool::Member;
use super::prepare::{self, OwnImage};
use super::slots::Slots;
use super::{background, container};
use crate::plan::engine::EngineAt;

/// How long a run lasts before the pool is filled beside it.
const FILL_DELAY: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
/// The time left to a run that is over, for its last output.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// How long filling may take, and waiting for another replenisher.
const LONGEST: Duration = Duration::from_secs(60);
/// The longest pause, in milliseconds, after another process has filled the pool at the same time; and how many pauses.
const PAUSE: u64 = 500;
const PAUSES: usize = 8;

/// The shim's pipe to its replenisher, which fills the pool when told to, or when the run is over.
pub(super) struct Replenisher(OwnedFd);

impl Replenisher {
    /// Starts the process, from one with a single thread; with a pool of size 0, none.
    pub(super) fn start(at: &EngineAt, slots: &Slots, size: usize) -> io::Result<Option<Self>> {
        if size == 0 {
            return Ok(None);
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        background::start(&[read.as_fd()], || live(&read, at, slots, size))?;
        Ok(Some(Self(write)))
    }

    /// Reports that the command has begun.
    pub(super) fn announce_begun(&self) {
        let _ = rustix::io::write(&self.0, b"b");
    }
}

/// Runs the replenisher. `shim` brings an octet when the command begins, and ends with the run.
fn live(shim: &OwnedFd, at: &EngineAt, slots: &Slots, size: usize) -> Option<()> {
    if rustix::io::retry_on_intr(|| rustix::io::read(shim, &mut [0; 1])).ok()? == 0 {
        return Some(());
    }
    let over = rustix::event::poll(&mut [PollFd::new(shim, PollFlags::IN)], Some(&FILL_DELAY));
    if over != Ok(0) {
        std::thread::sleep(LAST_WORDS);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(async {
        let engine = Engine::at(at).ok()?;
        let _slot = tokio::time::timeout(LONGEST, slots.await_filling()).await.ok()??;
        tokio::time::timeout(LONGEST, fill(&engine, size)).await.ok()?
    })
}

/// Makes members until the pool has `size`, and never more: of several processes that fill it at once, one that counts too many
/// removes its own member before it was started.
async fn fill(engine: &Engine, size: usize) -> Option<()> {
    let own = prepare::own(engine).await.ok()?;
    let own = if own.id.is_none() { prepare::own(engine).await.ok()? } else { own };
    engine.make_pool_network().await.ok()?;
    for member in engine.members().await.ok()? {
        if member.is_left_over() || !member.is_untaken() && engine.is_lost(&member.id).await {
            let _ = engine.remove_container(&member.id).await;
        }
    }
    let mut pauses = 0;
    while waiting(engine, &own).await? < size {
        let name = format!("{POOLED}{}", uuid().ok()?);
        engine.make_container(&name, container::member(&own.image, &own.volume)).await.ok()?;
        let started = match waiting(engine, &own).await {
            Some(count) if count <= size => engine.start(&name).await.ok(),
            _ => None,
        };
        if started.is_none() {
            let _ = engine.remove_container(&name).await;
            pauses += 1;
            if pauses > PAUSES {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(random().ok()? % PAUSE)).await;
        }
    }
    Some(())
}

/// Counts the untaken members of this build, those being made included.
async fn waiting(engine: &Engine, own: &OwnImage) -> Option<usize> {
    let counts = |member: &&Member| member.is_of(own) && member.is_untaken();
    Some(engine.members().await.ok()?.iter().filter(counts).count())
}

/// Returns a random UUID, version 4 of RFC 9562.
pub(super) fn uuid() -> io::Result<String> {
    let number = (u128::from(random()?) << 64) | u128::from(random()?);
    let number = number & !(0xf << 76) & !(0b11 << 62) | (4 << 76) | (0b10 << 62);
    let text = format!("{number:032x}");
    Ok([&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]].join("-"))
}

fn random() -> io::Result<u64> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(random))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_name_is_a_uuid_of_version_four() {
        let name = super::uuid().unwrap();
        let lengths: Vec<usize> = name.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{name}");
        assert_eq!(name.as_bytes()[14], b'4', "{name}");
        assert!(b"89ab".contains(&name.as_bytes()[19]), "{name}");
        assert_ne!(name, super::uuid().unwrap());
    }
}
