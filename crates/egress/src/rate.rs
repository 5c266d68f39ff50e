//! Limits the rate of requests to a provider, with a token bucket for each that has a rate (S2).

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use policy::{Denial, Guard, Hint, Provider, ProviderId};

/// The token buckets of one run, the same in every clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rates(Rc<RefCell<HashMap<ProviderId, Bucket>>>);

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

/// A token that was taken for a request. Dropped before it is spent, it goes back.
#[derive(Debug)]
pub(crate) struct Token(Option<(Rates, ProviderId)>);

impl Token {
    /// Keeps it from going back: nothing refuses the request any more.
    pub(crate) fn spend(mut self) {
        self.0 = None;
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some((rates, provider)) = &self.0
            && let Some(bucket) = rates.0.borrow_mut().get_mut(provider)
        {
            bucket.tokens += 1.0; // beyond a burst it is cut when the next one is taken
        }
    }
}

impl Rates {
    /// Takes a token for a request, or denies the request if none is left.
    pub(crate) fn admit(&self, provider: &Provider, now: impl FnOnce() -> Instant) -> Result<Token, Denial> {
        let Some(rate) = provider.rate() else { return Ok(Token(None)) };
        let now = now();
        let (a_second, most) = (f64::from(rate.requests_per_minute) / 60.0, f64::from(rate.burst));
        let mut buckets = self.0.borrow_mut();
        let bucket = buckets.entry(provider.id().clone()).or_insert(Bucket { tokens: most, filled: now });
        let since = now.saturating_duration_since(bucket.filled).as_secs_f64();
        bucket.tokens = (bucket.tokens + since * a_second).min(most);
        bucket.filled = now;
        if bucket.tokens < 1.0 {
            let wait = ((1.0 - bucket.tokens) / a_second).ceil() as u64;
            let reason =
                format!("`{}` may be asked {} times a minute", provider.id(), rate.requests_per_minute);
            return Err(Denial::new(Guard::RateLimit, reason).with_hint(Hint::Wait(wait)));
        }
        bucket.tokens -= 1.0;
        Ok(Token(Some((self.clone(), provider.id().clone()))))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A provider that may be asked thrice at once, and once a second.
    fn limited() -> std::sync::Arc<Provider> {
        let config: policy::RunConfig = toml::from_str(
            "[[provider]]\nid = \"a\"\nauthorized_uris = [\"https://a.example.com/*\"]\n\
             rate = { requests_per_minute = 60, burst = 3 }\n",
        )
        .unwrap();
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Flags, config);
        let policy = layers.compile().unwrap().policy;
        policy.providers().next().unwrap().clone()
    }

    #[test]
    fn a_burst_passes_and_then_a_rate() {
        let (provider, rates, start) = (&limited(), Rates::default(), Instant::now());
        let asked = |after: f64| {
            rates.admit(provider, || start + Duration::from_secs_f64(after)).map(Token::spend).is_ok()
        };
        assert_eq!(
            [0.0, 0.0, 0.0, 0.0, 0.5, 1.1, 1.2, 60.0].map(asked),
            [true, true, true, false, false, true, false, true]
        );
        let asked = || rates.admit(provider, || start + Duration::from_secs(60)).map(Token::spend);
        let denial = std::iter::repeat_with(asked).find_map(Result::err).unwrap();
        assert_eq!(denial.hint, Some(Hint::Wait(1)));
    }

    #[test]
    fn a_token_that_is_not_spent_goes_back() {
        let (provider, rates, start) = (&limited(), Rates::default(), Instant::now());
        let taken = || rates.admit(provider, || start);
        // While others hold all of them there is none.
        let held = [taken(), taken(), taken()];
        assert!(taken().is_err());
        drop(held);
        // More do not come back than a burst has, although time has passed.
        let held = taken().unwrap();
        let later = || rates.admit(provider, || start + Duration::from_secs(60));
        drop((later().unwrap(), held));
        assert_eq!(std::iter::repeat_with(|| later().map(Token::spend)).take_while(Result::is_ok).count(), 3);
    }
}
