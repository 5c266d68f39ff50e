//! The time that is left to what a command leaves running, once it is asked to end. Many programs have something to tidy up: `git gc` runs in
//! the background, and where it is killed its lock stays in the repository for hours.

use std::time::{Duration, Instant};

/// Enough to remove some files; nobody notices it at the end of a run.
pub(crate) const GRACE: Duration = Duration::from_millis(200);
/// The pauses between looks.
const SHORTEST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// Looks, less and less often, until it is over or the time has passed.
pub(crate) fn wait_until(mut is_over: impl FnMut() -> bool) {
    let end = Instant::now() + GRACE;
    let mut pause = SHORTEST_PAUSE;
    while !is_over() && Instant::now() < end {
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_is_looked_at_once_and_what_is_not_for_a_moment() {
        let mut looks = 0;
        wait_until(|| {
            looks += 1;
            true
        });
        assert_eq!(looks, 1);
        let began = Instant::now();
        wait_until(|| false);
        assert!(began.elapsed() >= GRACE);
    }
}
