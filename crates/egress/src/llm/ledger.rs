//! What a run has spent on models. It is asked before a request is sent, and told after its answer.

use policy::{Denial, Guard, MicroUsd, Spending, Tokens};
use serde::{Deserialize, Serialize};

use super::meter::{Metered, Untold};

/// What a run has used of models.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelUse {
    /// Requests.
    pub requests: u64,
    /// Tokens in, without those from a cache.
    pub input_tokens: u64,
    /// Tokens in, from a cache.
    pub cached_tokens: u64,
    /// Tokens out.
    pub output_tokens: u64,
    /// What they cost, in millionths of a US dollar, as far as prices are known.
    pub cost_micro_usd: u64,
    /// A model without a known price, if one was used.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unpriced: Option<String>,
}

impl ModelUse {
    fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.cached_tokens).saturating_add(self.output_tokens)
    }
}

/// The account of one run.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    spending: Spending,
    used: ModelUse,
    /// Why the use of some answer is not known.
    untold: Option<Untold>,
}

/// How long a model's name may be that is kept.
const LONGEST_NAME: usize = 128;

impl Ledger {
    pub(crate) fn new(spending: Spending) -> Self {
        Self { spending, used: ModelUse::default(), untold: None }
    }

    /// Counts a request that is about to be sent, or says that the budget is used up.
    pub(crate) fn admit(&mut self) -> Result<(), Denial> {
        let budget = &self.spending.budget;
        let refuse = |what: String, hint: &str| Err(Denial::new(Guard::Budget, what).with_hint(hint));
        let over = |what| refuse(what, "raise it in [llm.budget], or begin another run");
        if let Some(most) = budget.requests.filter(|most| self.used.requests >= *most) {
            return over(format!("the run's budget of {most} requests to models is used up"));
        }
        if let Some(most) = budget.tokens.filter(|most| self.used.tokens() >= *most) {
            return over(format!(
                "the run's budget of {most} tokens is used up: {} were used",
                self.used.tokens()
            ));
        }
        if let Some(most) = budget.usd {
            let spent = MicroUsd::new(self.used.cost_micro_usd);
            if spent >= most {
                return over(format!("the run's budget of {most} is used up: {spent} were spent"));
            }
            if let Some(model) = &self.used.unpriced {
                let what = format!("the run has a budget in USD, and no price of `{model}` is known");
                return refuse(what, "name one in [[llm.price]], and begin another run");
            }
        }
        if let Some(untold) = self.untold.filter(|_| self.counts_tokens()) {
            let (why, hint) = match untold {
                Untold::Silent => (
                    "an answer did not tell how many it took",
                    "begin another run, and have them told: `stream_options.include_usage` does that at OpenAI's API",
                ),
                Untold::Unreadable => ("what an answer told is no count of tokens", "begin another run"),
                Untold::CutOff => {
                    ("an answer was cut off before it told how many it took", "begin another run")
                }
            };
            return refuse(format!("the run has a budget of tokens, and {why}"), hint);
        }
        self.used.requests = self.used.requests.saturating_add(1);
        Ok(())
    }

    /// The same for a WebSocket. What is asked over one is not counted, so there is none under a budget of tokens or money.
    pub(crate) fn admit_socket(&mut self) -> Result<(), Denial> {
        if self.counts_tokens() {
            let what = "the run has a budget of tokens, and what a WebSocket takes is not counted";
            return Err(Denial::new(Guard::Budget, what)
                .with_hint("ask over HTTP, or set a budget of requests alone"));
        }
        self.admit()
    }

    fn counts_tokens(&self) -> bool {
        let budget = &self.spending.budget;
        budget.tokens.is_some() || budget.usd.is_some()
    }

    /// Adds what an answer took.
    pub(crate) fn charge(&mut self, metered: &Metered) {
        self.untold = self.untold.or(metered.untold);
        let Some(Tokens { input, cached, output }) = metered.tokens else { return };
        let add = |to: &mut u64, more: u64| *to = to.saturating_add(more);
        add(&mut self.used.input_tokens, input);
        add(&mut self.used.cached_tokens, cached);
        add(&mut self.used.output_tokens, output);
        let model = metered.model.as_deref().unwrap_or("unknown");
        match self.spending.cost(model, Tokens { input, cached, output }) {
            Some(cost) => add(&mut self.used.cost_micro_usd, cost.micros()),
            None => self.used.unpriced = Some(model.chars().take(LONGEST_NAME).collect()),
        }
    }

    /// What was used, if anything was.
    pub(crate) fn used(&self) -> Option<ModelUse> {
        (self.used.requests > 0).then(|| self.used.clone())
    }
}
