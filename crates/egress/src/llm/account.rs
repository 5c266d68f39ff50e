//! One answer's part in the account of a run: entered when the answer is over, however it ends.

use std::cell::RefCell;

use policy::LlmFormat;

use super::ledger::Ledger;
use super::meter::Meter;

/// What is to be charged for one request. Whoever drops it before its answer has come whole, because the agent hung up or the answer
/// broke off, is charged what the answer told until then.
pub(crate) struct Account<'a> {
    ledger: &'a RefCell<Ledger>,
    meter: Option<Meter>,
    whole: bool,
}

impl<'a> Account<'a> {
    pub(crate) fn open(ledger: &'a RefCell<Ledger>, format: LlmFormat, asked: bool) -> Self {
        Self { ledger, meter: Some(Meter::of(format, asked)), whole: false }
    }

    /// There was no answer that a model gave.
    pub(crate) fn close(mut self) {
        self.meter = None;
    }

    /// The answer begins.
    pub(crate) fn begin(&mut self, status: u16, content_type: Option<&str>) {
        if let Some(meter) = &mut self.meter {
            meter.begin((200..300).contains(&status), content_type);
        }
    }

    /// A piece of its body.
    pub(crate) fn piece(&mut self, piece: &[u8]) {
        self.meter.iter_mut().for_each(|meter| meter.piece(piece));
    }

    /// All of it has passed.
    pub(crate) fn is_whole(&mut self) {
        self.whole = true;
    }
}

impl Drop for Account<'_> {
    fn drop(&mut self) {
        if let Some(meter) = self.meter.take() {
            self.ledger.borrow_mut().charge(&meter.end(self.whole));
        }
    }
}
