//! What a run was allowed, as its record keeps it: the rules of its policy, in the order of evaluation.

use policy::{Policy, RunSpec};
use serde::{Deserialize, Serialize};

/// The name of the rule for everything that no rule covers.
pub const REST: &str = "egress.default";

/// One rule. S4.69
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permission {
    /// The companion whose rule it is, if that companion has rules of its own; otherwise the command's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub companion: Option<String>,
    /// `deny`, `bind` (a credential is injected), `allow`, or `at most`: a managed policy's rule, and what none of those covers is denied.
    pub effect: String,
    /// The rule, and where it was written.
    pub rule: String,
    /// What it covers.
    pub reach: String,
}

/// Returns every rule: the command's, then those of companions that have their own. Each list ends with the default.
pub fn permissions(spec: &RunSpec) -> impl Iterator<Item = Permission> {
    let own = spec.companions.iter().filter(|companion| companion.has_own_rules());
    let companions = own.map(|companion| (Some(companion.name.to_string()), &companion.policy));
    [(None, &spec.policy)].into_iter().chain(companions).flat_map(|(companion, policy)| of(companion, policy))
}

fn of(companion: Option<String>, policy: &Policy) -> impl Iterator<Item = Permission> {
    let rules = policy.rules().map(|(effect, rule, reach)| (effect, rule.as_str(), reach));
    let (effect, reach) = policy.rest();
    rules.chain([(effect, REST, reach.to_owned())]).map(move |(effect, rule, reach)| Permission {
        companion: companion.clone(),
        effect: effect.into(),
        rule: rule.into(),
        reach,
    })
}
