//! `lockgate policy`: shows and checks policies without running anything.

use policy::RunSpec;
use runtime::Permission;

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
    let listed = listed(&settings(spec)?.spec);
    if form == Form::Json {
        for permission in listed {
            output::data(&serde_json::to_string(&permission)?)?;
        }
        return Ok(0);
    }
    let rows: Vec<_> = listed.into_iter().map(Row::of).collect();
    lines(&rows).iter().try_for_each(|line| output::data(&output::plain(line)))?;
    Ok(0)
}

/// A line of the list: an effect, what it is about, and the name of the rule; the default has none.
struct Row {
    effect: String,
    reach: String,
    name: Option<String>,
}

impl Row {
    /// A companion's rules are indented below it.
    fn of(Permission { companion, effect, rule, reach }: Permission) -> Self {
        let indent = if companion.is_some() { "  " } else { "" };
        let name = Some(rule).filter(|rule| rule != runtime::REST);
        Self { effect: format!("{indent}{effect}"), reach, name }
    }
}

/// Returns the rules in the order in which they are evaluated, the credentials that are exposed, who may come in, and the companions,
/// each with its rules.
fn listed(spec: &RunSpec) -> Vec<Permission> {
    let rules_of = |name: Option<&str>| {
        runtime::permissions(spec).filter(move |it| it.companion.as_deref() == name).collect::<Vec<_>>()
    };
    let more = |effect: &str, reach: String, rule: String| Permission {
        companion: None,
        effect: effect.into(),
        rule,
        reach,
    };
    let mut all = rules_of(None);
    for provider in spec.policy.providers().filter(|provider| !provider.exposed().is_empty()) {
        all.push(more("expose", provider.exposed().join(", "), format!("provider {}", provider.id())));
    }
    for inbound in &spec.inbound {
        let from = if inbound.is_local() {
            "this machine".to_owned()
        } else {
            inbound.sources().collect::<Vec<_>>().join(", ")
        };
        all.push(more("admit", format!("{from} to port {}", inbound.host_port), inbound.to_string()));
    }
    for companion in &spec.companions {
        let ports: Vec<_> = companion.ports.iter().map(ToString::to_string).collect();
        let rules = if companion.has_own_rules() { "rules of its own" } else { "the rules above" };
        let named = format!("companion, image {}, {rules}", output::plain(&companion.image));
        all.push(more("reach", format!("{}:{}", companion.name, ports.join(",")), named));
        all.extend(rules_of(Some(&companion.name.to_string())));
    }
    all
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
        let rows = [
            ("allow", "a.example:443", "one"),
            ("deny", "b.example, every port", "two"),
            ("deny", "all that no rule allows", runtime::REST),
        ];
        let rows = rows.map(|(effect, reach, rule)| {
            let (effect, reach, rule) = (effect.into(), reach.into(), rule.into());
            Row::of(Permission { companion: None, effect, reach, rule })
        });
        assert_eq!(
            lines(&rows),
            [
                "allow     a.example:443          one",
                "deny      b.example, every port  two",
                "deny      all that no rule allows",
            ]
        );
    }

    #[test]
    fn what_is_listed_has_more_than_rules() {
        let text = "egress.allow = [{ host = \"a.example.com:443\" }]\nproviders = [\"github\"]\n\
            env.variable.GITHUB_TOKEN = { expose = true }\n\
            [[inbound]]\ncontainer_port = 8000\nallowed_sources = [\"10.0.0.0/8\"]\n\
            [[companion]]\nname = \"db\"\nimage = \"one\"\nports = [8080]\n\
            [[companion]]\nname = \"own\"\nimage = \"two\"\nports = [9090]\negress = { default = \"open-internet\" }\n";
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Named("file".into()), toml::from_str(text).unwrap());
        let listed = listed(&layers.compile().unwrap());
        let of = |effect: &str| {
            let found = listed.iter().filter(|it| it.effect == effect && it.companion.is_none());
            found.map(|it| it.reach.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(of("expose"), ["GITHUB_TOKEN"]);
        assert_eq!(of("admit"), ["10.0.0.0/8 to port 8000"]);
        assert_eq!(of("reach"), ["db:8080", "own:9090"]);
        assert_eq!(of("allow"), ["a.example.com:443"]);
        let last = listed.last().unwrap();
        assert!(last.companion.as_deref() == Some("own") && last.effect == "allow", "{last:?}");
        let text = lines(&listed.into_iter().map(Row::of).collect::<Vec<_>>());
        assert!(text.last().unwrap().starts_with("  allow   everything else"), "{text:?}");
    }
}
