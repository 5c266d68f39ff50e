//! The ids of records and their file names.

use std::str::FromStr;

use super::error::VaultError;

/// The most characters of an id. Escaped and with its suffixes it stays far below the 255 of a file name.
const MOST: usize = 128;

/// The most characters of an invalid id that an error repeats: it may be a secret in the wrong place.
const MOST_SHOWN: usize = 24;

const ENDING: &str = ".json";

/// The id of a provider: `^(@[a-z0-9][a-z0-9-]*\/)?[a-z0-9]([a-z0-9-]*[a-z0-9])?$`, at most 128 characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecordId(String);

impl RecordId {
    /// Returns the id of the record in a file, if the file name is that of a record.
    pub(super) fn of_file(file: &str) -> Option<Self> {
        let escaped = file.strip_suffix(ENDING)?;
        let id = match escaped.strip_prefix("%40").and_then(|rest| rest.split_once("%2F")) {
            Some((scope, name)) => format!("@{scope}/{name}"),
            None => escaped.to_owned(),
        };
        id.parse().ok().filter(|id: &Self| id.file() == file)
    }

    /// Returns the name of its file. `@` and `/`, the only characters of an id that are special in a path or a shell, become `%40`
    /// and `%2F`.
    pub(super) fn file(&self) -> String {
        format!("{}{ENDING}", self.0.replace('@', "%40").replace('/', "%2F"))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }
}

impl FromStr for RecordId {
    type Err = VaultError;

    fn from_str(text: &str) -> Result<Self, VaultError> {
        let plain = |octet: u8| octet.is_ascii_lowercase() || octet.is_ascii_digit();
        let word = |text: &str| {
            text.bytes().next().is_some_and(plain) && text.bytes().all(|octet| plain(octet) || octet == b'-')
        };
        let (scope, name) = match text.strip_prefix('@') {
            Some(rest) => rest.split_once('/').map_or((false, rest), |(scope, name)| (word(scope), name)),
            None => (true, text),
        };
        if text.len() <= MOST && scope && word(name) && !name.ends_with('-') {
            Ok(Self(text.into()))
        } else {
            Err(VaultError::Id { id: text.chars().take(MOST_SHOWN).collect() })
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_are_those_of_providers() {
        for text in ["a", "anthropic", "0", "a-b", "a--b", "@org/name", "@o-/n", "@1/2", &"a".repeat(128)] {
            assert_eq!(text.parse::<RecordId>().unwrap().as_str(), text);
        }
        for text in [
            "",
            "-a",
            "a-",
            "A",
            "a_b",
            "a.b",
            "a/b",
            "@/a",
            "@a/",
            "@-a/b",
            "@a",
            "@a/b/c",
            "@@a/b",
            "..",
            ".",
            "../a",
            "@../a",
            "a\n",
            "a\0",
            "é",
            "%40a%2Fb",
            "a b",
            &"a".repeat(129),
        ] {
            assert!(text.parse::<RecordId>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn files_are_plain_names() {
        assert_eq!("@org/name".parse::<RecordId>().unwrap().file(), "%40org%2Fname.json");
        for file in [
            "generation",
            "vault.lock",
            "a",
            "a.json.new",
            ".json",
            "%40a.json",
            "A.json",
            "a%2Fb.json",
            "@a.json",
        ] {
            assert!(RecordId::of_file(file).is_none(), "{file}");
        }
    }

    proptest! {
        #[test]
        fn escaping_is_reversible(text in "(@[a-z0-9][a-z0-9-]{0,40}/)?[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?") {
            let id: RecordId = text.parse().unwrap();
            prop_assert!(!id.file().contains('/') && id.file().len() < 255);
            prop_assert_eq!(RecordId::of_file(&id.file()), Some(id));
        }

        #[test]
        fn a_file_that_is_read_is_the_one_that_is_written(file in "[a-z0-9%@/A-F.-]{0,20}(.json)?") {
            if let Some(id) = RecordId::of_file(&file) {
                prop_assert_eq!(id.file(), file);
            }
        }
    }
}
