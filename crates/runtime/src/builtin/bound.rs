//! Which placeholder stands for what a file holds: by the address where it is good, or by the variable it is put into.

use credential::Placeholder;
use policy::{Policy, Provider, ProviderId, Target};

/// The providers of a run and their placeholders.
pub(super) struct Bound<'a> {
    policy: &'a Policy,
    placeholders: &'a [(Placeholder, ProviderId)],
}

impl<'a> Bound<'a> {
    pub(super) fn new(policy: &'a Policy, placeholders: &'a [(Placeholder, ProviderId)]) -> Self {
        Self { policy, placeholders }
    }

    /// The placeholder of the provider that is good at an address.
    pub(super) fn at(&self, url: &str) -> Option<&'a str> {
        let target = Target::parse(url).ok()?;
        self.of(self.policy.provider_at(target.host(), target.port())?)
    }

    /// The placeholder of the provider whose credential is usual in a variable.
    pub(super) fn variable(&self, name: &str) -> Option<&'a str> {
        let has = |provider: &&std::sync::Arc<Provider>| provider.environment().iter().any(|n| n == name);
        self.of(self.policy.providers().find(has)?)
    }

    fn of(&self, provider: &Provider) -> Option<&'a str> {
        let mut own = self.placeholders.iter().filter(|(_, id)| id == provider.id());
        own.next().map(|(placeholder, _)| placeholder.as_str())
    }
}

/// How a person gives what is good at an address, or usual in a variable.
pub(super) fn remedy_at(url: &str) -> Option<String> {
    let target = Target::parse(url).ok()?;
    Some(match policy::provider_for(target.host(), target.port()) {
        Some(name) => shipped(&name),
        None => {
            format!("declare a [[provider]] for {} and give it by `lockgate creds set`", target.host_header())
        }
    })
}

/// The same for a variable.
pub(super) fn remedy_of_variable(name: &str) -> Option<String> {
    let known = policy::provider_variables().ok()?;
    let found = known.iter().find(|(_, variables)| variables.iter().any(|variable| variable == name));
    found.map(|(provider, _)| shipped(provider.as_str()))
}

fn shipped(name: &str) -> String {
    format!("`lockgate creds set {name}`, and run with --provider {name}")
}
