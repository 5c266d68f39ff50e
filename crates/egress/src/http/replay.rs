//! Keeps a request's body while it is sent, so that it can be sent once more: where an upstream refuses the credential, or gives the
//! request back unread. Only small bodies are kept, and never longer than until the response begins.

use std::cell::{Cell, RefCell};

use bytes::Bytes;

use super::head::BodyLength;

/// The largest body that is kept, and the most octets that are kept of all bodies together.
const LARGEST: usize = 64 * 1024;
const MOST_KEPT: usize = 16 * 1024 * 1024;

thread_local! {
    static KEPT: Cell<usize> = const { Cell::new(0) };
}

/// A request's body, if it can be sent again.
pub(super) struct ReplayBuffer(RefCell<State>);

enum State {
    /// The whole body, which was at hand from the beginning.
    Whole(Option<Bytes>),
    /// The pieces that have been sent so far.
    Recording(Kept),
    /// The whole body, of which all pieces have been sent.
    Recorded(Kept),
    /// Nothing: the body cannot be sent again.
    Discarded,
}

/// Kept octets, counted in [`KEPT`].
#[derive(Default)]
struct Kept(Vec<u8>);

impl Kept {
    /// Keeps a piece if there is room for it, and returns whether there was.
    fn take(&mut self, piece: &[u8]) -> bool {
        let all = KEPT.get() + piece.len();
        let fits = self.0.len() + piece.len() <= LARGEST && all <= MOST_KEPT;
        if fits {
            KEPT.set(all);
            self.0.extend_from_slice(piece);
        }
        fits
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        KEPT.set(KEPT.get().saturating_sub(self.0.len()));
    }
}

impl ReplayBuffer {
    /// Holds a body that is at hand already.
    pub(super) fn whole(body: Option<Bytes>) -> Self {
        Self(RefCell::new(State::Whole(body)))
    }

    /// Records a body of this length that is still to come, unless it is too large.
    pub(super) fn recording(length: BodyLength) -> Self {
        match length {
            BodyLength::Sized(size) if size > LARGEST as u64 => Self::disabled(),
            _ => Self(RefCell::new(State::Recording(Kept::default()))),
        }
    }

    /// Records nothing: the body must not be sent again.
    pub(super) fn disabled() -> Self {
        Self(RefCell::new(State::Discarded))
    }

    /// Records a piece that is sent; discards all if there is no room for it.
    pub(super) fn record(&self, piece: &[u8]) {
        let mut state = self.0.borrow_mut();
        if let State::Recording(kept) = &mut *state
            && !kept.take(piece)
        {
            *state = State::Discarded;
        }
    }

    /// Notes that the whole body has been sent.
    pub(super) fn mark_complete(&self) {
        let mut state = self.0.borrow_mut();
        if let State::Recording(kept) = &mut *state {
            *state = State::Recorded(std::mem::take(kept));
        }
    }

    /// Discards what was recorded, and records nothing more.
    pub(super) fn discard(&self) {
        *self.0.borrow_mut() = State::Discarded;
    }

    /// Whether the whole body is at hand.
    pub(super) fn is_complete(&self) -> bool {
        matches!(*self.0.borrow(), State::Whole(_) | State::Recorded(_))
    }

    /// Returns the body; none if it is empty or not at hand.
    pub(super) fn body(&self) -> Option<Bytes> {
        match &*self.0.borrow() {
            State::Whole(body) => body.clone(),
            State::Recorded(kept) if !kept.0.is_empty() => Some(Bytes::copy_from_slice(&kept.0)),
            State::Recorded(_) | State::Recording(_) | State::Discarded => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_small_is_kept_until_it_is_let_go() {
        let buffer = ReplayBuffer::recording(BodyLength::Chunked);
        buffer.record(b"one ");
        buffer.record(b"two");
        assert!(!buffer.is_complete() && buffer.body().is_none());
        buffer.mark_complete();
        assert!(buffer.is_complete());
        assert_eq!(buffer.body().unwrap(), "one two");
        // A body that is sent again is not recorded again.
        buffer.record(b"one two");
        buffer.mark_complete();
        assert_eq!((buffer.body().unwrap(), KEPT.get()), (Bytes::from("one two"), 7));
        buffer.discard();
        assert!(!buffer.is_complete() && KEPT.get() == 0);
    }

    #[test]
    fn what_is_large_is_not() {
        for (length, pieces, kept) in [
            (BodyLength::Sized(LARGEST as u64), vec![LARGEST - 1, 1], true),
            (BodyLength::Sized(LARGEST as u64 + 1), vec![1], false),
            (BodyLength::Chunked, vec![LARGEST], true),
            (BodyLength::Chunked, vec![LARGEST, 1], false),
            (BodyLength::Chunked, vec![1, LARGEST], false),
        ] {
            let buffer = ReplayBuffer::recording(length);
            pieces.iter().for_each(|size| buffer.record(&vec![b'x'; *size]));
            buffer.mark_complete();
            assert_eq!(buffer.is_complete(), kept, "{length:?} {pieces:?}");
        }
        assert_eq!(KEPT.get(), 0);
    }

    #[test]
    fn all_together_are_bounded() {
        let many: Vec<ReplayBuffer> =
            (0..MOST_KEPT / LARGEST + 1).map(|_| ReplayBuffer::recording(BodyLength::Chunked)).collect();
        for buffer in &many {
            buffer.record(&vec![b'x'; LARGEST]);
            buffer.mark_complete();
        }
        assert_eq!(many.iter().filter(|buffer| !buffer.is_complete()).count(), 1);
        drop(many);
        assert_eq!(KEPT.get(), 0);
    }
}
