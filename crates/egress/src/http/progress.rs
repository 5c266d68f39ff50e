//! How far an attempt to send a request has come. The two futures that send the request and pass the response on tell each other by it.

use std::cell::Cell;

/// How far one attempt to send a request has come.
pub(super) struct Progress<'a> {
    /// Whether the whole request has been sent.
    pub(super) is_sent: Cell<bool>,
    /// The status of the upstream's response, once it has begun to be passed on. It is told even if the rest fails or is refused.
    pub(super) status: Cell<Option<u16>>,
    /// Whether the end of a message of the response is held back until the next one comes.
    pub(super) holds_message: Cell<bool>,
    /// The octets of the response's body.
    received: &'a Cell<u64>,
}

impl<'a> Progress<'a> {
    /// Begins; `received` counts the octets of the response's body.
    pub(super) fn begin(received: &'a Cell<u64>) -> Self {
        Self { is_sent: Cell::new(false), status: Cell::new(None), holds_message: Cell::new(false), received }
    }

    /// Counts a piece of the response's body.
    pub(super) fn count(&self, piece: &[u8]) {
        self.received.set(self.received.get() + piece.len() as u64);
    }
}
