//! The formats of configuration files. Each parses its text, asks the judge about every entry, and writes what is kept anew. Comments
//! are never kept. A text that does not parse is an error, which says where and not what.

mod git_config;
mod git_credentials;
mod ini;
mod npmrc;
mod text;
mod tree;
mod yaml;

use std::fmt;

use super::judge::Judge;
use super::table::Form;

/// A text is not what its format says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotUnderstood {
    line: Option<usize>,
}

impl NotUnderstood {
    fn at(line: usize) -> Self {
        Self { line: Some(line) }
    }

    fn somewhere() -> Self {
        Self { line: None }
    }
}

impl fmt::Display for NotUnderstood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line} of it is not understood"),
            None => f.write_str("it is not understood, or may hold a credential somewhere"),
        }
    }
}

impl Form {
    /// Returns the text as it may enter.
    pub(super) fn anew(self, text: &str, judge: &mut Judge<'_>) -> Result<String, NotUnderstood> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        match self {
            Self::GitConfig => git_config::anew(text, judge),
            Self::GitCredentials => git_credentials::anew(text, judge),
            Self::Ini => ini::anew(text, judge),
            Self::Npmrc => npmrc::anew(text, judge),
            Self::Json => tree::json(text, judge),
            Self::Toml => tree::toml(text, judge),
            Self::Yaml => yaml::anew(text, judge),
            Self::Text | Self::Texts => text::anew(text),
        }
    }
}

#[cfg(test)]
mod tried {
    //! Judges a text of a format with one provider, good at `bound.example`, whose variable is `BOUND_TOKEN`.

    use std::collections::BTreeMap;

    use credential::Placeholder;
    use policy::{Layers, Origin};

    use super::super::bound::Bound;
    use super::super::table::Entry;
    use super::*;

    const POLICY: &str = "[[provider]]\nid = \"bound\"\nauthorized_uris = [\"https://bound.example/*\"]\nenv = \"BOUND_TOKEN\"";

    /// Returns the text as it enters, with `{}` for the placeholder, and the names of what was left out.
    pub(super) fn tried(form: Form, rest: &str, text: &str) -> Result<(String, Vec<String>), NotUnderstood> {
        let placeholder = Placeholder::mint([7; 27]);
        let (anew, left_out) = entering(form, rest, text)?;
        Ok((anew.replace(placeholder.as_str(), "{}"), left_out))
    }

    /// Returns the text as it enters, with the placeholder itself.
    pub(super) fn entering(
        form: Form,
        rest: &str,
        text: &str,
    ) -> Result<(String, Vec<String>), NotUnderstood> {
        let mut layers = Layers::default();
        layers.push(Origin::Flags, toml::from_str(POLICY).unwrap());
        let policy = layers.compile().unwrap().policy;
        let placeholders = vec![(Placeholder::mint([7; 27]), "bound".parse().unwrap())];
        let bound = Bound::new(&policy, &placeholders, None);
        let mut entry: Entry = toml::from_str(&format!("path = \"x\"\nform = \"text\"\n{rest}")).unwrap();
        entry.form = form;
        let known = ("registries.own.index".into(), "sparse+https://bound.example/i/".into());
        let mut kept = BTreeMap::from([known]);
        let mut judge = Judge::new(&bound, &entry, &mut kept);
        let anew = form.anew(text, &mut judge)?;
        let left_out = judge.left_out();
        let told = left_out.sentences("x".as_ref()).concat();
        assert!(!anew.contains("hush") && !told.contains("hush"), "{anew}\n{told}");
        Ok((anew, left_out.names().into_iter().map(str::to_owned).collect()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::Strategy;

    use super::*;

    const FORMS: [Form; 9] = [
        Form::GitConfig,
        Form::GitCredentials,
        Form::Ini,
        Form::Npmrc,
        Form::Json,
        Form::Toml,
        Form::Yaml,
        Form::Text,
        Form::Texts,
    ];

    proptest::proptest! {
        #[test]
        fn whatever_stands_there_what_is_written_anew_is_understood(text in proptest::collection::vec(
            proptest::prelude::prop_oneof![
                "[ -~]{0,8}", "\\PC{0,4}",
                proptest::sample::select(vec![
                    "[a]\n", "[a \"b\"]\n", "\n", "\r\n", " ", "\t", "a", "b.c", "token", "_auth", "//h/:", "=", ":", ": ", "\"",
                    "'", "\\", "\\\n", "#", ";", "{", "}", "[", "]", ",", "https://", "u:p@", "@", "/", "- ", "1", "true", "$X",
                    "${X}", "Authorization: Basic ", "http", "extraheader", "[http \"https://h/\"]\n", "\u{0}", "\u{e9}", "{}", "[]",
                ]).prop_map(str::to_owned),
            ], 0..24,
        )) {
            let text = text.concat();
            // A random text may contain the word that stands for a secret: here it does not count.
            let text = text.replace("hush", "");
            for form in FORMS {
                if let Ok((anew, _)) = tried::entering(form, "", &text) {
                    let again = tried::entering(form, "", &anew);
                    proptest::prop_assert!(again.is_ok(), "{:?}: {:?} became {:?}", form, text, anew);
                }
            }
        }
    }
}
