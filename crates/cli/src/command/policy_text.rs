//! The file of a policy that is edited: opens it, parses and compiles its content, and writes it in place, through no link. It knows
//! nothing of single rules.

use std::borrow::Cow;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use policy::{ConfigError, Layers, Origin, Policy, RunConfig};
use runtime::{Settings, SettingsRequest, StateDirectory};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sandbox::Caller;
use toml_edit::Table;

use super::held_place;
use super::policy_rule::RuleList;
use crate::arguments::PolicyFile;
use crate::exit::Usage;
use crate::output;

const FILE: &str = "lockgate.toml";

/// The file to edit.
pub(super) struct PolicyText {
    caller: Caller,
    pub(super) path: PathBuf,
    /// Its name in messages.
    pub(super) name: String,
    /// Whether it exists.
    pub(super) is_there: bool,
    /// Its content; empty if there is no file.
    pub(super) text: String,
    /// The workspace whose approval it needs. A file named by `--policy` needs none.
    pub(super) approval: Option<Approval>,
}

/// The approval of a workspace's file.
pub(super) struct Approval {
    pub(super) state: StateDirectory,
    /// Whether the content before the edit was approved.
    pub(super) given: bool,
}

impl PolicyText {
    pub(super) fn open(file: &PolicyFile) -> Result<Self, anyhow::Error> {
        let caller = super::caller()?;
        let (policy, workspace) = (file.policy.clone(), file.workspace.clone());
        let request = SettingsRequest { policy, workspace, ..SettingsRequest::default() };
        if let Some(path) = runtime::project_above(&request, &caller) {
            super::spec::tell_project_above(&path);
        }
        let (path, name) = match (&file.policy, &file.workspace) {
            (Some(named), _) => (caller.resolve(named), named.display().to_string()),
            (None, Some(folder)) => {
                (runtime::project_file(Some(folder), &caller)?, folder.join(FILE).display().to_string())
            }
            (None, None) => (runtime::project_file(None, &caller)?, FILE.to_owned()),
        };
        if path.is_dir() {
            let state = StateDirectory::of(&caller)?;
            // A placeholder that a killed run left is removed by the next run.
            super::look_after_dead(&state);
            if path.is_dir() {
                return Err(held_place::refusal(&state, &name, &path));
            }
        }
        let found = runtime::read_policy_if_there(&path)?;
        let (is_there, text) = (found.is_some(), found.unwrap_or_default());
        let approval = match file.policy {
            Some(_) => None,
            None => {
                let state = StateDirectory::of(&caller)?;
                let narrows_only =
                    || toml::from_str(&text).is_ok_and(|config| Settings::narrows_only(config, &caller));
                // One that cannot be read counts as none here: approving replaces it.
                let is_approved = || runtime::is_approved(&state, &path, &text).unwrap_or(false);
                let given = text.is_empty() || is_approved() || narrows_only();
                Some(Approval { state, given })
            }
        };
        Ok(Self { caller, path, name, is_there, text, approval })
    }

    pub(super) fn parse(&self, text: &str) -> Result<RunConfig, anyhow::Error> {
        toml::from_str(text).map_err(|error| self.unreadable(runtime::why_unreadable(&error)))
    }

    /// Makes the error for an unreadable file. Behind a link the parser's text is withheld: it would quote a file chosen by whoever made
    /// the link.
    pub(super) fn unreadable(&self, why: String) -> anyhow::Error {
        let why = match self.path.is_symlink() && self.approval.is_some() {
            true => "it is a link, and what it leads to is no policy".to_owned(),
            false => why,
        };
        runtime::Error::ParseSettings { path: self.name.clone().into(), why }.into()
    }

    /// Refuses a rule that no run would accept, by the word that was typed for it.
    pub(super) fn refuse_unfit(
        &self,
        list: RuleList,
        target: &str,
        rule: &Table,
    ) -> Result<(), anyhow::Error> {
        let list = list.as_str();
        let config = self.parse(&format!("[[egress.{list}]]\n{rule}"))?;
        let mut layers = Layers::default();
        layers.push(Origin::Named(self.name.clone()), config);
        layers.compile().map(drop).map_err(|error| {
            let (origin, field) = (format!("policy {list}"), target.to_owned());
            runtime::Error::from(ConfigError { origin, field, ..error }).into()
        })
    }

    /// Refuses content that no run would accept. Returns the policy that the layers below and this content come to.
    pub(super) fn compile(&self, config: RunConfig) -> Result<Policy, anyhow::Error> {
        let spec = match self.approval {
            Some(_) => Settings::of_project(&self.name, config, &self.caller)?,
            None => Settings::of_file(&self.name, config, &self.caller)?,
        };
        Ok(spec.policy)
    }

    /// Writes the new content if it compiles, and returns its policy.
    pub(super) fn write(&self, text: &str) -> Result<Policy, anyhow::Error> {
        let policy = self.compile(self.parse(text)?)?;
        match &self.approval {
            Some(Approval { state, given: true }) => {
                // All that a reader can see meanwhile counts: no run that starts now is refused.
                runtime::approve(state, &self.path, &[&self.text, text, &padded(text, self.text.len())])?;
                put(&self.path, text)?;
                // The new one is approved already; at worst the one before stays approved as well.
                let _ = runtime::approve(state, &self.path, &[text]);
            }
            _ => {
                put(&self.path, text)?;
                self.tell_unapproved();
            }
        }
        Ok(policy)
    }

    /// Warns if no run would accept the content.
    pub(super) fn tell_unapproved(&self) {
        if self.approval.as_ref().is_some_and(|approval| !approval.given) {
            output::tell(&format!(
                "{} holds more than you have approved; read it, then `lockgate policy approve`",
                self.name
            ));
        }
    }
}

/// Overwrites a file of this length in place and truncates it. Killed in between, it leaves the new content and empty lines, and nothing
/// of the old.
fn fill(file: &File, length: usize, content: &str) -> std::io::Result<()> {
    file.write_all_at(padded(content, length).as_bytes(), 0)?;
    file.set_len(content.len() as u64)?;
    file.sync_data()
}

/// Returns a content that is at least this long, by empty lines at its end.
fn padded(content: &str, length: usize) -> Cow<'_, str> {
    match length.checked_sub(content.len()) {
        None | Some(0) => Cow::Borrowed(content),
        Some(missing) => Cow::Owned(content.to_owned() + &"\n".repeat(missing)),
    }
}

/// Writes the file. Refuses a link, which could lead to another file that only its owner may
/// write, and everything that is no regular file.
fn put(path: &Path, text: &str) -> Result<(), anyhow::Error> {
    let refused =
        |what: &str| Usage::error(format!("{} {what}", path.display()), "put a file of its own there");
    let before = runtime::read_policy_if_there(path)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)) {
        Ok(file) => File::from(file),
        Err(Errno::LOOP) => return Err(refused("is a symbolic link, and no policy is written through one")),
        Err(Errno::NXIO) => return Err(refused("is no regular file")),
        Err(errno) => return Err(anyhow::anyhow!("failed to write {}: {errno}", path.display())),
    };
    if !file.metadata()?.is_file() {
        return Err(refused("is no regular file"));
    }
    if let Err(error) = fill(&file, before.as_ref().map_or(0, String::len), text) {
        // The disk may be full. The previous content fits where it was.
        let now = match put_back(path, text, before.as_deref()) {
            Ok(()) => "it is as it was".into(),
            Err(error) => format!("nor could its content be put back: {error}"),
        };
        return Err(anyhow::anyhow!("failed to write {}: {error}; {now}", path.display()));
    }
    Ok(())
}

/// Restores the previous content of a file, or removes the file if there was none. Asks for no more room than the file may have by now.
fn put_back(path: &Path, text: &str, before: Option<&str>) -> std::io::Result<()> {
    let Some(before) = before else { return std::fs::remove_file(path) };
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let longest = text.len().max(before.len());
    let length = usize::try_from(file.metadata()?.len()).map_or(longest, |length| length.min(longest));
    fill(&file, length, before)
}

/// Waits for the lock on policy edits, which is held until the returned file is dropped. Without a state directory, a named file is
/// edited without the lock.
pub(super) fn turn(file: &PolicyFile) -> Result<Option<File>, anyhow::Error> {
    let turn = StateDirectory::of(&super::caller()?).and_then(|state| runtime::turn_to_approve(&state));
    match turn {
        Err(_) if file.policy.is_some() => Ok(None),
        turn => Ok(Some(turn?)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_policy_is_written_into_a_file_and_through_no_link() {
        const SHORT: &str = "[egress]\ndefault = \"deny\"\n";
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("elsewhere"), "mine").unwrap();
        symlink(at("elsewhere"), at("link")).unwrap();
        symlink(at("none"), at("dangling")).unwrap();
        for bad in ["link", "dangling"] {
            let error = put(&at(bad), SHORT).unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("symbolic link"), "{error}");
        }
        assert_eq!(std::fs::read_to_string(at("elsewhere")).unwrap(), "mine");
        assert!(!at("none").exists());
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(put(&at("pipe"), SHORT).unwrap_err().to_string().contains("no regular file"));
        for text in ["a longer text than the next", SHORT, "x = 1\n"] {
            put(&at("lockgate.toml"), text).unwrap();
            assert_eq!(std::fs::read_to_string(at("lockgate.toml")).unwrap(), text);
        }
        // What a reader sees between the two steps, and what is left if the second is never made.
        assert_eq!(padded("x = 1\n", 9), "x = 1\n\n\n\n");
        assert_eq!(padded("x = 1\n", 3), "x = 1\n");
    }
}
