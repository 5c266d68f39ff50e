//! Permission for a request or connection. Only the decision makes one.

use std::net::IpAddr;
use std::sync::Arc;

use crate::address::AddressClass;
use crate::advice::{not_to_be_opened, private_service, rule_for};
use crate::carriage::Carriage;
use crate::denial::{Denial, Guard, MANAGED};
use crate::denied_addresses::DeniedAddresses;
use crate::hint::Hint;
use crate::hostname::Host;
use crate::provider::Provider;
use crate::rule::RuleName;
use crate::target::Port;

/// Permission for one request or connection, with the host it is for and the rules for that host's addresses.
#[derive(Clone, Debug)]
pub struct Grant {
    pub(super) host: Host,
    pub(super) port: Port,
    pub(super) rule: RuleName,
    pub(super) carriage: Carriage,
    pub(super) addresses: Option<Arc<[IpAddr]>>,
    pub(super) provider: Option<Arc<Provider>>,
    pub(super) metered_as: Option<Arc<Provider>>,
    pub(super) bound: bool,
    pub(super) refuses_own_credentials: bool,
    pub(super) message_wise: bool,
    pub(super) companion: bool,
    pub(super) denied_addresses: Option<Box<DeniedAddresses>>,
    /// What the managed policy grants for the same request, if it has egress rules.
    pub(super) ceiling: Option<Box<Grant>>,
}

impl Grant {
    /// Returns the provider whose credential is valid for this request.
    #[must_use]
    pub fn provider(&self) -> Option<&Arc<Provider>> {
        self.provider.as_ref()
    }

    /// Returns the provider as whose the request is metered. An agent cannot avoid its budget by the placeholder of another provider with
    /// the same URI.
    #[must_use]
    pub fn metered_as(&self) -> Option<&Arc<Provider>> {
        self.metered_as.as_ref()
    }

    /// Returns whether a credential is bound to the host, even if for other requests only: the answer to this one may contain what those
    /// stored there.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.bound
    }

    /// Returns whether a provider that is bound to the host is `pinned`: no credential of the command's own may then be sent there.
    #[must_use]
    pub fn refuses_own_credentials(&self) -> bool {
        self.refuses_own_credentials
    }

    /// Whether messages of gRPC and Connect in an answer may be passed on one by one. Where a credential is bound to the host,
    /// its provider has to say so: elsewhere an agent could have stored content answered as such messages, with a border
    /// inside a credential that is part of it, and what comes before the border would not be found.
    #[must_use]
    pub fn is_message_wise(&self) -> bool {
        self.message_wise
    }

    /// Returns the granted host.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the granted port.
    #[must_use]
    pub fn port(&self) -> Port {
        self.port
    }

    /// Returns whether the host is a companion, which has no address outside.
    #[must_use]
    pub fn is_companion(&self) -> bool {
        self.companion
    }

    /// Returns the rule that matched.
    #[must_use]
    pub fn rule(&self) -> &RuleName {
        &self.rule
    }

    /// Returns what the connection may carry.
    #[must_use]
    pub fn carriage(&self) -> Carriage {
        self.carriage
    }

    /// Returns the addresses that the rule itself lists. Such a host is not resolved.
    #[must_use]
    pub fn addresses(&self) -> Option<&[IpAddr]> {
        self.addresses.as_deref()
    }

    /// Checks every address that the host resolved to (R10). All must pass: one private address among public ones
    /// refuses the host (E14).
    ///
    /// # Errors
    /// A denial if there is no address, or if one is of a class that the rule does not name.
    pub fn vet(&self, found: &[IpAddr]) -> Result<(), Denial> {
        if found.is_empty() {
            return Err(Denial::new(Guard::NoAddress, format!("{} has no address", self.host))
                .with_rule(self.rule.as_str())
                .with_hint("see that the name is the one you mean"));
        }
        for address in found {
            self.refuse_denied(*address)?;
            let class = AddressClass::of(*address);
            let named = self.names(*address) && class.may_be_named();
            if !class.is_public() && !named {
                let denial = Denial::new(Guard::Address, self.placed(*address, &class.to_string()));
                let denial = denial.with_rule(self.rule.as_str());
                return Err(denial.with_hint(match self.host {
                    _ if !class.may_be_named() => not_to_be_opened(*address),
                    _ if self.ceiling.as_deref().is_some_and(|ceiling| !ceiling.names(*address)) => {
                        Hint::from(MANAGED)
                    }
                    Host::Address(_) => rule_for(&self.host, self.port),
                    Host::Name(_) => private_service(&self.rule),
                }));
            }
        }
        Ok(())
    }

    /// Refuses an address that a deny rule names.
    pub(crate) fn refuse_denied(&self, address: IpAddr) -> Result<(), Denial> {
        let refuse = |denied_addresses: &DeniedAddresses| denied_addresses.refuse(address, self.carriage);
        self.denied_addresses.as_deref().map_or(Ok(()), refuse)?;
        let ceiling = self.ceiling.as_deref().and_then(|ceiling| ceiling.denied_addresses.as_deref());
        ceiling.map_or(Ok(()), refuse).map_err(Denial::managed)
    }

    /// Returns whether the rule itself lists an address.
    fn names(&self, address: IpAddr) -> bool {
        self.addresses().is_some_and(|list| list.contains(&address))
    }

    /// Checks the addresses that another rule lists for the same host: whoever lists them says where the name leads.
    pub(super) fn vet_listed(&self, listed: &[IpAddr]) -> Result<(), Denial> {
        self.vet(listed)?;
        match listed.iter().find(|address| !self.names(**address)) {
            Some(address) => {
                let reason = self.placed(*address, "not among the addresses of its rule");
                Err(Denial::new(Guard::Address, reason).with_rule(self.rule.as_str()))
            }
            None => Ok(()),
        }
    }

    /// Says of one of the host's addresses that it is `what`.
    #[must_use]
    pub fn placed(&self, address: IpAddr, what: &str) -> String {
        match &self.host {
            Host::Address(own) if *own == address => format!("{address} is {what}"),
            host => format!("{host} is at {address}, which is {what}"),
        }
    }
}
