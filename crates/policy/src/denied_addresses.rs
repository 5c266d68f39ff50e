//! Deny rules that name an address: no host name may lead to that address either.

use std::net::IpAddr;
use std::sync::Arc;

use crate::asked::Asked;
use crate::carriage::Carriage;
use crate::denial::{Denial, Guard};
use crate::hostname::Host;
use crate::pattern::HostPattern;
use crate::rule::DenyRule;

/// A question and the deny rules, kept until the host's addresses are known.
#[derive(Clone, Debug)]
pub(crate) struct DeniedAddresses {
    asked: Asked,
    rules: Arc<Vec<DenyRule>>,
}

impl DeniedAddresses {
    /// Returns `None` if no rule names an address.
    pub(crate) fn of(asked: &Asked, rules: &Arc<Vec<DenyRule>>) -> Option<Box<Self>> {
        let names_one = |rule: &DenyRule| matches!(rule.reach.host, HostPattern::Address(_));
        rules.iter().any(names_one).then(|| Box::new(Self { asked: asked.clone(), rules: rules.clone() }))
    }

    /// Refuses an address if a rule would catch the same question with that address as its host. The requests in a connection that is
    /// not terminated are not visible, so a rule that denies some of them catches the whole connection.
    pub(crate) fn refuse(&self, address: IpAddr, carriage: Carriage) -> Result<(), Denial> {
        let there = Asked { host: Host::Address(address), ..self.asked.clone() };
        let unseen = matches!(carriage, Carriage::Any | Carriage::Tls);
        let catches = |rule: &&DenyRule| {
            let in_part = || unseen && rule.reach.is_partial() && rule.reach.is_at(&there.host, there.port);
            matches!(rule.reach.host, HostPattern::Address(own) if own == address)
                && (rule.reach.catches(&there) || in_part())
        };
        let Some(rule) = self.rules.iter().find(catches) else { return Ok(()) };
        let reason = || format!("{} is at {address}, which is denied", self.asked.host);
        let denial = Denial::new(Guard::DenyRule, rule.reason.clone().unwrap_or_else(reason));
        Err(denial.with_rule(rule.name.as_str()))
    }
}
