//! The policy's view of a companion: part of the sandbox, reached at its declared ports only.

use crate::asked::{Asked, View};
use crate::carriage::Carriage;
use crate::denial::{Denial, Guard};
use crate::hint::Hint;
use crate::hostname::Hostname;
use crate::rule::RuleName;
use crate::target::Port;

/// A companion's name and declared ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CompanionPorts {
    pub(crate) name: Hostname,
    pub(crate) ports: Vec<Port>,
}

impl CompanionPorts {
    /// Returns the name of the companion's rule.
    pub(crate) fn rule(&self) -> RuleName {
        RuleName::new(format!("companion {}", self.name))
    }

    /// Decides a connection or request to the companion, by its ports alone. Its own policy decides what it may reach outside.
    pub(crate) fn decide(&self, asked: &Asked) -> Result<Carriage, Denial> {
        if !self.ports.contains(&asked.port) {
            let list: Vec<String> = self.ports.iter().map(ToString::to_string).collect();
            let reason = format!("port {} of the companion is not among {}", asked.port, list.join(", "));
            let denial = Denial::new(Guard::Port, reason).with_rule(self.rule().as_str());
            return Err(denial.with_hint(Hint::Edit("name it in the `ports` of that [[companion]]".into())));
        }
        Ok(match asked.view {
            View::Request { .. } => Carriage::Request,
            View::Tls | View::Opaque => Carriage::Any,
        })
    }
}
