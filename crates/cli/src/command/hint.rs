//! What would allow what was denied, for the flags that this command was given: the rule goes where they are read from.

use policy::shell_word;

use crate::arguments::Spec;

/// What a denial says of itself, and only where it recommends a rule.
const RECOMMENDED: &str = "lockgate policy allow ";

/// A denial's hint, as whoever gave these flags can follow it.
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
