//! Which providers' credentials are good for a request, and which of them is put in if the request names none: that of the narrowest URI.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::asked::Asked;
use crate::carriage::Carriage;
use crate::hostname::Host;
use crate::provider::Provider;
use crate::reach::Fit;
use crate::rule::AllowRule;
use crate::rules::Policy;

impl Policy {
    /// Returns the providers whose credential is good for a request that is seen as a whole, the one with the narrowest URI first, and of
    /// equal ones that which is declared first. A companion has none: its name leads nowhere outside.
    #[must_use]
    pub fn providers_for(&self, asked: &Asked) -> Vec<&Arc<Provider>> {
        let mut fitting: Vec<_> = self.fitting(asked).collect();
        fitting.sort_by_key(|(_, rule)| Reverse(rule.reach.narrowness()));
        fitting.into_iter().map(|(provider, _)| provider).collect()
    }

    /// Returns the providers whose credentials are bound to a host, for whichever requests: any answer of the host may contain what those
    /// stored there.
    pub fn providers_bound_to(&self, host: &Host) -> impl Iterator<Item = &Arc<Provider>> {
        self.providers
            .iter()
            .filter(|provider| provider.rules.iter().any(|rule| rule.reach.host.matches(host)))
    }

    /// Returns the first of these providers, with its narrowest rule for the request.
    pub(crate) fn narrowest_for(&self, asked: &Asked) -> Option<(&Arc<Provider>, &AllowRule)> {
        self.fitting(asked).min_by_key(|(_, rule)| Reverse(rule.reach.narrowness()))
    }

    /// Returns the provider as whose a request with a provider's credential is metered: that one if it has `llm`, and otherwise the
    /// narrowest that has, unless the credential's own URI is narrower still.
    pub(crate) fn metered_as<'a>(
        &'a self,
        provider: &'a Arc<Provider>,
        asked: &Asked,
    ) -> Option<&'a Arc<Provider>> {
        if provider.llm().is_some() {
            return Some(provider);
        }
        let own = narrowest(provider, asked)?.reach.narrowness();
        let (metered, rule) = self
            .fitting(asked)
            .filter(|(other, _)| other.llm().is_some())
            .min_by_key(|(_, rule)| Reverse(rule.reach.narrowness()))?;
        (rule.reach.narrowness() >= own).then_some(metered)
    }

    /// Returns the providers whose credential is good for a request, each with its narrowest rule for it, as they are declared.
    fn fitting(&self, asked: &Asked) -> impl Iterator<Item = (&Arc<Provider>, &AllowRule)> {
        let is_companion = matches!(&asked.host, Host::Name(name) if self.companion(name).is_some());
        let providers = if is_companion { &[][..] } else { &self.providers[..] };
        providers.iter().filter_map(|provider| Some((provider, narrowest(provider, asked)?)))
    }
}

/// Returns the narrowest of a provider's rules that grants a request, and of equal ones the first.
fn narrowest<'a>(provider: &'a Arc<Provider>, asked: &Asked) -> Option<&'a AllowRule> {
    let grants = |rule: &&AllowRule| matches!(rule.reach.fit(asked), Fit::Full(Carriage::Request));
    provider.rules.iter().filter(grants).min_by_key(|rule| Reverse(rule.reach.narrowness()))
}
