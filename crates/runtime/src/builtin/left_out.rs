//! Tells the person what of a file did not enter: names of entries, never a value.

use std::path::Path;

use super::telling;

/// The longest name that is shown.
const LONGEST: usize = 80;

/// The entries that were left out of one file.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    entries: Vec<(String, Why)>,
}

/// Why an entry was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// It refers to paths or programs that are not inside.
    Outside,
    /// It is a credential, and how to give it instead.
    Credential(Option<String>),
}

impl LeftOut {
    pub(super) fn note(&mut self, name: &str, why: Why) {
        self.entries.push((shown(name), why));
    }

    /// Returns a sentence for each reason.
    pub(super) fn sentences(&self, file: &Path) -> Vec<String> {
        let mut reasons: Vec<(&Why, Vec<&str>)> = Vec::new();
        for (name, why) in &self.entries {
            match reasons.iter_mut().find(|(known, _)| *known == why) {
                Some((_, names)) if names.contains(&name.as_str()) => {}
                Some((_, names)) => names.push(name),
                None => reasons.push((why, vec![name])),
            }
        }
        let sentence = |(why, names): (&Why, Vec<&str>)| {
            let names = format!("`~/{}`: left out {}", file.display(), names.join(", "));
            match why {
                Why::Outside => format!("{names}: what that speaks of is not inside"),
                Why::Credential(None) => format!("{names}: that is, or looks like, a credential"),
                Why::Credential(Some(remedy)) => {
                    format!("{names}: that is a credential. To use it, {remedy}")
                }
            }
        };
        reasons.into_iter().map(sentence).collect()
    }

    #[cfg(test)]
    pub(super) fn names(&self) -> Vec<&str> {
        self.entries.iter().map(|(name, _)| name.as_str()).collect()
    }
}

/// Returns a name as it may be shown: anybody may choose names, even ones that contain a credential.
fn shown(name: &str) -> String {
    if telling::is_telling(name) {
        return "an entry whose name is not told".into();
    }
    let short: String = name.chars().take(LONGEST).collect();
    format!("`{}`", short.escape_debug())
}
