//! What a run has spent on models. It is asked before a request is sent, and told after its answer.

use policy::{Denial, Guard, MicroUsd, Spending, Tokens};
use serde::{Deserialize, Serialize};

use super::meter::Metered;

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
        self.input_tokens + self.cached_tokens + self.output_tokens
    }
}

/// The account of one run.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    spending: Spending,
    used: ModelUse,
    /// Answers whose use could not be told.
    unmetered: u64,
}

/// How long a model's name may be that is kept.
const LONGEST_NAME: usize = 128;

impl Ledger {
    pub(crate) fn new(spending: Spending) -> Self {
        Self { spending, used: ModelUse::default(), unmetered: 0 }
    }

    /// Counts a request that is about to be sent, or says that the budget is used up.
    pub(crate) fn admit(&mut self) -> Result<(), Denial> {
        let budget = &self.spending.budget;
        let over = |what: String| {
            Err(Denial::new(Guard::Budget, what).with_hint("raise it in [llm.budget], or begin another run"))
        };
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
                return over(format!(
                    "the run has a budget in USD, and no price of `{model}` is known; name one in [[llm.price]]"
                ));
            }
        }
        if (budget.tokens.is_some() || budget.usd.is_some()) && self.unmetered > 0 {
            return over(
                "the run has a budget of tokens, and an answer did not tell how many it took".into(),
            );
        }
        self.used.requests += 1;
        Ok(())
    }

    /// Adds what an answer took.
    pub(crate) fn charge(&mut self, metered: &Metered) {
        let Some(Tokens { input, cached, output }) = metered.tokens else {
            self.unmetered += u64::from(metered.expected);
            return;
        };
        self.used.input_tokens += input;
        self.used.cached_tokens += cached;
        self.used.output_tokens += output;
        let model = metered.model.as_deref().unwrap_or("unknown");
        match self.spending.cost(model, Tokens { input, cached, output }) {
            Some(cost) => self.used.cost_micro_usd += cost.micros(),
            None => self.used.unpriced = Some(model.chars().take(LONGEST_NAME).collect()),
        }
    }

    /// What was used, if anything was.
    pub(crate) fn used(&self) -> Option<ModelUse> {
        (self.used.requests > 0).then(|| self.used.clone())
    }
}
