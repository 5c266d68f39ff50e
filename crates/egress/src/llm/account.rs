//! Charges one answer of a model to the run when the answer is over, however it ends.

use std::rc::Rc;

use policy::{Denial, LlmFormat, Spending};

use super::ledger::{Admitted, Ledger};
use super::meter::{AnswerEnd, Meter, Usage};
use super::totals::{ModelRequest, ModelUse, RequestLine};

/// The pending charge of one answer. Dropping it charges what the answer has told so far, so an answer that broke off, or that the agent
/// hung up on, is charged as well.
pub(crate) struct Account<'a> {
    ledger: &'a Ledger,
    line: RequestLine<'a>,
    meter: Option<Meter<'a>>,
    end: AnswerEnd,
}

impl<'a> Account<'a> {
    pub(crate) fn open(ledger: &'a Ledger, line: RequestLine<'a>, format: LlmFormat, usage: Usage) -> Self {
        let meter = Meter::new(ledger.room(), format, usage);
        Self { ledger, line, meter: Some(meter), end: AnswerEnd::CutOff }
    }

    /// Charges nothing: no model gave an answer.
    pub(crate) fn close(mut self) {
        self.meter = None;
    }

    /// Reads the answer's head.
    pub(crate) fn begin(&mut self, status: u16, content_type: Option<&str>) {
        if let Some(meter) = &mut self.meter {
            meter.begin(status, content_type);
        }
    }

    /// Reads a piece of the answer's body.
    pub(crate) fn piece(&mut self, piece: &[u8]) {
        self.meter.iter_mut().for_each(|meter| meter.piece(piece));
    }

    /// Whether the usage of the whole answer has been read.
    pub(crate) fn has_read_usage(&self) -> bool {
        self.meter.as_ref().is_some_and(Meter::is_final)
    }

    /// Notes that the whole answer has passed.
    pub(crate) fn mark_whole(&mut self) {
        self.end = AnswerEnd::Whole;
    }
}

impl Drop for Account<'_> {
    fn drop(&mut self) {
        if let Some(meter) = self.meter.take() {
            self.ledger.charge(&meter.end(self.end), self.line);
        }
    }
}

/// Returns what a run has used after one answer that came in these pieces, and why it may ask no more. For fuzzing and tests.
pub fn use_of_answer<'a>(
    spending: Spending,
    format: LlmFormat,
    content_type: Option<&str>,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    end: AnswerEnd,
) -> (ModelUse, Option<Denial>) {
    let ledger = Rc::new(Ledger::new(spending));
    let admitted = ledger.admit_now(ModelRequest::Answer);
    let refused = match admitted {
        Ok(mut admitted) => {
            admitted.iter_mut().for_each(Admitted::mark_sent);
            let line = RequestLine { method: "POST", path: "/" };
            let mut account = Account::open(&ledger, line, format, Usage::Expected);
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
    (used, refused.or_else(|| ledger.admit_now(ModelRequest::Answer).err()))
}
