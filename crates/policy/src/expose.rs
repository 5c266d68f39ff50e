//! `env.variable`: exposes a provider's credential to the command in one variable, in place of its placeholder.
//!
//! Each variable is named by itself; no setting exposes several. Only a variable of one of the run's providers can be exposed.
//! This module never holds the credential itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::ConfigError;
use crate::layer::Layer;
use crate::origin::Origin;
use crate::preset::provider_variables;
use crate::spec::RunSpec;
use crate::written::{RunConfig, VariableConfig};

/// Returns whether a layer exposes any credential.
pub(crate) fn is_asked(variables: &BTreeMap<String, VariableConfig>) -> bool {
    variables.values().any(|VariableConfig { expose }| *expose == Some(true))
}

/// Marks the providers whose variables are exposed. The last layer that names a variable decides, but no layer can expose the
/// credential that a managed policy keeps in, by whichever of its variables.
pub(crate) fn settle(layers: &[Layer], spec: &mut RunSpec) -> Result<(), ConfigError> {
    let mut asked: BTreeMap<&str, &Origin> = BTreeMap::new();
    let mut kept: BTreeMap<String, (&Origin, &str)> = BTreeMap::new();
    for Layer { origin, config } in layers {
        for (name, variable) in &config.env.variable {
            match variable.expose {
                Some(true) => drop(asked.insert(name, origin)),
                Some(false) => drop(asked.remove(name.as_str())),
                None => {}
            }
            if variable.expose == Some(false) && matches!(origin, Origin::Managed(_)) {
                let ids = providers_of(name, config, spec)?.into_iter();
                kept.extend(ids.map(|id| (id, (origin, name.as_str()))));
            }
        }
    }
    for (name, origin) in asked {
        let field = format!("env.variable.{}", name.escape_default());
        let provider = spec.policy.providers.iter_mut().find(|it| it.environment().iter().any(|n| n == name));
        let Some(provider) = provider else {
            let problem =
                "no provider of this run has a variable of that name, so there is nothing to expose";
            return Err(ConfigError::new(&origin.to_string(), field, problem).with_hint(what_is_there(spec)));
        };
        if let Some((managed, by)) = kept.get(provider.id().as_str()) {
            let problem = format!(
                "{managed} keeps its credential out of the sandbox, that of `{}`, by `env.variable.{by}`",
                provider.id()
            );
            return Err(ConfigError::new(&origin.to_string(), field, problem)
                .with_hint("leave `expose` out; the placeholder is good wherever the credential is"));
        }
        spec.notices.push(format!(
            "`{name}` holds the credential of `{}` itself, not a placeholder, because `expose` asks for it: whatever runs inside can \
             read it, keep it, and send it to any host that this run may reach. Leave `expose` out unless a tool computes with the \
             value; else use a credential that may do little, and replace it after the run",
            provider.id()
        ));
        Arc::make_mut(provider).exposed.push(name.to_owned());
    }
    Ok(())
}

/// Returns the providers that have a variable: those that ship, that the managed policy declares, and that the run has.
fn providers_of(name: &str, managed: &RunConfig, spec: &RunSpec) -> Result<BTreeSet<String>, ConfigError> {
    let has = |variables: &[String]| variables.iter().any(|variable| variable == name);
    let shipped = provider_variables()?.into_iter().filter(|(_, variables)| has(variables));
    let declared =
        managed.provider.iter().filter(|own| own.env.as_ref().is_some_and(|env| has(env.as_slice())));
    let used = spec.policy.providers().filter(|provider| has(provider.environment()));
    let ids = shipped.map(|(id, _)| id.to_string()).chain(declared.map(|own| own.id.clone()));
    Ok(ids.chain(used.map(|provider| provider.id().to_string())).collect())
}

/// Returns a hint that lists the run's provider variables.
fn what_is_there(spec: &RunSpec) -> String {
    let mut known: Vec<&str> =
        spec.policy.providers().flat_map(|provider| provider.environment()).map(String::as_str).collect();
    known.sort_unstable();
    known.dedup();
    match known.as_slice() {
        [] => "declare the provider whose variable it is: `--provider NAME`".into(),
        names => format!("the variables of its providers are {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::Layers;

    const EXPOSED: &str = "providers = [\"github\"]\nenv.variable.GITHUB_TOKEN = { expose = true }";
    const KEPT: &str = "env.variable.GITHUB_TOKEN = { expose = false }";

    fn compile(layers: &[(Origin, &str)]) -> Result<RunSpec, ConfigError> {
        let mut all = Layers::default();
        for (origin, text) in layers {
            all.push(origin.clone(), toml::from_str(text).unwrap());
        }
        all.compile()
    }

    fn named() -> Origin {
        Origin::Named("file".into())
    }

    fn exposed(spec: &RunSpec) -> Vec<(String, Vec<String>)> {
        spec.policy.providers().map(|it| (it.id().to_string(), it.exposed().to_vec())).collect()
    }

    // S0.7, S4.37, S4.45
    #[test]
    fn one_variable_is_exposed_and_no_other() {
        let spec = compile(&[(named(), EXPOSED)]).unwrap();
        assert_eq!(exposed(&spec), [("github".into(), vec!["GITHUB_TOKEN".into()])]);
        assert_eq!(spec.notices.len(), 1);
        assert!(spec.notices[0].contains("`GITHUB_TOKEN` holds the credential of `github` itself"));
        let none = compile(&[(named(), "providers = [\"github\"]")]).unwrap();
        assert_eq!(exposed(&none), [("github".into(), vec![])]);
        assert!(none.notices.is_empty());
        let long = "providers = [\"github\"]\n[env.variable.GH_TOKEN]\nexpose = true";
        let spec = compile(&[(Origin::User("mine".into()), EXPOSED), (Origin::Flags, long)]).unwrap();
        assert_eq!(exposed(&spec), [("github".into(), vec!["GH_TOKEN".into(), "GITHUB_TOKEN".into()])]);
    }

    #[test]
    fn a_later_layer_takes_it_back_and_a_managed_one_for_good() {
        let spec = compile(&[(named(), EXPOSED), (Origin::Flags, KEPT)]).unwrap();
        assert_eq!(exposed(&spec), [("github".into(), vec![])]);
        let managed = Origin::Managed("/etc/policy".into());
        let error = compile(&[(managed.clone(), KEPT), (Origin::Flags, EXPOSED)]).unwrap_err();
        assert!(error.to_string().contains("/etc/policy keeps its credential out"), "{error}");
        assert!(compile(&[(managed, KEPT), (named(), EXPOSED), (Origin::Flags, KEPT)]).is_ok());
        assert!(compile(&[(named(), KEPT)]).is_ok(), "what says no needs no provider");
    }

    #[test]
    fn a_managed_policy_keeps_the_credential_in_and_not_a_name() {
        let managed = || (Origin::Managed("/etc/policy".into()), KEPT);
        let own = "[[provider]]\nid = \"github\"\nauthorized_uris = [\"https://ghe.corp.example/*\"]\nenv = \"X\"\n";
        for (text, name) in [
            ("providers = [\"github\"]\nenv.variable.GH_TOKEN = { expose = true }".to_owned(), "GH_TOKEN"),
            (format!("{own}[env.variable.X]\nexpose = true"), "X"),
            (
                own.replace("github", "mine").replace("\"X\"", "[\"X\", \"GITHUB_TOKEN\"]")
                    + "[env.variable.X]\nexpose = true",
                "X",
            ),
        ] {
            let error = compile(&[managed(), (named(), &text)]).unwrap_err();
            assert_eq!(error.field, format!("env.variable.{name}"), "{text}");
            assert!(error.problem.contains("by `env.variable.GITHUB_TOKEN`"), "{error}");
            assert!(compile(&[(named(), &text)]).is_ok(), "the control");
        }
        // What it declares itself, it keeps in under every name that a later layer gives it.
        let declared = own.replace("github", "mine").replace("\"X\"", "\"MINE\"")
            + "[env.variable.MINE]\nexpose = false";
        let later = own.replace("github", "mine") + "[env.variable.X]\nexpose = true";
        let error =
            compile(&[(Origin::Managed("/etc/policy".into()), &declared), (named(), &later)]).unwrap_err();
        assert!(error.problem.contains("`mine`"), "{error}");
        let other = "providers = [\"openai\"]\nenv.variable.OPENAI_API_KEY = { expose = true }";
        assert!(compile(&[managed(), (named(), other)]).is_ok());
    }

    #[test]
    fn what_no_provider_gives_is_refused_with_what_is_there() {
        let asked =
            |name: &str| format!("providers = [\"github\"]\nenv.variable.\"{name}\" = {{ expose = true }}");
        for name in ["OPENAI_API_KEY", "*", "GITHUB_*", "", "github_token", "PATH"] {
            let error = compile(&[(named(), &asked(name))]).unwrap_err();
            assert!(error.field.starts_with("env.variable."), "{error}");
            assert_eq!(
                error.hint.as_deref(),
                Some("the variables of its providers are GH_TOKEN, GITHUB_TOKEN, GIT_TOKEN")
            );
        }
        let error = compile(&[(Origin::Flags, "env.variable.A = { expose = true }")]).unwrap_err();
        assert!(error.hint.unwrap().contains("--provider"));
        for wrong in ["expose = \"yes\"", "expose = true, value = \"x\"", "show = true"] {
            let text = format!("env.variable.GITHUB_TOKEN = {{ {wrong} }}");
            assert!(toml::from_str::<crate::RunConfig>(&text).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_projects_file_asks_in_vain_until_it_is_approved() {
        let project = |approved| Origin::Project { path: "lockgate.toml".into(), approved };
        let provider = (Origin::Flags, "providers = [\"github\"]");
        let asks = "env.variable.GITHUB_TOKEN = { expose = true }";
        let error = compile(&[(project(false), asks), provider.clone()]).unwrap_err();
        assert!(error.field.contains("env.variable") && error.problem.contains("approved"), "{error}");
        let spec = compile(&[(project(true), asks), provider.clone()]).unwrap();
        assert_eq!(exposed(&spec), [("github".into(), vec!["GITHUB_TOKEN".into()])]);
        let user = (Origin::User("mine".into()), EXPOSED);
        let spec = compile(&[user, (project(false), KEPT), provider]).unwrap();
        assert_eq!(exposed(&spec), [("github".into(), vec![])], "to take it back needs nobody's leave");
    }

    #[test]
    fn a_companion_has_no_part_in_it() {
        let text = format!("{EXPOSED}\n[[companion]]\nname = \"db\"\nimage = \"db\"\nports = [5432]");
        let spec = compile(&[(named(), &text)]).unwrap();
        assert_eq!(spec.companions[0].policy.providers().count(), 0);
    }
}
