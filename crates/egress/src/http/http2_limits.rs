//! Bounds on all HTTP/2 connections together: one budget of octets for their windows, and one number of permits for their streams.
//! The bounds of one connection and of one stream do not limit their sum.

use std::cell::Cell;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::connection_slots::most_streams;

/// The budget of all windows. A connection takes at most an eighth of what is left, so that the first ones get all that they ask for.
const ALL_WINDOWS: u32 = 256 * 1024 * 1024;
const LARGEST_PART: u32 = 8;
/// The smallest window of a connection: HTTP/2 has none smaller at its beginning (RFC 9113 §6.9.2).
const SMALLEST_WINDOW: u32 = 65_535;

thread_local! {
    static LEFT: Cell<u32> = const { Cell::new(ALL_WINDOWS) };
    static STREAMS: Arc<Semaphore> = Arc::new(Semaphore::new(most_streams()));
}

/// The window of one connection, returned to the budget on drop.
pub(super) struct Window(u32);

impl Window {
    /// Takes a window of at most this size; less if many are open.
    pub(super) fn take(most: u32) -> Self {
        let left = LEFT.get();
        let taken = most.min(left / LARGEST_PART);
        LEFT.set(left - taken);
        Self(taken)
    }

    pub(super) fn octets(&self) -> u32 {
        self.0.max(SMALLEST_WINDOW)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        LEFT.set(LEFT.get() + self.0);
    }
}

/// Returns how many streams one connection may have, of at most this many: no more than there are for all.
pub(super) fn streams_of_one(most: u32) -> u32 {
    u32::try_from(most_streams()).map_or(most, |all| all.min(most))
}

/// Takes a permit for one more stream, if there is one left.
pub(super) fn stream_permit() -> Option<OwnedSemaphorePermit> {
    STREAMS.with(Arc::clone).try_acquire_owned().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 16 * 1024 * 1024;

    #[test]
    fn windows_are_smaller_where_many_are_open() {
        let first: Vec<Window> = (0..8).map(|_| Window::take(MOST)).collect();
        assert!(first.iter().all(|window| window.octets() == MOST));
        let many: Vec<Window> = (0..1000).map(|_| Window::take(MOST)).collect();
        assert!(many.iter().zip(&many[1..]).all(|(one, next)| next.octets() <= one.octets()));
        assert_eq!(many[999].octets(), SMALLEST_WINDOW);
        let taken: u32 = first.iter().chain(&many).map(|window| window.0).sum();
        assert!(taken <= ALL_WINDOWS, "{taken}");
        drop((first, many));
        assert_eq!((LEFT.get(), Window::take(MOST).octets()), (ALL_WINDOWS, MOST));
    }

    #[test]
    fn streams_have_so_many_places() {
        let places: Vec<_> = (0..most_streams()).map(|_| stream_permit().unwrap()).collect();
        assert!(stream_permit().is_none());
        drop(places);
        assert!(stream_permit().is_some());
    }
}
