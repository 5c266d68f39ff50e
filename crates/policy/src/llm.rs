//! Spending on models: the budget of a run and the prices of tokens.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::error::ConfigError;
use crate::written::{BudgetConfig, LlmConfig, PriceConfig};

const PRICES: &str = include_str!("../../../profiles/prices.toml");
/// How much more input costs that is kept in a cache for an hour, in prices of input (Anthropic, "Prompt caching").
const CACHED_LONG_MORE: f64 = 1.0;

/// An amount of money: millionths of a US dollar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MicroUsd(u64);

impl MicroUsd {
    /// Creates an amount from millionths of a dollar.
    #[must_use]
    pub fn new(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the least amount that is not below so many dollars, as their shortest decimal has them. `None` if that is no amount, or
    /// is a million dollars or more.
    #[must_use]
    pub fn at_least(amount: f64) -> Option<Self> {
        if !(0.0..1e6).contains(&amount) {
            return None;
        }
        let near = format!("{amount:.6}");
        let is_below = near.parse::<f64>().is_ok_and(|near| near < amount);
        dollars(&near).map(|near| Self(near.0 + u64::from(is_below)))
    }

    /// Returns the sum with another amount.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the amount as a file says it.
    pub(crate) fn written(self) -> String {
        format!("{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }

    /// Returns the amount in millionths of a dollar.
    #[must_use]
    pub fn micros(self) -> u64 {
        self.0
    }
}

impl std::fmt::Display for MicroUsd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:04} USD", self.0 / 1_000_000, self.0 % 1_000_000 / 100)
    }
}

/// A count of used tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Input tokens that were not cached.
    pub input: u64,
    /// Input tokens from a cache.
    pub cached: u64,
    /// Output tokens.
    pub output: u64,
    /// Those of `input` that were written to a cache for an hour.
    pub cached_long: u64,
}

impl Tokens {
    /// Returns the sum.
    #[must_use]
    pub fn total(self) -> u64 {
        self.input.saturating_add(self.cached).saturating_add(self.output)
    }
}

/// A compiled budget. `None` is no limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Budget {
    /// Requests to models.
    pub requests: Option<u64>,
    /// Tokens, in and out.
    pub tokens: Option<u64>,
    /// Money.
    pub usd: Option<MicroUsd>,
}

/// The budget of a run and the prices that it is charged.
#[derive(Clone, Debug, Default)]
pub struct Spending {
    /// The limits.
    pub budget: Budget,
    prices: Vec<PriceConfig>,
    /// The prices of a managed layer that bounds money: nothing costs less than by them and those that ship.
    least: Option<Vec<PriceConfig>>,
}

impl Spending {
    /// Returns the cost of tokens of a model, or `None` if no price is known.
    #[must_use]
    pub fn cost(&self, model: &str, tokens: Tokens) -> Option<MicroUsd> {
        let least = match &self.least {
            Some(prices) => cost_by(prices, model, tokens)?,
            None => MicroUsd::default(),
        };
        cost_by(&self.prices, model, tokens).map(|cost| cost.max(least))
    }

    /// Returns whether a managed layer bounds money, so that only its prices and those that ship make a model's known.
    #[must_use]
    pub fn is_priced_by_managed(&self) -> bool {
        self.least.is_some()
    }

    /// Applies one layer: each field of its budget replaces the earlier one, and its prices take precedence over earlier ones.
    pub(crate) fn apply(&mut self, origin: &str, config: &LlmConfig) -> Result<(), ConfigError> {
        let BudgetConfig { requests, tokens, usd } = &config.budget;
        self.budget.requests = requests.or(self.budget.requests);
        self.budget.tokens = tokens.or(self.budget.tokens);
        if let Some(usd) = usd {
            self.budget.usd = Some(dollars(&usd.text()).ok_or_else(|| {
                ConfigError::new(
                    origin,
                    "llm.budget.usd",
                    format!("`{}` is not an amount, as in 2.50", usd.text()),
                )
            })?);
        }
        for (index, price) in config.price.iter().enumerate() {
            check_price(price).map_err(|why| ConfigError::new(origin, format!("llm.price[{index}]"), why))?;
        }
        self.prices.splice(0..0, config.price.iter().cloned());
        Ok(())
    }

    /// Lowers the budget to that of a managed layer. Where it bounds money, no other layer may make a model cheaper.
    pub(crate) fn hold_to(&mut self, managed: Spending) {
        fn least<T: Ord + Copy>(own: Option<T>, most: Option<T>) -> Option<T> {
            match (own, most) {
                (Some(own), Some(most)) => Some(own.min(most)),
                (own, most) => own.or(most),
            }
        }
        let most = managed.budget;
        if most.usd.is_some() {
            self.least = Some(managed.prices);
        }
        self.budget.requests = least(self.budget.requests, most.requests);
        self.budget.tokens = least(self.budget.tokens, most.tokens);
        self.budget.usd = least(self.budget.usd, most.usd);
    }
}

/// Refuses a price that is none, or for a model that no request can name.
fn check_price(price: &PriceConfig) -> Result<(), String> {
    let is_fair = |amount: f64| amount.is_finite() && (0.0..1e6).contains(&amount);
    let amounts = [Some(price.input), price.cached, Some(price.output)];
    if price.model.is_empty() || !amounts.into_iter().flatten().all(is_fair) {
        return Err("a price is US dollars a million tokens, and names a model".into());
    }
    if price.model.strip_suffix('*').unwrap_or(&price.model).contains('*') {
        let model = price.model.escape_default();
        return Err(format!("`{model}`: `*` may stand only at the end of a model's name"));
    }
    Ok(())
}

/// Returns the cost of tokens by these prices, and then by those that ship.
fn cost_by(prices: &[PriceConfig], model: &str, tokens: Tokens) -> Option<MicroUsd> {
    let price = prices.iter().chain(shipped()).find(|price| covers(&price.model, model))?;
    let cached = price.cached.unwrap_or(price.input);
    // Dollars per million tokens are millionths of a dollar per token. Rounded up, so that rounding never overdraws a budget.
    let part = |tokens: u64, price: f64| tokens as f64 * price;
    let micros = part(tokens.input, price.input)
        + part(tokens.cached_long, price.input * CACHED_LONG_MORE)
        + part(tokens.cached, cached)
        + part(tokens.output, price.output);
    Some(MicroUsd(micros.ceil() as u64))
}

/// Returns the prices that ship with the program. They are parsed when the first request to a model is charged, so that the start
/// of a run does not wait for them.
fn shipped() -> &'static [PriceConfig] {
    #[derive(Deserialize)]
    struct Data {
        price: Vec<PriceConfig>,
    }
    static SHIPPED: LazyLock<Vec<PriceConfig>> =
        LazyLock::new(|| toml::from_str::<Data>(PRICES).map(|data| data.price).unwrap_or_default());
    &SHIPPED
}

fn covers(pattern: &str, model: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => model.starts_with(start),
        None => model == pattern,
    }
}

/// Parses `12`, `12.5` or `12.3456`, in millionths.
fn dollars(text: &str) -> Option<MicroUsd> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) || part.len() > 6 {
        return None;
    }
    let micros = format!("{part:0<6}").parse::<u64>().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros).map(MicroUsd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_to_the_millionth() {
        assert_eq!(dollars("2.50"), Some(MicroUsd(2_500_000)));
        assert_eq!(dollars("0.000001"), Some(MicroUsd(1)));
        for bad in ["", "-1", "1e3", ".5", "1.2345678", "1,5", "99999999999999999999"] {
            assert_eq!(dollars(bad), None, "{bad}");
        }
        assert_eq!(MicroUsd(1_234_567).to_string(), "1.2345 USD");
    }

    #[test]
    fn dollars_are_rounded_up_to_the_millionth_and_no_further() {
        for (amount, micros) in [
            (0.0, 0),
            (0.000_001, 1),
            (0.000_000_1, 1),
            (0.29, 290_000),
            (0.012_3, 12_300),
            (0.012_300_4, 12_301),
            (1.1, 1_100_000),
            (19.0, 19_000_000),
            (999_999.999_999_9, 1_000_000_000_000),
        ] {
            assert_eq!(MicroUsd::at_least(amount), Some(MicroUsd(micros)), "{amount}");
        }
        for bad in [-0.1, 1e6, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(MicroUsd::at_least(bad), None, "{bad}");
        }
    }

    #[test]
    fn shipped_prices_are_read() {
        assert!(shipped().len() > 10);
    }

    #[test]
    fn a_snapshot_costs_its_own_price() {
        let cost = |model: &str| {
            let tokens = Tokens { input: 100, cached: 100, output: 10, ..Tokens::default() };
            Spending::default().cost(model, tokens).unwrap().micros()
        };
        assert_eq!(cost("gpt-4o-2024-05-13"), 500 + 500 + 150);
        assert_eq!(cost("gpt-4o-2024-08-06"), 250 + 125 + 100);
    }

    #[test]
    fn embeddings_of_openais_have_prices() {
        for (model, micros) in [
            ("text-embedding-3-small", 20_000),
            ("text-embedding-3-large", 130_000),
            ("text-embedding-ada-002", 100_000),
            ("text-embedding-ada-002-v2", 100_000),
        ] {
            let tokens = Tokens { input: 1_000_000, ..Tokens::default() };
            assert_eq!(Spending::default().cost(model, tokens), Some(MicroUsd(micros)), "{model}");
        }
    }

    #[test]
    fn no_later_price_lifts_a_managed_budget_of_money() {
        let cost = |managed: &str, model: &str| {
            let mut layers = crate::Layers::default();
            let price = "price = [{ model = \"priced\", input = 2.0, output = 2.0 }]";
            let managed = format!("[llm]\n{price}\n{managed}");
            layers.push(crate::Origin::Managed("managed".into()), toml::from_str(&managed).unwrap());
            let later = "llm.price = [{ model = \"dear\", input = 900.0, output = 0.0 }, \
                { model = \"gpt-4o\", input = 900.0, output = 0.0 }, { model = \"*\", input = 0.0, output = 0.0 }]";
            layers.push(crate::Origin::Named("file".into()), toml::from_str(later).unwrap());
            let tokens = Tokens { input: 100, output: 10, ..Tokens::default() };
            layers.compile().unwrap().spending.cost(model, tokens).map(MicroUsd::micros)
        };
        for (model, held, free) in [
            ("priced", Some(220), Some(0)),
            ("gpt-5", Some(225), Some(0)),
            ("gpt-4o", Some(90_000), Some(90_000)),
            // What the managed policy knows no price of stays a model without one.
            ("dear", None, Some(90_000)),
            ("unknown", None, Some(0)),
        ] {
            assert_eq!(cost("budget.usd = \"5\"", model), held, "{model}");
            assert_eq!(cost("budget.tokens = 5", model), free, "{model}");
        }
    }

    #[test]
    fn a_managed_layer_without_money_leaves_the_prices_of_one_with_it() {
        let spending = |usd| Spending { budget: Budget { usd, ..Budget::default() }, ..Spending::default() };
        let mut held = spending(None);
        let free = PriceConfig { model: "*".into(), input: 0.0, cached: None, output: 0.0 };
        held.apply("test", &LlmConfig { price: vec![free], ..LlmConfig::default() }).unwrap();
        let tokens = Tokens { output: 10, ..Tokens::default() };
        assert_eq!(held.cost("gpt-4o", tokens), Some(MicroUsd(0)));
        held.hold_to(spending(Some(MicroUsd(5))));
        held.hold_to(spending(None));
        assert_eq!((held.budget.usd, held.cost("gpt-4o", tokens)), (Some(MicroUsd(5)), Some(MicroUsd(100))));
    }

    #[test]
    fn a_price_is_for_a_name_or_its_beginning() {
        let applied = |model: &str| {
            let price = PriceConfig { model: model.into(), input: 1.0, cached: None, output: 2.0 };
            let config = LlmConfig { price: vec![price], ..LlmConfig::default() };
            Spending::default().apply("test", &config).map_err(|error| error.to_string())
        };
        for model in ["a", "a*", "*", "vendor/a-1.5"] {
            assert_eq!(applied(model), Ok(()), "{model}");
        }
        for model in ["a*b", "*a", "a**"] {
            let why = applied(model).unwrap_err();
            assert!(why.starts_with("test: llm.price[0]: ") && why.contains("at the end"), "{why}");
        }
        assert!(applied("").is_err());
    }

    #[test]
    fn the_first_price_that_covers_a_model_counts() {
        let mut spending = Spending::default();
        let own = PriceConfig { model: "claude-x".into(), input: 1.0, cached: None, output: 2.0 };
        spending.apply("test", &LlmConfig { price: vec![own], ..LlmConfig::default() }).unwrap();
        let tokens = Tokens { input: 100, output: 10, ..Tokens::default() };
        assert_eq!(spending.cost("claude-x", tokens), Some(MicroUsd(120)));
        // An hour in a cache costs twice the input.
        let long = Tokens { cached_long: 40, ..tokens };
        assert_eq!((spending.cost("claude-x", long), long.total()), (Some(MicroUsd(160)), 110));
        assert_eq!(spending.cost("nobody-knows", tokens), None);
        assert!(spending.cost("claude-sonnet-4-5", tokens).is_some());
    }
}
