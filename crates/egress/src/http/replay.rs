//! A request's body, kept while it goes by, so that it can be sent once more: where an upstream refuses the credential, or gives the
//! request back unread. Only small ones are kept, and never longer than until the answer begins.

use std::cell::{Cell, RefCell};

use bytes::Bytes;

use super::head::BodyLength;

/// The largest body that is kept, and how much of all of them together is.
const LARGEST: usize = 64 * 1024;
const MOST_KEPT: usize = 16 * 1024 * 1024;

thread_local! {
    static KEPT: Cell<usize> = const { Cell::new(0) };
}

/// What of a body can be sent again.
pub(super) struct Again(RefCell<State>);

enum State {
    /// All of it, which came whole.
    Whole(Option<Bytes>),
    /// What has come so far.
    Coming(Kept),
    /// All of it, which came in pieces.
    Come(Kept),
    /// Nothing: it has gone by.
    Gone,
}

/// Octets that count among all that are kept.
#[derive(Default)]
struct Kept(Vec<u8>);

impl Kept {
    /// Takes a piece in, if there is room for it.
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

impl Again {
    /// Of a body that is at hand already.
    pub(super) fn whole(body: Option<Bytes>) -> Self {
        Self(RefCell::new(State::Whole(body)))
    }

    /// Of one that is still to come, as far as it may be small enough.
    pub(super) fn coming(length: BodyLength) -> Self {
        match length {
            BodyLength::Sized(size) if size > LARGEST as u64 => Self::gone(),
            _ => Self(RefCell::new(State::Coming(Kept::default()))),
        }
    }

    /// Of one that is not to be sent again.
    pub(super) fn gone() -> Self {
        Self(RefCell::new(State::Gone))
    }

    /// A piece goes by.
    pub(super) fn piece(&self, piece: &[u8]) {
        let mut state = self.0.borrow_mut();
        if let State::Coming(kept) = &mut *state
            && !kept.take(piece)
        {
            *state = State::Gone;
        }
    }

    /// Notes that all of it has gone by.
    pub(super) fn mark_received(&self) {
        let mut state = self.0.borrow_mut();
        if let State::Coming(kept) = &mut *state {
            *state = State::Come(std::mem::take(kept));
        }
    }

    /// It is not to be sent again.
    pub(super) fn let_go(&self) {
        *self.0.borrow_mut() = State::Gone;
    }

    /// Whether all of it is at hand.
    pub(super) fn is_at_hand(&self) -> bool {
        matches!(*self.0.borrow(), State::Whole(_) | State::Come(_))
    }

    /// The body, to be sent again; none where there is none, or it is not at hand.
    pub(super) fn body(&self) -> Option<Bytes> {
        match &*self.0.borrow() {
            State::Whole(body) => body.clone(),
            State::Come(kept) if !kept.0.is_empty() => Some(Bytes::copy_from_slice(&kept.0)),
            State::Come(_) | State::Coming(_) | State::Gone => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_small_is_kept_until_it_is_let_go() {
        let again = Again::coming(BodyLength::Chunked);
        again.piece(b"one ");
        again.piece(b"two");
        assert!(!again.is_at_hand() && again.body().is_none());
        again.mark_received();
        assert!(again.is_at_hand());
        assert_eq!(again.body().unwrap(), "one two");
        // Sent again, its pieces go by again.
        again.piece(b"one two");
        again.mark_received();
        assert_eq!((again.body().unwrap(), KEPT.get()), (Bytes::from("one two"), 7));
        again.let_go();
        assert!(!again.is_at_hand() && KEPT.get() == 0);
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
            let again = Again::coming(length);
            pieces.iter().for_each(|size| again.piece(&vec![b'x'; *size]));
            again.mark_received();
            assert_eq!(again.is_at_hand(), kept, "{length:?} {pieces:?}");
        }
        assert_eq!(KEPT.get(), 0);
    }

    #[test]
    fn all_together_are_bounded() {
        let many: Vec<Again> =
            (0..MOST_KEPT / LARGEST + 1).map(|_| Again::coming(BodyLength::Chunked)).collect();
        for again in &many {
            again.piece(&vec![b'x'; LARGEST]);
            again.mark_received();
        }
        assert_eq!(many.iter().filter(|again| !again.is_at_hand()).count(), 1);
        drop(many);
        assert_eq!(KEPT.get(), 0);
    }
}
