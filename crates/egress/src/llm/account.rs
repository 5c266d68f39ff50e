//! One answer's part in the account of a run: entered when the answer is over, however it ends.

use std::rc::Rc;

use policy::{Denial, LlmFormat, Spending};

use super::ledger::{Admitted, Ledger};
use super::meter::Meter;
use super::totals::{Asking, ModelUse};

/// What is to be charged for one request. Whoever drops it before its answer has come whole, because the agent hung up or the answer
/// broke off, is charged what the answer told until then.
pub(crate) struct Account<'a> {
    ledger: &'a Ledger,
    meter: Option<Meter>,
    whole: bool,
}

impl<'a> Account<'a> {
    pub(crate) fn open(ledger: &'a Ledger, format: LlmFormat, asked: bool) -> Self {
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

    /// Notes that all of it has passed.
    pub(crate) fn mark_whole(&mut self) {
        self.whole = true;
    }
}

impl Drop for Account<'_> {
    fn drop(&mut self) {
        if let Some(meter) = self.meter.take() {
            self.ledger.charge(&meter.end(self.whole));
        }
    }
}

/// How an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerEnd {
    /// With its last octet.
    Whole,
    /// Before.
    CutOff,
}

/// What a run has used after one answer that came in these pieces, and why it may ask no more. For fuzzing and tests.
pub fn use_of_answer<'a>(
    spending: Spending,
    format: LlmFormat,
    content_type: Option<&str>,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    end: AnswerEnd,
) -> (ModelUse, Option<Denial>) {
    let ledger = Rc::new(Ledger::new(spending));
    let admitted = ledger.admit_now(Asking::Answer);
    let refused = match admitted {
        Ok(mut admitted) => {
            admitted.iter_mut().for_each(Admitted::mark_sent);
            let mut account = Account::open(&ledger, format, true);
            account.begin(200, content_type);
            pieces.into_iter().for_each(|piece| account.piece(piece));
            if end == AnswerEnd::Whole {
                account.mark_whole();
            }
            None
        }
        Err(denial) => Some(denial),
    };
    let used = ledger.used().unwrap_or_default();
    (used, refused.or_else(|| ledger.admit_now(Asking::Answer).err()))
}
