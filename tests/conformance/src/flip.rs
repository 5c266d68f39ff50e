//! Swaps files again and again while runs start, so that what a start opens is not what it finds a moment later.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::Backend;

/// The outcome of a start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Came {
    /// The run showed the declared file.
    In,
    /// The run was refused because of the other file.
    Refused,
    /// The declared file was missing, and nothing else was shown in its place.
    Neither,
}

/// How many times more starts are tried until each required outcome has been seen once.
const PATIENCE: usize = 4;

/// Starts runs while the two paths of each pair are exchanged atomically, so that neither name is ever free: an engine may create a missing
/// directory (Podman does, as root).
///
/// # Panics
/// When every start succeeded or none did: nothing is proven then.
pub fn while_flipping(pairs: &[[&Path; 2]], start: impl Fn() -> Came + Sync) {
    // An engine looks a path up some time after us, and at a different moment for each of several starts.
    let (starts, lanes, pauses): (usize, _, &[u64]) =
        if Backend::isolated().is_engine() { (24, 3, &[30, 250, 110, 400, 170, 320]) } else { (40, 1, &[0]) };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let forever = pairs.iter().cycle().zip(pauses.iter().cycle());
            for ([one, another], pause) in forever.take_while(|_| !over.load(Ordering::Relaxed)) {
                renameat_with(CWD, *one, CWD, *another, RenameFlags::EXCHANGE).unwrap();
                std::thread::sleep(Duration::from_millis(*pause));
            }
        });
        let _until_here = Over(&over);
        let seen = Mutex::new(Vec::new());
        let is_proven = |seen: &[Came]| seen.contains(&Came::In) && seen.contains(&Came::Refused);
        let goes_on = || {
            let seen = seen.lock().unwrap();
            seen.len() < starts || (seen.len() < PATIENCE * starts && !is_proven(&seen))
        };
        std::thread::scope(|scope| {
            for _ in 0..lanes {
                scope.spawn(|| {
                    while goes_on() {
                        let came = start();
                        seen.lock().unwrap().push(came);
                    }
                });
            }
        });
        let seen = seen.into_inner().unwrap();
        let count = |what| seen.iter().filter(|came| **came == what).count();
        let (came, refused) = (count(Came::In), count(Came::Refused));
        assert!(
            is_proven(&seen),
            "nothing flipped: of {} starts {came} came in, {refused} were refused",
            seen.len()
        );
    });
}

/// Ends the flipping when the test ends, even by a panic: a failed test would wait for it forever.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
