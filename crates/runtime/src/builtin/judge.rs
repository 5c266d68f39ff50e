//! Decides on each entry of a configuration: it is kept, its value becomes a placeholder, or it is left out.

use std::collections::BTreeMap;

use super::bound::Bound;
use super::left_out::{LeftOut, Why};
use super::table::Entry;
use super::telling;
use super::userinfo::{self, Told};

/// The decision on an entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It enters unchanged.
    Keep,
    /// It enters with another value.
    Become(String),
    /// It does not enter.
    LeaveOut,
}

/// Judges the entries of one file.
pub(super) struct Judge<'a> {
    bound: &'a Bound<'a>,
    entry: &'a Entry,
    /// The values of the tool's files that were kept so far, by the names of the entries.
    kept: &'a mut BTreeMap<String, String>,
    left_out: LeftOut,
    /// Whether an entry was a credential, whatever was decided on it.
    has_credential: bool,
}

impl<'a> Judge<'a> {
    pub(super) fn new(
        bound: &'a Bound<'a>,
        entry: &'a Entry,
        kept: &'a mut BTreeMap<String, String>,
    ) -> Self {
        Self { bound, entry, kept, left_out: LeftOut::default(), has_credential: false }
    }

    pub(super) fn left_out(self) -> LeftOut {
        self.left_out
    }

    /// Whether any entry was a credential, or names where one is.
    pub(super) fn has_credential(&self) -> bool {
        self.has_credential
    }

    /// Notes that a credential from elsewhere is used, as by `${TOKEN}`.
    pub(super) fn refers(&mut self) {
        self.has_credential = true;
    }

    /// Returns the providers of the run.
    pub(super) fn bound(&self) -> &'a Bound<'a> {
        self.bound
    }

    /// Notes that a part of an entry, which is a credential, was left out.
    pub(super) fn lacks(&mut self, name: &str, remedy: Option<String>) {
        self.has_credential = true;
        self.left_out.note(name, Why::Credential(remedy));
    }

    /// Whether an entry refers to what is not inside; if so, notes it.
    pub(super) fn is_outside(&mut self, path: &[&str]) -> bool {
        let name = path.join(".");
        let lower = name.to_lowercase();
        let is = self.entry.outside.iter().any(|known| match known.strip_suffix('*') {
            Some(beginning) => lower.starts_with(beginning),
            None => lower == *known,
        });
        if is {
            self.left_out.note(&name, Why::Outside);
        }
        is
    }

    /// Leaves out an entry that is not understood: it may be a credential, and is noted as one.
    pub(super) fn leave_out(&mut self, name: &str) -> Fate {
        self.lacks(name, None);
        Fate::LeaveOut
    }

    /// Returns the placeholder for the credential in an entry that is good at an address; notes the entry if there is none.
    pub(super) fn credential_at(&mut self, name: &str, url: &str) -> Option<&'a str> {
        self.has_credential = true;
        let placeholder = self.bound.at(url);
        if placeholder.is_none() {
            self.lacks(name, self.bound.remedy_at(url));
        }
        placeholder
    }

    /// Decides on a value.
    pub(super) fn value(&mut self, path: &[&str], value: &str) -> Fate {
        if self.is_outside(path) {
            return Fate::LeaveOut;
        }
        let (name, key) = (path.join("."), path.last().copied().unwrap_or_default());
        let fate = self.fate(path, &name, key, value);
        match &fate {
            Fate::Keep => self.kept.insert(name, value.to_owned()),
            Fate::Become(value) => self.kept.insert(name, value.clone()),
            Fate::LeaveOut => None,
        };
        fate
    }

    fn fate(&mut self, path: &[&str], name: &str, key: &str, value: &str) -> Fate {
        if telling::is_telling(key) {
            return self.leave_out(name);
        }
        if value.is_empty() || is_reference(value) {
            self.has_credential |= !value.is_empty() && telling::is_sensitive(key);
            return Fate::Keep;
        }
        if let Some(url) = self.known(path) {
            let placeholder = self.credential_at(name, &url);
            return placeholder.map_or(Fate::LeaveOut, |placeholder| Fate::Become(placeholder.into()));
        }
        if let Some(placeholder) = self.bound.variable(key) {
            self.has_credential = true;
            return Fate::Become(placeholder.into());
        }
        let parent = path.len().checked_sub(2).map_or("", |at| path[at]);
        let plain =
            telling::is_count(key, value) || telling::is_chord(key, value) || names_variable(path, value);
        let sensitive = telling::is_sensitive(key)
            || telling::is_sensitive_under(parent, key, value)
            || telling::holds_headers(key, value);
        if sensitive && !plain {
            self.lacks(name, self.bound.remedy_of_variable(key));
            return Fate::LeaveOut;
        }
        let bound = self.bound;
        match userinfo::replaced(value, &|url| bound.at(url)) {
            Told::Unclear => self.leave_out(name),
            Told::Nothing if telling::is_telling(value) => self.leave_out(name),
            Told::Nothing => Fate::Keep,
            Told::Anew(anew, _) if telling::is_telling(&anew) => self.leave_out(name),
            Told::Anew(anew, missing) => {
                self.has_credential = true;
                for url in missing {
                    self.lacks(name, bound.remedy_at(&url));
                }
                Fate::Become(anew)
            }
        }
    }

    /// Returns the address where the credential is good that the table says is in this entry.
    fn known(&self, path: &[&str]) -> Option<String> {
        self.entry.credentials.iter().find_map(|(pattern, at)| {
            let parts: Vec<&str> = pattern.split('.').collect();
            let fits = parts.len() == path.len() && parts.iter().zip(path).all(|(p, k)| *p == "*" || p == k);
            let stood_for = parts.iter().zip(path).find(|(p, _)| **p == "*").map_or("", |(_, key)| key);
            let at = at.replace('*', stood_for);
            // The address of an index may begin with a protocol: `sparse+https://…`.
            let seen = || self.kept.get(&at).map(|url| url.trim_start_matches("sparse+").to_owned());
            fits.then(|| if at.contains("://") { at.clone() } else { seen().unwrap_or_default() })
        })
    }
}

/// Whether a value is only the name of a variable: `${NAME}`, `$NAME`, `{env:NAME}`.
fn is_reference(value: &str) -> bool {
    let inner =
        value.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')).or_else(|| value.strip_prefix('$'));
    inner.is_some_and(|name| {
        let named = name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
        !name.is_empty() && named && !telling::is_telling(name)
    })
}

/// Whether an entry about the environment holds the name of a variable, as `bearer_token_env_var` does.
fn names_variable(path: &[&str], value: &str) -> bool {
    let of_environment = path
        .iter()
        .any(|part| !matches!(*part, "env" | "environment") && part.to_lowercase().contains("env"));
    let name = value.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    of_environment && name && value.contains('_')
}
