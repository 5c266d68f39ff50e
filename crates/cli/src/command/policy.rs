//! `lockgate policy`: shows and checks policies without running anything.

use policy::{Policy as Rules, RunSpec};

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
    lines(&rows(&spec)).iter().try_for_each(|line| output::data(&output::plain(line)))?;
    Ok(0)
}

/// A line of the list: an effect, what it is about, and the name of the rule; the default has none.
struct Row {
    effect: String,
    reach: String,
    name: Option<String>,
}

impl Row {
    fn new(effect: impl Into<String>, reach: impl Into<String>, name: impl Into<String>) -> Self {
        Self { effect: effect.into(), reach: reach.into(), name: Some(name.into()) }
    }
}

fn rows(spec: &RunSpec) -> Vec<Row> {
    let mut rows = rows_of(&spec.policy, "");
    for provider in spec.policy.providers().filter(|provider| !provider.exposed().is_empty()) {
        let name = format!("provider {}", provider.id());
        rows.push(Row::new("expose", provider.exposed().join(", "), name));
    }
    for inbound in &spec.inbound {
        let from = if inbound.is_local() {
            "this machine".to_owned()
        } else {
            inbound.sources().collect::<Vec<_>>().join(", ")
        };
        let reach = format!("{from} to port {}", inbound.host_port);
        rows.push(Row::new("admit", reach, inbound.to_string()));
    }
    for companion in &spec.companions {
        let ports: Vec<_> = companion.ports.iter().map(ToString::to_string).collect();
        let rules = if companion.has_own_rules() { "rules of its own" } else { "the rules above" };
        let named = format!("companion, image {}, {rules}", output::plain(&companion.image));
        rows.push(Row::new("reach", format!("{}:{}", companion.name, ports.join(",")), named));
        if companion.has_own_rules() {
            rows.extend(rows_of(&companion.policy, "  "));
        }
    }
    rows
}

/// Returns the rules of a policy in the order in which they are evaluated, then the default.
fn rows_of(policy: &Rules, indent: &str) -> Vec<Row> {
    let rules = policy.rules();
    let rows = rules.map(|(effect, name, reach)| Row::new(format!("{indent}{effect}"), reach, name.as_str()));
    let (effect, reach) = policy.rest();
    let rest = Row { effect: format!("{indent}{effect}"), reach: reach.into(), name: None };
    rows.chain([rest]).collect()
}

/// Lays the rows out in columns as wide as what is in them.
fn lines(rows: &[Row]) -> Vec<String> {
    let named = rows.iter().filter(|row| row.name.is_some());
    let width = named.map(|row| row.reach.chars().count()).max().unwrap_or_default();
    let line = |Row { effect, reach, name }: &Row| match name {
        Some(name) => format!("{effect:<EFFECT$} {reach:<width$}  {name}"),
        None => format!("{effect:<EFFECT$} {reach}"),
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_as_wide_as_its_longest_entry() {
        let rest = Row { effect: "deny".into(), reach: "all that no rule allows".into(), name: None };
        let rows = [
            Row::new("allow", "a.example:443", "one"),
            Row::new("deny", "b.example, every port", "two"),
            rest,
        ];
        assert_eq!(
            lines(&rows),
            [
                "allow     a.example:443          one",
                "deny      b.example, every port  two",
                "deny      all that no rule allows",
            ]
        );
    }
}
