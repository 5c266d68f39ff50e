//! Hints for denials, adapted to the flags of this command: a suggested rule names the file that the command reads.

use policy::{Host, Target, preset_for, shell_word};

use super::url::whole;
use crate::arguments::Spec;

/// The prefix of hints that recommend a rule.
const RECOMMENDED: &str = "lockgate policy allow ";

/// How hints begin that are a command, a flag, or what a rule lacks. Others say why nothing would help, or what to do instead.
const WAYS: [&str; 4] = ["lockgate ", "--", "add ", "name it in "];

/// Formats a denial's hint for a person.
pub(crate) fn told(hint: &str, flags: &Spec) -> String {
    let hint = suited(hint, flags);
    let is_way = WAYS.iter().any(|way| hint.starts_with(way));
    if is_way { format!("to allow it: {hint}") } else { hint }
}

/// Names the built-in preset that contains the host, for a person.
pub(crate) fn group(hint: &str) -> Option<String> {
    let target = hint.strip_prefix(RECOMMENDED)?;
    let target = Target::parse(&whole(target.trim_matches('\''))).ok()?;
    let preset = preset_for(target.host(), target.port())?;
    Some(format!("or the group it belongs to: --preset {preset}"))
}

/// Whether a host is loopback, which is this machine for the sidecar and the sandbox for the command.
pub(crate) fn is_loopback(host: &Host) -> bool {
    matches!(host, Host::Address(address) if address.is_loopback())
}

/// Explains how to reach this machine's loopback.
pub(crate) fn of_loopback(allowed: &str) -> Option<String> {
    let target = Target::parse(&whole(allowed)).ok()?;
    let Host::Address(address) = target.host() else { return None };
    let rule =
        format!("{{ host = \"NAME.internal\", ports = [{}], addresses = [\"{address}\"] }}", target.port());
    address.is_loopback().then(|| {
        format!(
            "--allow {allowed}: to the command {address} is the sandbox's own, and most programs do not ask the proxy for it; \
             a rule with a name leads here: [[egress.allow]] as in {rule}, then ask for NAME.internal"
        )
    })
}

/// Rewrites a denial's hint for the given flags.
pub(crate) fn suited(hint: &str, flags: &Spec) -> String {
    let Some(target) = hint.strip_prefix(RECOMMENDED) else { return hint.to_owned() };
    if let Some(file) = &flags.policy {
        format!("{RECOMMENDED}--policy {} {target}", shell_word(&file.to_string_lossy()))
    } else if flags.no_project && !target.contains("://") {
        format!("--allow {target}")
    } else if flags.no_project {
        format!("{hint}, and leave --no-project out")
    } else if let Some(folder) = &flags.workspace {
        format!("{RECOMMENDED}--workspace {} {target}", shell_word(&folder.to_string_lossy()))
    } else {
        hint.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "lockgate policy allow example.com:443";
    const URL: &str = "lockgate policy allow https://example.com/v1";

    #[test]
    fn only_a_way_is_called_one_and_a_group_is_named() {
        let none = Spec { no_project: true, ..Spec::default() };
        for (hint, flags, expected) in [
            (HOST, &Spec::default(), "to allow it: lockgate policy allow example.com:443"),
            (HOST, &none, "to allow it: --allow example.com:443"),
            (
                "no rule can open 169.254.169.254: it is link-local",
                &none,
                "no rule can open 169.254.169.254: it is link-local",
            ),
            (
                "add \"PUT\" to the methods of that rule",
                &none,
                "to allow it: add \"PUT\" to the methods of that rule",
            ),
            ("ask again in 3 s", &none, "ask again in 3 s"),
        ] {
            assert_eq!(told(hint, flags), expected);
        }
        for (target, preset) in [
            ("github.com:443", Some("github")),
            ("https://github.com/a/b", Some("github")),
            ("'https://github.com/a?b'", Some("github")),
            ("pypi.org", Some("package-registries")),
            ("files.pythonhosted.org:443", Some("package-registries")),
            ("registry.npmjs.org:443", Some("package-registries")),
            ("static.crates.io:443", Some("package-registries")),
            ("crates.io:8443", None),
            ("example.com:443", None),
        ] {
            let line = preset.map(|name| format!("or the group it belongs to: --preset {name}"));
            assert_eq!(group(&format!("{RECOMMENDED}{target}")), line, "{target}");
        }
        assert_eq!(group("no rule can open 10.0.0.1: it is private"), None);
    }

    #[test]
    fn loopback_is_told_how_it_is_reached() {
        for (allowed, port) in [
            ("127.0.0.1:11434", Some("[11434]")),
            ("[::1]:80", Some("[80]")),
            ("10.0.0.1:80", None),
            ("a.example.com", None),
        ] {
            let told = of_loopback(allowed);
            assert_eq!(told.is_some(), port.is_some(), "{told:?}");
            assert!(told.zip(port).is_none_or(|(told, port)| told.contains(port)), "{allowed}");
        }
    }

    #[test]
    fn the_rule_goes_where_the_flags_are_read_from() {
        let flags = Spec::default();
        let named = Spec { policy: Some("my policy.toml".into()), ..Spec::default() };
        let none = Spec { no_project: true, ..Spec::default() };
        let elsewhere = Spec { workspace: Some("/src/a".into()), ..Spec::default() };
        let both = Spec { no_project: true, ..elsewhere.clone() };
        let other = "no rule can open 10.0.0.1: it is private";
        for (hint, flags, expected) in [
            (HOST, &flags, HOST),
            (HOST, &named, "lockgate policy allow --policy 'my policy.toml' example.com:443"),
            (URL, &named, "lockgate policy allow --policy 'my policy.toml' https://example.com/v1"),
            (HOST, &none, "--allow example.com:443"),
            (URL, &none, "lockgate policy allow https://example.com/v1, and leave --no-project out"),
            (HOST, &elsewhere, "lockgate policy allow --workspace /src/a example.com:443"),
            (HOST, &both, "--allow example.com:443"),
            (other, &named, other),
        ] {
            assert_eq!(suited(hint, flags), expected);
        }
    }
}
