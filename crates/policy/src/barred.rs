//! Addresses that deny rules name: no name leads there either.

use std::net::IpAddr;
use std::sync::Arc;

use crate::asked::Asked;
use crate::denial::{Denial, Guard};
use crate::hostname::Host;
use crate::pattern::HostPattern;
use crate::reach::Carriage;
use crate::rule::DenyRule;

/// What was asked, and the rules by which some of its addresses may be denied. Which, is looked up when they are known.
#[derive(Clone, Debug)]
pub(crate) struct Barred {
    asked: Asked,
    rules: Arc<Vec<DenyRule>>,
}

impl Barred {
    /// Nothing where no rule names an address.
    pub(crate) fn of(asked: &Asked, rules: &Arc<Vec<DenyRule>>) -> Option<Box<Self>> {
        let names_one = |rule: &DenyRule| matches!(rule.reach.host, HostPattern::Address(_));
        rules.iter().any(names_one).then(|| Box::new(Self { asked: asked.clone(), rules: rules.clone() }))
    }

    /// Refuses an address at which a rule would catch what was asked, had it been asked for by that address. Of a connection that is not
    /// opened nobody sees what a rule denies in part: it catches all of it.
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
