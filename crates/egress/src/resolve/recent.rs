//! What is known of names for a while, of a bounded number of them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// Of how many names it is known. The one of which it has been known longest makes room.
const MOST: usize = 256;

/// What is known of each name, until it is older than so long.
#[derive(Debug)]
pub(super) struct Recent<T> {
    within: Duration,
    known: RefCell<HashMap<String, (Instant, T)>>,
}

impl<T: Clone> Recent<T> {
    pub(super) fn within(within: Duration) -> Self {
        Self { within, known: RefCell::default() }
    }

    pub(super) fn of(&self, name: &str) -> Option<T> {
        let known = self.known.borrow();
        known.get(name).filter(|(since, _)| since.elapsed() < self.within).map(|(_, what)| what.clone())
    }

    /// Returns what has become known of a name after an instant.
    pub(super) fn after(&self, name: &str, instant: Instant) -> Option<T> {
        let known = self.known.borrow();
        known.get(name).filter(|(since, _)| *since > instant).and_then(|_| self.of(name))
    }

    pub(super) fn note(&self, name: &str, what: T) {
        let mut known = self.known.borrow_mut();
        if known.len() >= MOST && !known.contains_key(name) {
            let oldest = known.iter().min_by_key(|(_, (since, _))| *since).map(|(name, _)| name.clone());
            oldest.and_then(|oldest| known.remove(&oldest));
        }
        known.insert(name.to_owned(), (Instant::now(), what));
    }

    pub(super) fn forget(&self, name: &str) {
        self.known.borrow_mut().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_known_for_a_while_of_the_last_names() {
        let within = Duration::from_secs(30);
        let recent = Recent::within(within);
        for number in 0..=MOST {
            recent.note(&number.to_string(), number);
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        assert_eq!((recent.of("0"), recent.of("1"), recent.of("256")), (None, Some(1), Some(256)));
        let before = Instant::now();
        assert_eq!(recent.after("256", before), None);
        tokio::time::advance(Duration::from_millis(10)).await;
        recent.note("256", 256);
        assert_eq!(recent.after("256", before), Some(256));
        recent.forget("256");
        assert_eq!(recent.of("256"), None);
        tokio::time::advance(within).await;
        assert_eq!(recent.of("255"), None);
    }
}
