//! `lockgate policy`: shows and checks policies without running anything.

use policy::Policy as Rules;

use super::spec::settings;
use super::{policy_check, policy_edit, policy_explain};
use crate::arguments::{Policy, Spec};
use crate::exit::Done;
use crate::output::{self, Form};

pub(crate) fn policy(command: Policy) -> Done {
    match command {
        Policy::Init { file } => policy_edit::init(&file),
        Policy::Allow { targets, file } => policy_edit::allow(&file, &targets),
        Policy::Deny { targets, reason, file } => policy_edit::deny(&file, &targets, reason.as_deref()),
        Policy::Approve { workspace } => policy_edit::approve(workspace),
        Policy::Ls { spec, json } => ls(&spec, Form::of(json)),
        Policy::Check(check) => policy_check::check(&check),
        Policy::Explain { spec, target, method, json } => {
            policy_explain::explain(&spec, &target, method.as_deref(), Form::of(json))
        }
        Policy::Schema => {
            output::data(&serde_json::to_string_pretty(&schemars::schema_for!(policy::RunConfig))?)?;
            Ok(0)
        }
    }
}

/// The width of the longest effect, `at most`, indented as a companion's is.
const EFFECT: usize = 9;

fn ls(spec: &Spec, form: Form) -> Done {
    let spec = settings(spec)?.spec;
    if form == Form::Json {
        for permission in runtime::permissions(&spec) {
            output::data(&serde_json::to_string(&permission)?)?;
        }
        return Ok(0);
    }
    ls_rules(&spec.policy, "")?;
    for provider in spec.policy.providers().filter(|provider| !provider.exposed().is_empty()) {
        row("expose", &provider.exposed().join(", "), &format!("provider {}", provider.id()))?;
    }
    for inbound in &spec.inbound {
        let from = if inbound.is_local() {
            "this machine".to_owned()
        } else {
            inbound.sources().collect::<Vec<_>>().join(", ")
        };
        row("admit", &format!("{from} to port {}", inbound.host_port), &inbound.to_string())?;
    }
    for companion in &spec.companions {
        let ports: Vec<_> = companion.ports.iter().map(ToString::to_string).collect();
        let rules = if companion.has_own_rules() { "rules of its own" } else { "the rules above" };
        let named = format!("companion, image {}, {rules}", output::plain(&companion.image));
        row("reach", &format!("{}:{}", companion.name, ports.join(",")), &named)?;
        if companion.has_own_rules() {
            ls_rules(&companion.policy, "  ")?;
        }
    }
    Ok(0)
}

/// Lists the rules of a policy in the order in which they are evaluated, then the default.
fn ls_rules(policy: &Rules, indent: &str) -> std::io::Result<()> {
    for (effect, name, reach) in policy.rules() {
        row(&format!("{indent}{effect}"), &reach.to_string(), name.as_str())?;
    }
    let (effect, reach) = policy.rest();
    output::data(&format!("{:<EFFECT$} {reach}", format!("{indent}{effect}")))
}

fn row(effect: &str, reach: &str, name: &str) -> std::io::Result<()> {
    output::data(&output::plain(&format!("{effect:<EFFECT$} {reach:<48}  {name}")))
}
