//! The decision for a question of DNS: a pure function from a name to the rule that lets it be asked, or a [`Denial`].

use crate::advice::{not_allowed, reserved};
use crate::asked::{Asked, Plane, View};
use crate::denial::Denial;
use crate::hostname::{Host, Hostname};
use crate::pattern::is_reserved;
use crate::rule::RuleName;
use crate::rules::Policy;
use crate::target::Scheme;

impl Policy {
    /// Decides whether the sandbox may resolve a name: whether any connection to it could be granted.
    ///
    /// # Errors
    /// The denial that a connection to the name would get.
    pub fn decide_name(&self, name: &Hostname) -> Result<RuleName, Denial> {
        let host = Host::Name(name.clone());
        let asked = Asked::connection(Plane::Dns, host, Scheme::Https.default_port(), View::Opaque);
        if is_reserved(name) {
            return Err(self.advised(reserved(name, format!("{name} is reserved"), "PORT"), &asked));
        }
        if let Some(rule) =
            self.deny.iter().find(|r| r.reach.is_whole_host() && r.reach.host.matches(&asked.host))
        {
            let reason = rule.reason.clone().unwrap_or_else(|| format!("{name} is denied"));
            return Err(self.advised(rule.denial(reason), &asked));
        }
        if let Some(companion) = self.companion(name) {
            return Ok(companion.rule());
        }
        if let Some(ceiling) = &self.ceiling {
            ceiling.decide_name(name).map_err(Denial::managed)?;
        }
        let bound = self.providers.iter().flat_map(|provider| &provider.rules);
        match bound.chain(&self.allow).find(|rule| rule.reach.host.matches(&asked.host)) {
            Some(rule) => Ok(rule.name.clone()),
            None => match self.deny_unrequested_search(&asked.host) {
                None if self.is_open() => Ok(RuleName::OpenInternet),
                unrequested => Err(self.in_its_file(unrequested.unwrap_or_else(|| not_allowed(&asked)))),
            },
        }
    }
}
