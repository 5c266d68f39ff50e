//! Labels: the user's own names and values for finding a run again. They have no effect on the policy, and the command does not see
//! them.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::error::ConfigError;

/// The most labels of a run. S3.16
const MOST: usize = 32;
/// The longest name, and the longest value, in octets.
const LONGEST_NAME: usize = 63;
const LONGEST_VALUE: usize = 256;

/// One label: a name and a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    name: String,
    value: String,
}

impl Label {
    fn parse(name: &str, value: &str) -> Result<Self, String> {
        let is_end = |octet: Option<&u8>| octet.is_some_and(u8::is_ascii_alphanumeric);
        let inner = |octet: u8| octet.is_ascii_alphanumeric() || matches!(octet, b'.' | b'_' | b'-');
        let octets = name.as_bytes();
        if !is_end(octets.first()) || !is_end(octets.last()) || !octets.iter().copied().all(inner) {
            return Err(format!(
                "`{}` is not the name of a label: letters, digits and inner `.`, `_` and `-`",
                name.escape_debug()
            ));
        }
        if name.len() > LONGEST_NAME {
            return Err(format!("`{name}` is longer than {LONGEST_NAME} octets"));
        }
        if value.len() > LONGEST_VALUE {
            return Err(format!("the value of `{name}` is longer than {LONGEST_VALUE} octets"));
        }
        if value.chars().any(char::is_control) {
            return Err(format!("the value of `{name}` holds a control character"));
        }
        Ok(Self { name: name.into(), value: value.into() })
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its value.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }
}

impl FromStr for Label {
    type Err = String;

    /// Parses `NAME=VALUE`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) =
            text.split_once('=').ok_or_else(|| format!("`{}` gives no value", text.escape_debug()))?;
        Self::parse(name, value)
    }
}

/// Adds the labels of a layer. A later layer's value replaces an earlier one.
pub(crate) fn apply(
    origin: &str,
    config: &BTreeMap<String, String>,
    labels: &mut Vec<Label>,
) -> Result<(), ConfigError> {
    for (name, value) in config {
        let label = Label::parse(name, value).map_err(|why| ConfigError::new(origin, "labels", why))?;
        labels.retain(|known| known.name != label.name);
        labels.push(label);
    }
    if labels.len() > MOST {
        let problem = format!("there are {}, and a run may have {MOST}", labels.len());
        return Err(ConfigError::new(origin, "labels", problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // S3.16
    #[test]
    fn labels_are_bounded_and_a_later_layer_has_the_last_word() {
        let many = |count: usize| (0..count).map(|n| (format!("k{n}"), String::new())).collect();
        let mut labels = Vec::new();
        assert!(apply("file", &many(MOST), &mut labels).is_ok());
        assert_eq!(labels.len(), MOST);
        apply("flags", &BTreeMap::from([("k3".into(), "new".into())]), &mut labels).unwrap();
        let values: Vec<&str> = labels.iter().filter(|it| it.name() == "k3").map(Label::value).collect();
        assert_eq!((labels.len(), values), (MOST, vec!["new"]));
        let error = apply("flags", &BTreeMap::from([("more".into(), String::new())]), &mut labels);
        assert!(error.unwrap_err().to_string().contains("a run may have 32"));

        let fits = |name: usize, value: usize| Label::parse(&"n".repeat(name), &"v".repeat(value)).is_ok();
        assert!(fits(LONGEST_NAME, LONGEST_VALUE));
        assert!(!fits(LONGEST_NAME + 1, 0) && !fits(1, LONGEST_VALUE + 1) && !fits(0, 1));
        assert_eq!("task=a=b".parse::<Label>().unwrap().value(), "a=b");
        assert_eq!("a\u{1b}[2Jb".parse::<Label>().unwrap_err(), "`a\\u{1b}[2Jb` gives no value");
    }
}
