//! Hints for denials, adapted to the flags of this command: a suggested rule goes where the command reads its rules.

use std::net::IpAddr;

use policy::{
    Hint, Host, Policy, ProviderId, SuggestedRule, Target, preset_for, provider_covering, provider_for,
    shell_word,
};

use super::url::whole;
use crate::arguments::Spec;

/// When a rule can be written into the workspace's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleTime {
    /// At once.
    Now,
    /// After the run, which holds the place of the file.
    AfterTheRun,
}

impl RuleTime {
    fn remark(self) -> &'static str {
        match self {
            Self::Now => "",
            Self::AfterTheRun => " once this run has ended",
        }
    }
}

/// Formats a denial's hint for a person: a line for it, and those for the other ways.
pub(crate) fn lines(
    hint: &Hint,
    asked: &str,
    had: &[ProviderId],
    flags: &Spec,
    time: RuleTime,
) -> impl Iterator<Item = String> {
    std::iter::once(told_with(hint, flags, time)).chain(other_ways(hint, asked, had))
}

/// Formats a denial's hint for a person.
pub(crate) fn told(hint: &Hint, flags: &Spec) -> String {
    told_with(hint, flags, RuleTime::Now)
}

fn told_with(hint: &Hint, flags: &Spec, time: RuleTime) -> String {
    let is_of_project = flags.policy.is_none() && !flags.no_project;
    let remarks = match hint {
        Hint::Rule(rule) if is_of_project => [time.remark(), rule.port.remark()].concat(),
        Hint::Rule(rule) => rule.port.remark().to_owned(),
        _ => String::new(),
    };
    match suited(hint.clone(), flags) {
        hint if hint.allows() => format!("to allow it{remarks}: {hint}"),
        hint => hint.to_string(),
    }
}

/// Returns the providers that a policy has.
pub(crate) fn providers_of(policy: &Policy) -> Vec<ProviderId> {
    policy.providers().map(|provider| provider.id().clone()).collect()
}

/// Names the built-in provider whose credential is good for what is asked, unless the policy has it already, and the built-in preset that
/// contains the host, for a person. What is asked is a URL, or only the host where the path is not known.
pub(crate) fn other_ways(hint: &Hint, asked: &str, had: &[ProviderId]) -> Vec<String> {
    let Hint::Rule(_) = hint else { return Vec::new() };
    let Ok(target) = Target::parse(&whole(asked)) else { return Vec::new() };
    let (host, port) = (target.host(), target.port());
    let provider = match asked.contains("://") {
        true => provider_covering(&target),
        false => provider_for(host, port),
    };
    let provider = provider.filter(|name| !had.iter().any(|id| id.as_str() == name));
    let provider = provider.map(|name| {
        format!("or with your stored credential, which the command never sees: --provider {name}")
    });
    let preset = preset_for(host, port);
    let preset = preset.map(|name| format!("or the group it belongs to: --preset {name}"));
    provider.into_iter().chain(preset).collect()
}

/// Whether a host is loopback, which is this machine for the sidecar and the sandbox for the command.
pub(crate) fn is_loopback(host: &Host) -> bool {
    matches!(host, Host::Address(address) if address.is_loopback())
}

/// Explains why a loopback address that a rule allows is hardly reached, and how a server of this machine is.
pub(crate) fn of_loopback(rule: &str, address: IpAddr, ports: &str) -> String {
    format!(
        "{rule}: to the command {address} is the sandbox's own, and most programs do not ask the proxy for it; {}",
        policy::on_this_machine(address, ports)
    )
}

/// The same of a target of `policy allow`, if it is such an address.
pub(crate) fn of_allowed_loopback(target: &str) -> Option<String> {
    let url = Target::parse(&whole(target)).ok()?;
    let Host::Address(address) = url.host() else { return None };
    address.is_loopback().then(|| of_loopback(target, *address, &url.port().to_string()))
}

/// Returns what to say of a target of `policy allow` that has the name of a preset.
pub(crate) fn of_allowed_preset(target: &str) -> Option<String> {
    let is_it = policy::preset_names().ok()?.iter().any(|(name, _)| name == target);
    is_it.then(|| {
        format!("that is a host of this name; the preset is `presets = [\"{target}\"]` in the file, or --preset {target}")
    })
}

/// Adapts a denial's hint to the given flags.
pub(crate) fn suited(hint: Hint, flags: &Spec) -> Hint {
    let Hint::Rule(rule) = &hint else { return hint };
    let target = &rule.target;
    if let Some(file) = &flags.policy {
        Hint::Rule(SuggestedRule { file: Some(file.to_string_lossy().into()), ..*rule.clone() }.into())
    } else if flags.no_project && !target.contains("://") {
        Hint::Edit(format!("--allow {}", shell_word(target)))
    } else if flags.no_project {
        Hint::Edit(format!("{hint}, and leave --no-project out"))
    } else if let Some(folder) = &flags.workspace {
        let folder = shell_word(&folder.to_string_lossy());
        Hint::Command(format!("lockgate policy allow --workspace {folder} {}", shell_word(target)))
    } else {
        hint
    }
}

#[cfg(test)]
mod tests {
    use policy::{Layers, Origin, SuggestedPort};

    use super::*;

    const HOST: &str = "example.com:443";
    const URL: &str = "https://example.com/v1";

    fn with(rules: &str) -> Policy {
        let mut layers = Layers::default();
        layers.push(Origin::Flags, toml::from_str(rules).unwrap());
        layers.compile().unwrap().policy
    }

    #[test]
    fn only_a_way_is_called_one() {
        let none = Spec { no_project: true, ..Spec::default() };
        let edit = Hint::Edit("add \"PUT\" to the methods of that rule".into());
        for (hint, flags, expected) in [
            (Hint::rule(HOST), &Spec::default(), "to allow it: lockgate policy allow example.com:443"),
            (Hint::rule(HOST), &none, "to allow it: --allow example.com:443"),
            (edit, &none, "to allow it: add \"PUT\" to the methods of that rule"),
            ("ask again in 3 s".into(), &none, "ask again in 3 s"),
        ] {
            assert_eq!(told(&hint, flags), expected);
        }
        let named = Spec { policy: Some("p.toml".into()), ..Spec::default() };
        for (flags, expected) in [
            (&Spec::default(), "to allow it once this run has ended: lockgate policy allow example.com:443"),
            (&none, "to allow it: --allow example.com:443"),
            (&named, "to allow it: lockgate policy allow --policy p.toml example.com:443"),
        ] {
            let told = lines(&Hint::rule(HOST), HOST, &[], flags, RuleTime::AfterTheRun).next();
            assert_eq!(told.as_deref(), Some(expected));
        }
        // A remark is no part of the command, which people paste.
        let port = SuggestedPort::Unknown;
        let rule = SuggestedRule { target: "a.example".into(), port, file: None };
        let elsewhere = Spec { workspace: Some("/src/a".into()), ..Spec::default() };
        for (flags, command) in [
            (&Spec::default(), "lockgate policy allow a.example"),
            (&none, "--allow a.example"),
            (&elsewhere, "lockgate policy allow --workspace /src/a a.example"),
        ] {
            let hint = Hint::Rule(rule.clone().into());
            let expected = format!("to allow it (add :PORT if it is neither 80 nor 443): {command}");
            assert_eq!((told(&hint, flags), suited(hint, flags).to_string()), (expected, command.into()));
        }
    }

    #[test]
    fn whose_host_it_is_and_its_group_are_named() {
        let none = &Policy::default();
        let of_flags = &with("providers = [\"github\"]");
        let own = "[[provider]]\nid = \"openai\"\nauthorized_uris = [\"https://api.openai.com/v1/models\"]";
        let of_file = &with(own);
        for (asked, policy, provider, preset) in [
            ("github.com:443", none, Some("github"), Some("github")),
            ("github.com:443", of_flags, None, Some("github")),
            ("github.com:22", none, None, Some("github")),
            ("https://github.com/a/b", none, Some("github"), Some("github")),
            ("https://github.com/a?b", of_file, Some("github"), Some("github")),
            ("api.openai.com:443", none, Some("openai"), Some("llm-providers")),
            ("api.openai.com:443", of_file, None, Some("llm-providers")),
            ("https://api.openai.com/v1/chat/completions", of_file, None, Some("llm-providers")),
            ("api.openai.com:8443", none, None, None),
            ("api.openai.com:80", none, None, Some("llm-providers")),
            ("http://api.openai.com/v1/x", none, None, Some("llm-providers")),
            ("openrouter.ai:443", none, Some("openrouter"), Some("llm-providers")),
            ("https://openrouter.ai/api/v1/models", none, Some("openrouter"), Some("llm-providers")),
            ("https://openrouter.ai/docs", none, None, Some("llm-providers")),
            ("slack.com", none, Some("slack"), None),
            ("pypi.org", none, None, Some("package-registries")),
            ("files.pythonhosted.org:443", none, None, Some("package-registries")),
            ("registry.npmjs.org:443", none, Some("npm"), Some("package-registries")),
            ("static.crates.io:443", none, None, Some("package-registries")),
            ("crates.io:8443", none, None, None),
            ("example.com:443", none, None, None),
        ] {
            let provider = provider.map(|name| {
                format!("or with your stored credential, which the command never sees: --provider {name}")
            });
            let preset = preset.map(|name| format!("or the group it belongs to: --preset {name}"));
            let expected: Vec<String> = provider.into_iter().chain(preset).collect();
            assert_eq!(other_ways(&Hint::rule(HOST), asked, &providers_of(policy)), expected, "{asked}");
        }
        assert!(other_ways(&Hint::Advice("".into()), "github.com:443", &[]).is_empty());
    }

    #[test]
    fn loopback_is_told_how_it_is_reached() {
        for (allowed, port) in [
            ("127.0.0.1:11434", Some("[11434]")),
            ("[::1]:80", Some("[80]")),
            ("10.0.0.1:80", None),
            ("a.example.com", None),
        ] {
            let told = of_allowed_loopback(allowed);
            assert_eq!(told.is_some(), port.is_some(), "{told:?}");
            assert!(told.zip(port).is_none_or(|(told, port)| told.contains(port)), "{allowed}");
        }
    }

    #[test]
    fn a_host_with_the_name_of_a_preset_is_told_apart_from_it() {
        let told = of_allowed_preset("github").unwrap();
        assert!(told.contains("--preset github"), "{told}");
        assert_eq!(of_allowed_preset("github.com"), None);
    }

    #[test]
    fn the_rule_goes_where_the_flags_are_read_from() {
        let flags = Spec::default();
        let named = Spec { policy: Some("my policy.toml".into()), ..Spec::default() };
        let none = Spec { no_project: true, ..Spec::default() };
        let elsewhere = Spec { workspace: Some("/src/a".into()), ..Spec::default() };
        let both = Spec { no_project: true, ..elsewhere.clone() };
        for (target, flags, expected) in [
            (HOST, &flags, "lockgate policy allow example.com:443"),
            (HOST, &named, "lockgate policy allow --policy 'my policy.toml' example.com:443"),
            (URL, &named, "lockgate policy allow --policy 'my policy.toml' https://example.com/v1"),
            (HOST, &none, "--allow example.com:443"),
            (URL, &none, "lockgate policy allow https://example.com/v1, and leave --no-project out"),
            (HOST, &elsewhere, "lockgate policy allow --workspace /src/a example.com:443"),
            (HOST, &both, "--allow example.com:443"),
        ] {
            assert_eq!(suited(Hint::rule(target), flags).to_string(), expected);
        }
        let other = Hint::Advice("no rule can open 10.0.0.1: it is private".into());
        assert_eq!(suited(other.clone(), &named), other);
    }
}
