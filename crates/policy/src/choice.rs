//! Fields with a closed set of values. The words are defined with each enum; this module parses them, and refuses any other word
//! with the list of valid ones.

use crate::error::ConfigError;

/// An enum whose variants each have a word in the policy.
pub(crate) trait Choice: Copy + 'static {
    /// All variants, in the order in which messages list them.
    const ALL: &'static [Self];
    /// What messages call a value, if the name of the field does not say it.
    const NOUN: Option<&'static str> = None;

    /// Returns the variant's word in a policy.
    fn as_str(self) -> &'static str;

    /// Parses a word.
    fn read(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|choice| choice.as_str() == word)
    }
}

/// Returns the words of a field that may be left out, for the schema: there its absence is `null`.
pub(crate) fn words_or_null<T: Choice>() -> Vec<Option<&'static str>> {
    T::ALL.iter().map(|choice| Some(choice.as_str())).chain([None]).collect()
}

/// Parses the word of a field.
pub(crate) fn parse_field<T: Choice>(
    origin: &str,
    field: impl Into<String>,
    word: &str,
) -> Result<T, ConfigError> {
    T::read(word).ok_or_else(|| {
        let error = ConfigError::new(origin, field, is_none::<T>(word));
        match T::NOUN {
            Some(noun) => error.with_hint(format!("the {noun}s are {}", listed::<T>("and"))),
            None => error,
        }
    })
}

/// Returns the message for a word that is not valid.
pub(crate) fn is_none<T: Choice>(word: &str) -> String {
    match T::NOUN {
        Some(noun) => format!("`{word}` is not a {noun} of this version"),
        None => format!("`{word}` is not {}", listed::<T>("or")),
    }
}

/// Lists all words as in a sentence.
fn listed<T: Choice>(before_the_last: &str) -> String {
    let words: Vec<String> = T::ALL.iter().map(|choice| format!("`{}`", choice.as_str())).collect();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} {before_the_last} {last}", others.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Backend, Wiring};
    use crate::enforcement::Enforcement;
    use crate::mounts::{MountMode, WorkspaceMode};

    fn each_is_read_and_x_is_told<T: Choice + PartialEq + std::fmt::Debug>() -> (String, Option<String>) {
        for choice in T::ALL {
            assert_eq!(parse_field::<T>("o", "f", choice.as_str()), Ok(*choice));
        }
        let error = parse_field::<T>("o", "f", "x").unwrap_err();
        (error.to_string(), error.hint)
    }

    #[test]
    fn what_is_none_of_them_is_refused_with_all_of_them() {
        let told = |problem: &str, hint: Option<&str>| (format!("o: f: {problem}"), hint.map(str::to_owned));
        let backends = "the backends are `linux`, `container`, `docker` and `process`";
        let backend = told("`x` is not a backend of this version", Some(backends));
        assert_eq!(each_is_read_and_x_is_told::<Backend>(), backend);
        let wirings = "the wirings are `redirect` and `veth`";
        let wiring = told("`x` is not a wiring of this version", Some(wirings));
        assert_eq!(each_is_read_and_x_is_told::<Wiring>(), wiring);
        let workspace = told("`x` is not `rw`, `ro` or `overlay`", None);
        assert_eq!(each_is_read_and_x_is_told::<WorkspaceMode>(), workspace);
        assert_eq!(each_is_read_and_x_is_told::<MountMode>(), told("`x` is not `ro` or `rw`", None));
        let enforcement = told("`x` is not `required` or `best-effort`", None);
        assert_eq!(each_is_read_and_x_is_told::<Enforcement>(), enforcement);
    }

    #[test]
    fn a_backend_is_written_with_its_word_and_none_is_no_backend() {
        assert!(parse_field::<Backend>("o", "backend", "none").is_err());
        for backend in Backend::ALL {
            let json = serde_json::to_string(backend).unwrap();
            assert_eq!(json, format!("\"{backend}\""));
            assert_eq!(serde_json::from_str::<Backend>(&json).unwrap(), *backend);
        }
        let error = serde_json::from_str::<Backend>("\"x\"").unwrap_err().to_string();
        assert!(error.contains("`x` is not a backend of this version"), "{error}");
    }
}
