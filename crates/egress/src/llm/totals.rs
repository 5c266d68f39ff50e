//! Adds up what a run has spent on models, and tells whether it may spend more. The ledger decides which request waits for which.

use policy::{Denial, Guard, Hint, MicroUsd, Spending, Tokens};
use serde::{Deserialize, Serialize};

use super::meter::{Metered, UnknownUsage};

/// What a run has used of models.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelUse {
    /// Requests that were sent.
    pub requests: u64,
    /// Input tokens, without those from a cache.
    pub input_tokens: u64,
    /// Input tokens from a cache.
    pub cached_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// The cost in millionths of a US dollar, as far as prices are known.
    pub cost_micro_usd: u64,
    /// The latest model that was used without a known price, or in a way that costs more, with the field that tells so.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unpriced: Option<String>,
    /// How many answers did not tell their use, or not all of it: the sums are without it.
    #[serde(skip_serializing_if = "is_none", default)]
    pub unmetered: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

impl ModelUse {
    fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.cached_tokens).saturating_add(self.output_tokens)
    }
}

/// What a request asks a model for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelRequest {
    /// An answer that reports its usage.
    Answer,
    /// Work that is done later, such as a batch of answers. No response that passes here reports all that it takes.
    Later,
    /// A WebSocket. The usage of what is asked over it is not counted.
    Socket,
}

/// What a person is told of the request that an answer is to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLine<'a> {
    pub(crate) method: &'a str,
    /// As the agent wrote it, without a credential.
    pub(crate) path: &'a str,
}

/// Whether a request within the budget may be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It was counted, and may be sent.
    Counted,
    /// The requests under way may need what is left.
    MustWait,
}

/// The sums of one run.
#[derive(Debug, Default)]
pub(super) struct Totals {
    spending: Spending,
    used: ModelUse,
    /// Why the usage of the first such answer is unknown, and what it answered.
    unknown: Option<(UnknownUsage, String)>,
    /// The field by which the latest answer without a price told that it cost more than its model's.
    surcharge: Option<&'static str>,
    /// How many requests were admitted and have not ended.
    under_way: u64,
    /// The most that one request took so far.
    largest: Option<Largest>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Largest {
    tokens: u64,
    micro_usd: u64,
}

/// What a request under way is assumed to need at least: this many tokens, this much money, and one `LEAST_PART`th of the budget.
const LEAST_TOKENS: u64 = 10_000;
const LEAST_MICRO_USD: u64 = 50_000;
const LEAST_PART: u64 = 20;
/// How many characters of a model's name are kept.
const LONGEST_NAME: usize = 128;

impl Totals {
    pub(super) fn new(spending: Spending) -> Self {
        Self { spending, ..Self::default() }
    }

    /// Counts a request that is about to be sent, unless it has to wait.
    ///
    /// # Errors
    /// The budget is used up, or would no longer be known to hold.
    pub(super) fn admit(&mut self, request: ModelRequest) -> Result<Admission, Denial> {
        self.refuse_uncounted(request)?;
        self.refuse_over_budget()?;
        self.refuse_after_unknown()?;
        if !self.has_room() {
            return Ok(Admission::MustWait);
        }
        self.used.requests = self.used.requests.saturating_add(1);
        self.under_way = self.under_way.saturating_add(1);
        Ok(Admission::Counted)
    }

    /// Notes that a request has ended.
    pub(super) fn leave(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// Takes back the count of a request that was never sent.
    pub(super) fn give_back(&mut self) {
        self.used.requests = self.used.requests.saturating_sub(1);
    }

    /// Adds what the answer to a request took.
    pub(super) fn charge(&mut self, metered: &Metered, RequestLine { method, path }: RequestLine<'_>) {
        if self.unknown.is_none() {
            self.unknown = metered.unknown.map(|unknown| (unknown, format!("{method} {path}")));
        }
        let add = |to: &mut u64, more: u64| *to = to.saturating_add(more);
        add(&mut self.used.unmetered, u64::from(metered.unknown.is_some()));
        let Some(tokens) = metered.tokens else { return };
        add(&mut self.used.input_tokens, tokens.input);
        add(&mut self.used.cached_tokens, tokens.cached);
        add(&mut self.used.output_tokens, tokens.output);
        let model = metered.model.as_deref().unwrap_or("unknown");
        let listed = self.spending.cost(model, tokens);
        // What an answer tells makes nothing cheaper, and is the only price where nobody has to name one.
        let told = metered.cost.filter(|_| listed.is_some() || !self.spending.is_priced_by_managed());
        let cost = listed.max(told).filter(|_| metered.surcharge.is_none());
        match cost {
            Some(cost) => add(&mut self.used.cost_micro_usd, cost.micros()),
            None => {
                let way = metered.surcharge.map(|field| format!(" ({field})")).unwrap_or_default();
                let named = model.chars().take(LONGEST_NAME - way.len()).chain(way.chars());
                self.used.unpriced = Some(named.collect());
                self.surcharge = metered.surcharge;
            }
        }
        self.learn(tokens, cost);
    }

    /// Notes that a WebSocket was opened, over which any number of answers may come.
    pub(super) fn note_socket(&mut self) {
        self.used.unmetered = self.used.unmetered.saturating_add(1);
    }

    /// Returns what was used, if anything was.
    pub(super) fn used(&self) -> Option<ModelUse> {
        (self.used != ModelUse::default()).then(|| self.used.clone())
    }

    /// Under a budget of tokens or money, refuses requests whose usage is not counted.
    fn refuse_uncounted(&self, request: ModelRequest) -> Result<(), Denial> {
        let (what, hint) = match request {
            _ if !self.counts_tokens() => return Ok(()),
            ModelRequest::Answer => return Ok(()),
            ModelRequest::Later => (
                "what batches and other work that is done later take is not counted",
                "ask one by one, or set a budget of requests alone".into(),
            ),
            ModelRequest::Socket => ("what a WebSocket takes is not counted", Hint::OverHttp),
        };
        refuse(format!("the run has a budget {}, and {what}", self.counted()), hint)
    }

    fn refuse_over_budget(&self) -> Result<(), Denial> {
        let budget = &self.spending.budget;
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
        let Some(most) = budget.usd else { return Ok(()) };
        let spent = MicroUsd::new(self.used.cost_micro_usd);
        if spent >= most {
            return over(format!("the run's budget of {most} is used up: {spent} were spent"));
        }
        let Some(model) = &self.used.unpriced else { return Ok(()) };
        let what = format!("the run has a budget in USD, and no price of `{model}` is known");
        match self.surcharge {
            Some(field) => refuse(
                what,
                format!("begin another run, and ask for nothing dearer: an answer told its `{field}`"),
            ),
            None if self.spending.is_priced_by_managed() => {
                refuse(what, "only one in the managed policy's [[llm.price]] counts; then begin another run")
            }
            None => refuse(what, "name one in [[llm.price]], and begin another run"),
        }
    }

    /// Under a budget of tokens or money, refuses requests after an answer of unknown usage.
    fn refuse_after_unknown(&self) -> Result<(), Denial> {
        let Some((unknown, request)) = self.unknown.as_ref().filter(|_| self.counts_tokens()) else {
            return Ok(());
        };
        let (why, hint) = match *unknown {
            UnknownUsage::Missing => ("an answer did not tell how many tokens it took", "begin another run"),
            UnknownUsage::MissingInStream => (
                "an answer did not tell how many tokens it took",
                "begin another run, and have them told: `stream_options.include_usage` does that at OpenAI's API",
            ),
            UnknownUsage::Illegible => (
                "an answer could not be read for how many tokens it took: it is no JSON",
                "begin another run",
            ),
            UnknownUsage::Unreadable => {
                ("what an answer told of its tokens is a part of them, or is no count", "begin another run")
            }
            UnknownUsage::Unread => (
                "an answer was too large, or came beside too many large ones, to be read for how many tokens it took",
                "begin another run, and ask for less at once",
            ),
            UnknownUsage::CutOff => {
                ("an answer was cut off before it told how many tokens it took", "begin another run")
            }
        };
        // At the end, because a path may be longer than what is told.
        refuse(format!("the run has a budget {}, and {why} ({request})", self.counted()), hint)
    }

    /// Returns whether one more request fits beside those under way. Each of them is assumed to need as much as the largest so far. The
    /// first request goes alone, and so does one that may use up the rest.
    fn has_room(&self) -> bool {
        if self.under_way == 0 || !self.counts_tokens() {
            return true;
        }
        let Some(largest) = self.largest else { return false };
        let fits = |used: u64, most: u64, largest: u64, least: u64| {
            let each = largest.max(least).max(most / LEAST_PART);
            used.saturating_add(each.saturating_mul(self.under_way)) < most
        };
        let budget = &self.spending.budget;
        budget.tokens.is_none_or(|most| fits(self.used.tokens(), most, largest.tokens, LEAST_TOKENS))
            && budget.usd.is_none_or(|most| {
                fits(self.used.cost_micro_usd, most.micros(), largest.micro_usd, LEAST_MICRO_USD)
            })
    }

    /// Keeps the most that one request took.
    fn learn(&mut self, tokens: Tokens, cost: Option<MicroUsd>) {
        let largest = self.largest.get_or_insert_default();
        largest.tokens = largest.tokens.max(tokens.total());
        largest.micro_usd = largest.micro_usd.max(cost.map_or(0, MicroUsd::micros));
    }

    /// Says of a budget of tokens or money which of them it is.
    fn counted(&self) -> &'static str {
        if self.spending.budget.tokens.is_some() { "of tokens" } else { "in USD" }
    }

    /// Returns whether there is a budget of tokens or money.
    pub(super) fn counts_tokens(&self) -> bool {
        let budget = &self.spending.budget;
        budget.tokens.is_some() || budget.usd.is_some()
    }
}

fn refuse(what: String, hint: impl Into<Hint>) -> Result<(), Denial> {
    Err(Denial::new(Guard::Budget, what).with_hint(hint))
}

#[cfg(test)]
mod tests {
    use policy::{Layers, Origin};

    use super::*;

    const LINE: RequestLine<'static> = RequestLine { method: "POST", path: "/v1/responses" };

    #[test]
    fn a_budget_of_money_ends_with_an_answer_that_cost_more_than_the_list_says() {
        let model = "claude-sonnet-4-5".to_owned();
        for (budget, surcharge, is_admitted) in [
            ("usd = \"9\"", Some("speed"), false),
            ("usd = \"9\"", None, true),
            ("tokens = 9000", Some("speed"), true),
        ] {
            let mut layers = Layers::default();
            let text = format!("[llm]\nbudget = {{ {budget} }}\n");
            layers.push(Origin::Flags, toml::from_str(&text).unwrap());
            let mut totals = Totals::new(layers.compile().unwrap().spending);
            let tokens = Some(Tokens { output: 1000, ..Tokens::default() });
            totals.charge(
                &Metered { tokens, model: Some(model.clone()), surcharge, ..Metered::default() },
                LINE,
            );
            let admitted = totals.admit(ModelRequest::Answer);
            assert_eq!(admitted.is_ok(), is_admitted, "{budget} {surcharge:?}");
            assert_eq!(totals.used.unpriced.is_some(), surcharge.is_some());
            let Err(denial) = admitted else { continue };
            assert!(denial.reason.contains("`claude-sonnet-4-5 (speed)`"), "{}", denial.reason);
        }
        let mut totals = Totals::default();
        for unknown in [None, Some(UnknownUsage::Missing), None, Some(UnknownUsage::Unreadable)] {
            totals.charge(&Metered { unknown, ..Metered::default() }, LINE);
        }
        totals.note_socket();
        assert_eq!(totals.used.unmetered, 3);
        let model = Some("m".repeat(999));
        let tokens = Some(Tokens::default());
        totals.charge(&Metered { tokens, model, surcharge: Some("speed"), ..Metered::default() }, LINE);
        let unpriced = totals.used.unpriced.unwrap();
        assert!(unpriced.len() == LONGEST_NAME && unpriced.ends_with("m (speed)"), "{unpriced}");
    }

    #[test]
    fn who_is_refused_is_told_which_budget_there_is() {
        for (budget, told) in [
            ("tokens = 9", "a budget of tokens,"),
            ("usd = \"9\"", "a budget in USD,"),
            ("tokens = 9, usd = \"9\"", "a budget of tokens,"),
        ] {
            let mut layers = Layers::default();
            let text = format!("[llm]\nbudget = {{ {budget} }}\n");
            layers.push(Origin::Flags, toml::from_str(&text).unwrap());
            let mut totals = Totals::new(layers.compile().unwrap().spending);
            let uncounted = totals.admit(ModelRequest::Later).unwrap_err();
            totals.charge(&Metered { unknown: Some(UnknownUsage::Missing), ..Metered::default() }, LINE);
            let after_unknown = totals.admit(ModelRequest::Answer).unwrap_err();
            for denial in [&uncounted, &after_unknown] {
                assert!(denial.reason.starts_with(&format!("the run has {told}")), "{denial}");
            }
            // The first such answer is named.
            let other = RequestLine { method: "POST", path: "/v1/other" };
            totals.charge(&Metered { unknown: Some(UnknownUsage::CutOff), ..Metered::default() }, other);
            assert_eq!(totals.admit(ModelRequest::Answer).unwrap_err().reason, after_unknown.reason);
            assert!(after_unknown.reason.ends_with("it took (POST /v1/responses)"), "{after_unknown}");
        }
    }

    #[test]
    fn what_was_used_without_a_request_is_told() {
        let mut totals = Totals::default();
        assert_eq!(totals.used(), None);
        let tokens = Some(Tokens { input: 1000, ..Tokens::default() });
        totals.charge(&Metered { tokens, ..Metered::default() }, LINE);
        let used = totals.used().unwrap();
        assert_eq!((used.requests, used.input_tokens), (0, 1000));
    }

    #[test]
    fn what_an_answer_tells_that_it_cost_is_charged_where_it_is_more_than_the_list_or_there_is_none() {
        let free = "[[llm.price]]\nmodel = \"free\"\ninput = 0.0\noutput = 0.0\n";
        let (flags, managed) = (Origin::Flags, Origin::Managed("managed".into()));
        for (origin, model, told, charged) in [
            // Fifteen dollars a million.
            (&flags, "claude-sonnet-4-5", Some(950_000), Some(950_000)),
            (&flags, "claude-sonnet-4-5", Some(1), Some(15_000)),
            (&flags, "claude-sonnet-4-5", None, Some(15_000)),
            (&flags, "vendor/model", Some(950_000), Some(950_000)),
            (&flags, "vendor/model", Some(0), Some(0)),
            (&flags, "vendor/model", None, None),
            (&managed, "claude-sonnet-4-5", Some(950_000), Some(950_000)),
            (&managed, "free", Some(7), Some(7)),
            (&managed, "vendor/model", Some(7), None),
        ] {
            let mut layers = Layers::default();
            let text = format!("[llm]\nbudget = {{ usd = \"1\" }}\n{free}");
            layers.push(origin.clone(), toml::from_str(&text).unwrap());
            let mut totals = Totals::new(layers.compile().unwrap().spending);
            let tokens = Some(Tokens { output: 1000, ..Tokens::default() });
            let cost = told.map(MicroUsd::new);
            let metered = Metered { tokens, model: Some(model.into()), cost, ..Metered::default() };
            totals.charge(&metered, LINE);
            let what = format!("{origin:?}, {model} for {told:?}");
            assert_eq!(totals.used.cost_micro_usd, charged.unwrap_or(0), "{what}");
            assert_eq!(totals.used.unpriced.is_none(), charged.is_some(), "{what}");
            totals.charge(&metered, LINE);
            let is_within = charged.is_some_and(|charged| 2 * charged < 1_000_000);
            assert_eq!(totals.admit(ModelRequest::Answer).is_ok(), is_within, "{what}");
        }
    }

    #[test]
    fn only_after_a_stream_an_option_of_streams_is_named() {
        for (unknown, is_named) in [
            (UnknownUsage::Missing, false),
            (UnknownUsage::MissingInStream, true),
            (UnknownUsage::CutOff, false),
        ] {
            let mut layers = Layers::default();
            layers.push(Origin::Flags, toml::from_str("llm.budget.tokens = 9").unwrap());
            let mut totals = Totals::new(layers.compile().unwrap().spending);
            totals.charge(&Metered { unknown: Some(unknown), ..Metered::default() }, LINE);
            let denial = totals.admit(ModelRequest::Answer).unwrap_err();
            assert_eq!(format!("{denial:?}").contains("include_usage"), is_named, "{denial:?}");
        }
    }

    #[test]
    fn who_can_name_a_missing_price_is_told() {
        let budget = "[llm]\nbudget = { usd = \"9\" }\n";
        for (origin, named) in [
            (Origin::Managed("managed".into()), "the managed policy's [[llm.price]]"),
            (Origin::Flags, "name one in [[llm.price]]"),
        ] {
            let mut layers = Layers::default();
            layers.push(origin, toml::from_str(budget).unwrap());
            let mut totals = Totals::new(layers.compile().unwrap().spending);
            let model = Some("unknown".to_owned());
            totals.charge(&Metered { tokens: Some(Tokens::default()), model, ..Metered::default() }, LINE);
            let denial = totals.admit(ModelRequest::Answer).unwrap_err();
            assert!(denial.hint.as_ref().unwrap().to_string().contains(named), "{denial:?}");
        }
    }
}
