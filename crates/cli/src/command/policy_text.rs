//! The file of a policy that is edited: opens it, parses and compiles its content, and has it written. It knows nothing of single rules.

use std::path::PathBuf;

use policy::{ConfigError, Layers, Origin, Policy, RunConfig, shell_word};
use runtime::{Settings, SettingsRequest, StateDirectory};
use sandbox::Caller;
use toml_edit::Table;

use super::held_place;
use super::policy_rule::RuleList;
use super::policy_turn::Turn;
use super::policy_write::{padded, put, refuse_too_large};
use crate::arguments::PolicyFile;
use crate::output;

const FILE: &str = "lockgate.toml";

/// The file to edit.
pub(super) struct PolicyText {
    caller: Caller,
    pub(super) path: PathBuf,
    /// Its name in messages.
    pub(super) name: String,
    /// The flag that named it, as a command is given it again; empty if none did.
    pub(super) flag: String,
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
        let (path, name) = place(file, &caller)?;
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
        Ok(Self { caller, path, name, flag: flag(file), is_there, text, approval })
    }

    /// Returns the fields by which a content that compiles widens a run. `None` if it needs no approval.
    pub(super) fn widened(&self, config: RunConfig) -> Option<String> {
        match Settings::unapproved(config, &self.caller) {
            Err(runtime::Error::Settings(error)) => Some(error.field),
            _ => None,
        }
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
            let field = if error.field.ends_with(".reason") { "--reason" } else { target };
            let (origin, field) = (format!("policy {list}"), field.to_owned());
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
        refuse_too_large(&self.name, text)?;
        let policy = self.compile(self.parse(text)?)?;
        match &self.approval {
            Some(Approval { state, given: true }) => {
                // All that a reader can see meanwhile counts: no run that starts now is refused.
                runtime::approve(state, &self.path, &[&self.text, text, &padded(text, self.text.len())])?;
                if let Err(error) = put(&self.path, text) {
                    // What is not written is not approved either.
                    let restored = runtime::approve(state, &self.path, &[&self.text]);
                    return Err(match restored {
                        Ok(()) => error,
                        Err(why) => error.context(format!("what was to be written stays approved: {why}")),
                    });
                }
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
                "{} holds more than you have approved; read it, then `lockgate policy approve{}`",
                self.name, self.flag
            ));
        }
    }
}

fn flag(file: &PolicyFile) -> String {
    let flag = |flag: &str, path: &PathBuf| format!(" {flag} {}", shell_word(&path.to_string_lossy()));
    let policy = file.policy.as_ref().map(|path| flag("--policy", path));
    policy.or_else(|| file.workspace.as_ref().map(|path| flag("--workspace", path))).unwrap_or_default()
}

/// Returns the path of the file, and its name in messages.
fn place(file: &PolicyFile, caller: &Caller) -> Result<(PathBuf, String), anyhow::Error> {
    Ok(match (&file.policy, &file.workspace) {
        (Some(named), _) => (caller.resolve(named), named.display().to_string()),
        (None, Some(folder)) => {
            (runtime::project_file(Some(folder), caller)?, folder.join(FILE).display().to_string())
        }
        (None, None) => {
            let workspace = runtime::workspace(&SettingsRequest::default(), caller)?;
            let path = runtime::project_file(workspace.as_deref(), caller)?;
            let is_here = path.parent() == Some(caller.directory.as_path());
            let name = if is_here { FILE.to_owned() } else { path.display().to_string() };
            (path, name)
        }
    })
}

/// Waits for the locks on the file and on what is approved. A named file needs no approval, and no state directory.
pub(super) fn turn(file: &PolicyFile) -> Result<Turn, anyhow::Error> {
    turn_of(file, &super::caller()?)
}

fn turn_of(file: &PolicyFile, caller: &Caller) -> Result<Turn, anyhow::Error> {
    Turn::wait(&place(file, caller)?.0, || {
        let approvals = StateDirectory::of(caller).and_then(|state| runtime::turn_to_approve(&state));
        match approvals {
            Err(_) if file.policy.is_some() => Ok(None),
            approvals => Ok(Some(approvals?)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_file_is_held_also_without_a_state_directory() {
        let folder = tempfile::tempdir().unwrap();
        let file = PolicyFile { policy: Some("named.toml".into()), workspace: None };
        let caller = Caller::new(0, 0, folder.path());
        assert!(StateDirectory::of(&caller).is_err());
        let turn = turn_of(&file, &caller).unwrap();
        let theirs = std::fs::File::open(folder.path().join("named.toml")).unwrap();
        let take = || rustix::fs::flock(&theirs, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        assert_eq!(take(), Err(rustix::io::Errno::WOULDBLOCK));
        drop(turn);
        assert_eq!(take(), Ok(()));
    }

    #[test]
    fn what_could_not_be_written_is_not_approved() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let own = [("XDG_CONFIG_HOME", "config"), ("XDG_STATE_HOME", "state")];
        let own = own.map(|(name, part)| (name, at(part).display().to_string()));
        let own = own.iter().map(|(name, path)| (*name, path.as_str()));
        let caller = Caller::new(0, 0, folder.path()).with_env(own);
        let approved = |text: &str| {
            let state = StateDirectory::of(&caller).unwrap();
            runtime::is_approved(&state, &at("lockgate.toml"), text).unwrap()
        };
        let (before, after) = ("timeout = \"1m\"\n", "timeout = \"2m\"\n");
        let write = || {
            let state = StateDirectory::of(&caller).unwrap();
            let policy = PolicyText {
                caller: caller.clone(),
                path: at("lockgate.toml"),
                name: "lockgate.toml".into(),
                flag: String::new(),
                is_there: true,
                text: before.into(),
                approval: Some(Approval { state, given: true }),
            };
            policy.write(after).map(drop)
        };
        // Nothing is written through a link.
        std::fs::write(at("elsewhere"), before).unwrap();
        std::os::unix::fs::symlink(at("elsewhere"), at("lockgate.toml")).unwrap();
        let error = write().unwrap_err().to_string();
        assert!(error.contains("is a symbolic link"), "{error}");
        assert_eq!((approved(before), approved(after)), (true, false));
        std::fs::remove_file(at("lockgate.toml")).unwrap();
        write().unwrap();
        assert_eq!((approved(before), approved(after)), (false, true));
    }

    #[test]
    fn what_nothing_would_read_again_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lockgate.toml");
        let own = ["XDG_CONFIG_HOME", "XDG_STATE_HOME"].map(|name| (name, folder.path().to_str().unwrap()));
        let caller = Caller::new(0, 0, folder.path()).with_env(own);
        for (length, is_written) in [(1 << 20, true), ((1 << 20) + 1, false)] {
            let policy = PolicyText {
                caller: caller.clone(),
                path: path.clone(),
                name: "lockgate.toml".into(),
                flag: String::new(),
                is_there: false,
                text: String::new(),
                approval: None,
            };
            let written = policy.write(&padded("timeout = \"1m\"\n", length));
            assert_eq!(written.is_ok(), is_written, "{:?}", written.err());
            let error = written.err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(error.contains("larger than 1 MiB"), !is_written, "{error}");
            let read = runtime::read_policy_if_there(&path).unwrap().unwrap();
            assert_eq!(read.len(), 1 << 20, "what stood there still stands");
        }
    }
}
