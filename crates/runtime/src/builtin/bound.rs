//! Finds the placeholder for a credential of a file: by the address where it is good, or by the variable that holds it.

use credential::Placeholder;
use policy::{OrganisationName, Policy, Provider, ProviderId, Target};

/// The providers of a run and their placeholders.
pub(super) struct Bound<'a> {
    policy: &'a Policy,
    placeholders: &'a [(Placeholder, ProviderId)],
    organisation: Option<&'a OrganisationName>,
}

impl<'a> Bound<'a> {
    pub(super) fn new(
        policy: &'a Policy,
        placeholders: &'a [(Placeholder, ProviderId)],
        organisation: Option<&'a OrganisationName>,
    ) -> Self {
        Self { policy, placeholders, organisation }
    }

    /// Returns the placeholder of the provider that is good at an address.
    pub(super) fn at(&self, url: &str) -> Option<&'a str> {
        let target = Target::parse(url).ok()?;
        self.of(self.policy.provider_at(target.host(), target.port())?)
    }

    /// Returns the placeholder of the provider whose credential a variable usually holds.
    pub(super) fn variable(&self, name: &str) -> Option<&'a str> {
        let has = |provider: &&std::sync::Arc<Provider>| provider.environment().iter().any(|n| n == name);
        self.of(self.policy.providers().find(has)?)
    }

    /// Returns how to give a credential that is good at an address.
    pub(super) fn remedy_at(&self, url: &str) -> Option<String> {
        let target = Target::parse(url).ok()?;
        Some(match policy::provider_for(target.host(), target.port()) {
            Some(name) => self.shipped(&name),
            None => {
                format!(
                    "declare a [[provider]] for {} and give it by `lockgate creds set`",
                    target.host_header()
                )
            }
        })
    }

    /// Returns how to give a credential that a variable usually holds.
    pub(super) fn remedy_of_variable(&self, name: &str) -> Option<String> {
        let known = policy::provider_variables().ok()?;
        let found = known.iter().find(|(_, variables)| variables.iter().any(|variable| variable == name));
        found.map(|(provider, _)| self.shipped(provider.as_str()))
    }

    /// Returns a text with the flag of the run's organisation in the place of `{org}`.
    pub(super) fn with_organisation(&self, text: &str) -> String {
        text.replace("{org}", &OrganisationName::flag(self.organisation))
    }

    fn shipped(&self, name: &str) -> String {
        let whose = OrganisationName::flag(self.organisation);
        format!("`lockgate creds set {name}{whose}`, and run with --provider {name}")
    }

    fn of(&self, provider: &Provider) -> Option<&'a str> {
        let mut own = self.placeholders.iter().filter(|(_, id)| id == provider.id());
        own.next().map(|(placeholder, _)| placeholder.as_str())
    }
}
