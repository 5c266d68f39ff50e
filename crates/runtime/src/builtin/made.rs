//! Files of the sandbox's own: what a program must find in its home to use a provider's placeholder. They say nothing of the caller's,
//! and are there whatever the caller's home has.

use std::path::PathBuf;

use super::bound::Bound;
use super::table::Made;

/// How much of a key's end programs keep to know it again.
const END: usize = 20;

/// Writes the files whose provider the run has. What entered from the caller's home at that place stays, and goes before it.
pub(super) fn write<'a>(
    files: &mut Vec<(PathBuf, String)>,
    all: impl IntoIterator<Item = &'a Made>,
    bound: &Bound<'_>,
) {
    for made in all {
        let Some(placeholder) = bound.at(&made.at) else { continue };
        let end = &placeholder[placeholder.len() - END..];
        let content = made.content.replace("{placeholder}", placeholder).replace("{end}", end);
        match files.iter_mut().find(|(path, _)| *path == made.path) {
            None => files.push((made.path.clone(), content)),
            Some((_, text)) if made.unless.as_ref().is_some_and(|said| text.contains(said)) => {}
            Some((_, text)) => {
                if !text.is_empty() && !text.ends_with('\n') {
                    text.push('\n');
                }
                text.push_str(&content);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use credential::Placeholder;
    use policy::{Layers, Origin, Policy};

    use super::*;
    use crate::builtin::table;

    /// A policy with one provider at an address, and its placeholder.
    fn bound_to(at: &str) -> (Policy, Placeholder) {
        let text = format!("[[provider]]\nid = \"p\"\nauthorized_uris = [\"{at}*\"]\n");
        let mut layers = Layers::default();
        layers.push(Origin::Flags, toml::from_str(&text).unwrap());
        (layers.compile().unwrap().policy, Placeholder::mint([7; 27]))
    }

    /// The files of a tool, or of the providers alone, beside what of the home entered at a place.
    fn written(tool: Option<&str>, at: &str, entered: &[(&str, &str)]) -> (Vec<(PathBuf, String)>, String) {
        let (policy, placeholder) = bound_to(at);
        let placeholders = [(placeholder.clone(), "p".parse().unwrap())];
        let bound = Bound::new(&policy, &placeholders, None);
        let mut files: Vec<_> =
            entered.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
        match tool {
            Some(tool) => write(&mut files, &table::named(&[tool.into()]).unwrap()[0].made, &bound),
            None => write(&mut files, &table::of_providers().unwrap(), &bound),
        }
        (files, placeholder.to_string())
    }

    #[test]
    fn an_agent_finds_its_provider_in_a_home_that_has_nothing() {
        let (files, placeholder) = written(Some("claude"), "https://api.anthropic.com/", &[]);
        let own: serde_json::Value = serde_json::from_str(&files[0].1).unwrap();
        assert_eq!(files[0].0, PathBuf::from(".claude.json"));
        assert_eq!(own["hasCompletedOnboarding"], true);
        assert_eq!(own["customApiKeyResponses"]["approved"][0], placeholder[placeholder.len() - END..]);
        let (files, placeholder) = written(Some("codex"), "https://api.openai.com/", &[]);
        let own: serde_json::Value = serde_json::from_str(&files[0].1).unwrap();
        assert_eq!(
            (files[0].0.to_str(), &own["OPENAI_API_KEY"]),
            (Some(".codex/auth.json"), &placeholder.into())
        );
        for tool in ["claude", "codex"] {
            assert!(written(Some(tool), "https://h.example/", &[]).0.is_empty(), "{tool}");
        }
    }

    #[test]
    fn a_line_is_added_to_what_entered_unless_that_says_it() {
        let at = "https://registry.npmjs.org/";
        let (files, placeholder) = written(None, at, &[(".npmrc", "fund=false")]);
        let line = format!("//registry.npmjs.org/:_authToken={placeholder}\n");
        assert_eq!(files, [(".npmrc".into(), format!("fund=false\n{line}"))]);
        assert_eq!(written(None, at, &[]).0, [(".npmrc".into(), line)]);
        let own = "//registry.npmjs.org/:_authToken=${NPM_TOKEN}\n";
        assert_eq!(written(None, at, &[(".npmrc", own)]).0[0].1, own);
        assert!(written(None, "https://h.example/", &[]).0.is_empty());
    }
}
