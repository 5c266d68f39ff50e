//! Credentials and their named fields, such as `access_token`, or `username` and `password`.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::secret::Secret;
use crate::value::Value;

/// The most characters of a name.
const MOST: usize = 64;

/// The name of a field, as in a placeholder: 1 to 64 of `A-Z a-z 0-9 _`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldName(String);

/// The error for a text that is not the name of a field. It does not repeat the text, which may be a value in the wrong place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name of a field is 1 to {MOST} letters, digits and underscores, such as access_token")]
pub struct FieldNameError;

impl FieldName {
    /// Returns the default name.
    #[must_use]
    pub fn access_token() -> Self {
        Self("access_token".into())
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for FieldName {
    fn default() -> Self {
        Self::access_token()
    }
}

impl FromStr for FieldName {
    type Err = FieldNameError;

    fn from_str(text: &str) -> Result<Self, FieldNameError> {
        let fits = (1..=MOST).contains(&text.len()) && text.bytes().all(is_word);
        fits.then(|| Self(text.into())).ok_or(FieldNameError)
    }
}

impl fmt::Display for FieldName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for FieldName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Returns whether an octet is a word character of a placeholder, `\w`.
pub(crate) const fn is_word(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || octet == b'_'
}

/// A credential: secrets by the names of their fields.
#[derive(Clone, Debug, Default)]
pub struct Credential(BTreeMap<FieldName, Secret>);

impl Credential {
    /// Sets a field, replacing its value.
    pub fn set(&mut self, name: FieldName, value: Value) {
        self.0.insert(name, value.into_secret());
    }

    /// Returns the value of a field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Secret> {
        self.0.get(name)
    }

    /// Returns the name of the field that a placeholder stands for: the only field, or else `access_token`, which may be missing.
    #[must_use]
    pub fn main_name(&self) -> FieldName {
        let mut names = self.0.keys();
        match (names.next(), names.next()) {
            (Some(only), None) => only.clone(),
            _ => FieldName::access_token(),
        }
    }

    /// Returns the names of its fields, in order.
    pub fn names(&self) -> impl Iterator<Item = &FieldName> {
        self.0.keys()
    }

    /// Returns all its values, to mask them.
    pub fn secrets(&self) -> impl Iterator<Item = &Secret> {
        self.0.values()
    }

    /// Returns whether it has no field.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns its fields, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&FieldName, &Secret)> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        Value::new(Secret::from_text(text.into())).unwrap()
    }

    #[test]
    fn names_are_words() {
        for text in ["access_token", "a", "A9_", &"x".repeat(64)] {
            assert_eq!(text.parse::<FieldName>().unwrap().as_str(), text);
        }
        for text in ["", "a-b", "a b", "a.b", "naïve", "{{a}}", &"x".repeat(65)] {
            assert!(text.parse::<FieldName>().is_err(), "{text}");
        }
        assert_eq!(FieldName::default(), FieldName::access_token());
    }

    #[test]
    fn fields_are_set_and_found() {
        let mut credential = Credential::default();
        assert!(credential.is_empty());
        credential.set(FieldName::access_token(), value("one"));
        credential.set(FieldName::access_token(), value("two"));
        credential.set("user".parse().unwrap(), value("me"));
        assert_eq!(credential.field("access_token").unwrap().expose(), b"two");
        assert!(credential.field("other").is_none());
        assert_eq!(credential.names().map(FieldName::as_str).collect::<Vec<_>>(), ["access_token", "user"]);
        assert_eq!(credential.secrets().count(), 2);
        assert!(!format!("{credential:?}").contains("two"));
    }

    #[test]
    fn a_placeholder_stands_for_the_only_field_or_the_access_token() {
        let mut credential = Credential::default();
        assert_eq!(credential.main_name().as_str(), "access_token");
        credential.set("key".parse().unwrap(), value("one"));
        assert_eq!(credential.main_name().as_str(), "key");
        credential.set("user".parse().unwrap(), value("me"));
        assert_eq!(credential.main_name().as_str(), "access_token");
        assert!(credential.field(credential.main_name().as_str()).is_none());
    }
}
