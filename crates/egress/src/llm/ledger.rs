//! Admits requests to models within the run's budget, and adds up what their answers took. All requests of a run share one ledger.
//!
//! Under a budget of tokens or money, each request under way reserves a part of what is left. A request that does not fit beside the
//! others waits until one of them ends:
//!
//! ```text
//! admit ── waits ──> Admitted ── mark_sent ──> charged by its Account ──> dropped: the next may go
//!                        └───── dropped before it was sent: it is not counted
//! ```

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use policy::{Denial, Guard, Hint, Spending};
use tokio::sync::Notify;

use super::kept::Room;
use super::meter::Metered;
use super::totals::{Admission, ModelRequest, ModelUse, RequestLine, Totals};

/// The budget of one run, and what was used of it.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    totals: RefCell<Totals>,
    ended: Notify,
    /// For what is kept of answers until it is read.
    room: Room,
}

/// A request that was counted and may be sent. Dropping it lets waiting requests go on.
#[derive(Debug)]
pub(crate) struct Admitted {
    ledger: Rc<Ledger>,
    sent: bool,
}

/// How long a request waits for others to end. Clients of models wait longer than this for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// When to ask again after that, in seconds.
const PAUSE: u64 = 5;

impl Ledger {
    pub(crate) fn new(spending: Spending) -> Self {
        Self { totals: RefCell::new(Totals::new(spending)), ended: Notify::new(), room: Room::default() }
    }

    /// Counts a request that is about to be sent, once it fits beside those under way.
    ///
    /// # Errors
    /// The budget is used up, or still may be after [`PATIENCE`].
    pub(crate) async fn admit(self: &Rc<Self>, request: ModelRequest) -> Result<Admitted, Denial> {
        let admitted = async {
            loop {
                // Registered before the budget is read, so that an end in between is not missed.
                let ended = self.ended.notified();
                if let Some(admitted) = self.admit_now(request)? {
                    return Ok(admitted);
                }
                ended.await;
            }
        };
        tokio::time::timeout(PATIENCE, admitted).await.unwrap_or_else(|_| {
            let what = "the requests to models that are under way may use up the run's budget";
            Err(Denial::new(Guard::Budget, what).with_hint(Hint::Wait(PAUSE)))
        })
    }

    /// Counts a request if it fits now. Returns `None` if it has to wait.
    pub(super) fn admit_now(self: &Rc<Self>, request: ModelRequest) -> Result<Option<Admitted>, Denial> {
        Ok(match self.totals.borrow_mut().admit(request)? {
            Admission::Counted => Some(Admitted { ledger: Rc::clone(self), sent: false }),
            Admission::MustWait => None,
        })
    }

    /// Returns whether a request may have to wait.
    pub(crate) fn lets_wait(&self) -> bool {
        self.totals.borrow().counts_tokens()
    }

    /// Returns the room for what is kept of answers.
    pub(super) fn room(&self) -> &Room {
        &self.room
    }

    /// Adds what the answer to a request took.
    pub(super) fn charge(&self, metered: &Metered, line: RequestLine<'_>) {
        self.totals.borrow_mut().charge(metered, line);
    }

    /// Notes that a WebSocket was opened, whose use nothing tells.
    pub(crate) fn note_socket(&self) {
        self.totals.borrow_mut().note_socket();
    }

    /// Returns what was used, if anything was.
    pub(crate) fn used(&self) -> Option<ModelUse> {
        self.totals.borrow().used()
    }
}

impl Admitted {
    /// Notes that the request has gone out: it counts, whatever becomes of it.
    pub(crate) fn mark_sent(&mut self) {
        self.sent = true;
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut totals = self.ledger.totals.borrow_mut();
        totals.leave();
        if !self.sent {
            totals.give_back();
        }
        self.ledger.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use policy::{Layers, Origin, Tokens};
    use tokio::task::LocalSet;
    use tokio::time::Instant;

    use super::*;

    fn ledger(budget: &str) -> Rc<Ledger> {
        let mut layers = Layers::default();
        let config = toml::from_str(&format!("[llm]\nbudget = {{ {budget} }}\n")).unwrap();
        layers.push(Origin::Flags, config);
        Rc::new(Ledger::new(layers.compile().unwrap().spending))
    }

    fn took(output: u64) -> Metered {
        let tokens = Some(Tokens { output, ..Tokens::default() });
        Metered { tokens, model: Some("claude-sonnet-4-5".into()), ..Metered::default() }
    }

    /// Makes `count` requests at once, each of which takes a second and `tokens`. Returns how many were sent, and how many at one time.
    async fn crowd(ledger: &Rc<Ledger>, count: usize, tokens: u64) -> (u64, u64) {
        let (most, now) = (Rc::new(RefCell::new(0)), Rc::new(RefCell::new(0)));
        let local = LocalSet::new();
        for _ in 0..count {
            let (ledger, most, now) = (Rc::clone(ledger), Rc::clone(&most), Rc::clone(&now));
            local.spawn_local(async move {
                let Ok(mut admitted) = ledger.admit(ModelRequest::Answer).await else { return };
                admitted.mark_sent();
                *now.borrow_mut() += 1;
                let until_now = *most.borrow();
                *most.borrow_mut() = until_now.max(*now.borrow());
                tokio::time::sleep(Duration::from_secs(1)).await;
                *now.borrow_mut() -= 1;
                ledger.charge(&took(tokens), RequestLine { method: "POST", path: "/" });
            });
        }
        local.await;
        let most = *most.borrow();
        (ledger.used().map_or(0, |used| used.requests), most)
    }

    #[tokio::test(start_paused = true, flavor = "current_thread")]
    async fn requests_at_once_stay_within_a_budget() {
        // A budget is exceeded by one request at most.
        assert_eq!(crowd(&ledger("tokens = 10000"), 900, 2000).await, (5, 1));
        assert_eq!(crowd(&ledger("tokens = 10001"), 900, 2000).await, (6, 1));
        // Fifteen dollars a million: three cents each.
        assert_eq!(crowd(&ledger("usd = \"0.30\""), 900, 2000).await.0, 10);
        // With much left they go side by side, once one has reported what it takes.
        let (sent, at_once) = crowd(&ledger("tokens = 1000000"), 50, 20_000).await;
        assert!(sent == 50 && (5..=20).contains(&at_once), "{sent}, {at_once} at once");
        assert_eq!(crowd(&ledger("requests = 50"), 900, 2000).await, (50, 50));
    }

    #[tokio::test(start_paused = true, flavor = "current_thread")]
    async fn who_waits_too_long_is_told() {
        let ledger = ledger("tokens = 10000");
        let first = ledger.admit(ModelRequest::Answer).await.unwrap();
        let begun = Instant::now();
        let refused = ledger.admit(ModelRequest::Answer).await.unwrap_err();
        assert_eq!((refused.guard, begun.elapsed()), (Guard::Budget, PATIENCE));
        assert!(refused.reason.contains("under way"), "{}", refused.reason);
        assert_eq!(refused.hint, Some(Hint::Wait(PAUSE)));
        drop(first);
        assert!(ledger.admit(ModelRequest::Answer).await.is_ok());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_not_sent_is_given_back() {
        let ledger = ledger("requests = 1");
        drop(ledger.admit(ModelRequest::Answer).await.unwrap());
        assert_eq!(ledger.used(), None);
        ledger.admit(ModelRequest::Answer).await.unwrap().mark_sent();
        assert_eq!(ledger.used().unwrap().requests, 1);
        assert_eq!(ledger.admit(ModelRequest::Answer).await.unwrap_err().guard, Guard::Budget);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_not_counted_has_no_place_in_a_budget_of_tokens() {
        for (budget, admitted) in [("tokens = 9000", false), ("usd = \"9\"", false), ("requests = 1", true)] {
            for request in [ModelRequest::Later, ModelRequest::Socket] {
                assert_eq!(ledger(budget).admit(request).await.is_ok(), admitted, "{budget}: {request:?}");
            }
        }
    }
}
