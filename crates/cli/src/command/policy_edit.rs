//! `lockgate policy init|allow|deny|approve`: edits the workspace's file and keeps its comments. The edit is approved with the
//! file if the content before it was.

use std::borrow::Cow;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use policy::{ConfigError, Hint, Layers, Origin, Policy, RunConfig};
use runtime::{Settings, SettingsRequest, StateDirectory};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sandbox::Caller;
use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, value};

use super::held_place;
use super::policy_rule::{give_reason, is_there, meant, names, names_the_root, push, rule, tables};
use super::standing_denial::standing_denial;
use crate::arguments::PolicyFile;
use crate::exit::{Done, Usage};
use crate::output;

const FILE: &str = "lockgate.toml";
const BLANK: &str = "\
# What a run in this folder is, and what it may do. See `lockgate policy schema` and docs/policy.md.
# Nothing may leave until a rule allows it: `lockgate policy allow HOST`.

[egress]
default = \"deny\"
";

/// The file to edit.
struct PolicyText {
    caller: Caller,
    path: PathBuf,
    /// Its name in messages.
    name: String,
    /// Whether it exists.
    is_there: bool,
    /// Its content; empty if there is no file.
    text: String,
    /// The workspace whose approval it needs. A file named by `--policy` needs none.
    approval: Option<Approval>,
}

struct Approval {
    state: StateDirectory,
    /// Whether the content before the edit was approved.
    given: bool,
}

impl PolicyText {
    fn open(file: &PolicyFile) -> Result<Self, anyhow::Error> {
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

    fn parse(&self, text: &str) -> Result<RunConfig, anyhow::Error> {
        toml::from_str(text).map_err(|error| self.unreadable(runtime::why_unreadable(&error)))
    }

    /// Makes the error for an unreadable file. Behind a link the parser's text is withheld: it would quote a file chosen by whoever made
    /// the link.
    fn unreadable(&self, why: String) -> anyhow::Error {
        let why = match self.path.is_symlink() && self.approval.is_some() {
            true => "it is a link, and what it leads to is no policy".to_owned(),
            false => why,
        };
        runtime::Error::ParseSettings { path: self.name.clone().into(), why }.into()
    }

    /// Refuses a rule that no run would accept, by the word that was typed for it.
    fn refuse_unfit(&self, list: &str, target: &str, rule: &Table) -> Result<(), anyhow::Error> {
        let config = self.parse(&format!("[[egress.{list}]]\n{rule}"))?;
        let mut layers = Layers::default();
        layers.push(Origin::Named(self.name.clone()), config);
        layers.compile().map(drop).map_err(|error| {
            let (origin, field) = (format!("policy {list}"), target.to_owned());
            runtime::Error::from(ConfigError { origin, field, ..error }).into()
        })
    }

    /// Refuses content that no run would accept. Returns the policy that the layers below and this content come to.
    fn compile(&self, config: RunConfig) -> Result<Policy, anyhow::Error> {
        let spec = match self.approval {
            Some(_) => Settings::of_project(&self.name, config, &self.caller)?,
            None => Settings::of_file(&self.name, config, &self.caller)?,
        };
        Ok(spec.policy)
    }

    /// Writes the new content if it compiles, and returns its policy.
    fn write(&self, text: &str) -> Result<Policy, anyhow::Error> {
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
    fn tell_unapproved(&self) {
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
fn turn(file: &PolicyFile) -> Result<Option<File>, anyhow::Error> {
    let turn = StateDirectory::of(&super::caller()?).and_then(|state| runtime::turn_to_approve(&state));
    match turn {
        Err(_) if file.policy.is_some() => Ok(None),
        turn => Ok(Some(turn?)),
    }
}

pub(crate) fn init(file: &PolicyFile) -> Done {
    let _turn = turn(file)?;
    let file = PolicyText::open(file)?;
    if !file.text.is_empty() {
        return Err(Usage::error(
            format!("{} already exists", file.name),
            "change it with `lockgate policy allow HOST`",
        ));
    }
    file.write(BLANK)?;
    output::tell(&format!("wrote {}: nothing may leave yet", file.name));
    Ok(0)
}

pub(crate) fn allow(file: &PolicyFile, targets: &[String]) -> Done {
    edit(file, targets, "allow", None)
}

pub(crate) fn deny(file: &PolicyFile, targets: &[String], reason: Option<&str>) -> Done {
    edit(file, targets, "deny", reason)
}

fn edit(file: &PolicyFile, targets: &[String], list: &str, reason: Option<&str>) -> Done {
    let _turn = turn(file)?;
    let file = PolicyText::open(file)?;
    let name = &file.name;
    let start = if file.text.is_empty() { BLANK } else { &file.text };
    let mut document: DocumentMut = start
        .parse()
        .map_err(|error: toml_edit::TomlError| file.unreadable(error.to_string().trim_end().to_owned()))?;
    let head = take_head(&mut document);
    let egress = document.entry("egress").or_insert_with(|| Item::Table(Table::new()));
    // An inline table cannot hold `[[…]]` blocks.
    let none = if egress.is_inline_table() {
        value(Array::new())
    } else {
        Item::ArrayOfTables(ArrayOfTables::new())
    };
    let rules = egress
        .as_table_like_mut()
        .map(|egress| egress.entry(list).or_insert(none))
        .ok_or_else(|| Usage::error(format!("egress in {name} is no table"), "mend it first"))?;
    let targets: Vec<Cow<'_, str>> = targets.iter().map(|target| meant(list, target)).collect();
    let mut added = Vec::new();
    for target in &targets {
        let rule = rule(list, target, reason);
        file.refuse_unfit(list, target, &rule)?;
        if is_there(rules, &rule) {
            output::tell(&format!("{name}: {list} {target} is there already"));
        } else if reason.is_some_and(|reason| give_reason(rules, &rule, reason)) {
            // With two rules for one target only the first would be reported.
            added.push(&**target);
        } else {
            push(rules, rule).ok_or_else(|| {
                Usage::error(format!("egress.{list} in {name} is no list of tables"), "mend it first")
            })?;
            added.push(&**target);
        }
    }
    let policy = if added.is_empty() {
        file.tell_unapproved();
        file.compile(file.parse(&file.text)?)?
    } else {
        let policy = file.write(&as_before(start, format!("{head}{document}")))?;
        let is_approved = file.approval.as_ref().is_none_or(|approval| approval.given);
        let once = if is_approved { "" } else { ", once you have approved it" };
        output::tell(&format!("{name}: {list} {}, for runs that begin from now on{once}", added.join(", ")));
        policy
    };
    for exact in added.iter().filter(|target| names_the_root(target)) {
        let all = exact.trim_end_matches('/');
        output::tell(&format!("note: that is `/` of it and nothing below; {all}/* is all of it"));
    }
    let denied = document.get("egress").and_then(|egress| egress.get("deny")).filter(|_| list == "allow");
    for target in targets.iter().filter(|_| list == "allow") {
        let target: &str = target;
        let is_denied = |there: Table| ["host", "url"].iter().any(|key| names(&there, key, target));
        if let Some(denial) = standing_denial(&policy, target) {
            let by = denial.rule.map(|rule| format!(" by {rule}")).unwrap_or_default();
            let hint = denial.hint.filter(|hint| matches!(hint, Hint::Edit(_) | Hint::Advice(_)));
            let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
            output::tell(&format!("note: {target} stays denied{by}: {}{hint}", denial.reason));
        } else if denied.is_some_and(|denied| tables(denied).any(is_denied)) {
            output::tell(&format!("note: {name} denies {target} as well, and what is denied stays so"));
        }
    }
    Ok(0)
}

/// Takes the comments of a file that has nothing else: what is added would go above them.
fn take_head(document: &mut DocumentMut) -> String {
    let comments = document.trailing().as_str().unwrap_or_default().trim_end().to_owned();
    if !document.is_empty() || comments.is_empty() {
        return String::new();
    }
    document.set_trailing("");
    comments + "\n\n"
}

/// Restores the line ends of the original text, and its byte order mark.
fn as_before(before: &str, text: String) -> String {
    const MARK: char = '\u{feff}';
    let ends = before.matches('\n').count();
    let text = match ends > 0 && before.matches("\r\n").count() == ends {
        true => text.replace("\r\n", "\n").replace('\n', "\r\n"),
        false => text,
    };
    if before.starts_with(MARK) && !text.starts_with(MARK) { format!("{MARK}{text}") } else { text }
}

pub(crate) fn approve(workspace: Option<PathBuf>) -> Done {
    let file = PolicyText::open(&PolicyFile { policy: None, workspace })?;
    let name = &file.name;
    let approval = file.approval.as_ref().filter(|_| file.is_there);
    let Some(Approval { state, .. }) = approval else {
        return Err(Usage::error(format!("there is no {name}"), "`lockgate policy init` makes one"));
    };
    let config = file.parse(&file.text)?;
    file.compile(config.clone())?;
    tell_bindings(&config);
    if std::io::stdin().is_terminal() {
        // Somebody else may have written it to be shown here.
        file.text.lines().try_for_each(|line| output::data(&output::plain(&line.replace('\t', "    "))))?;
        let folder = file.path.parent().unwrap_or(&file.path).display();
        write!(std::io::stderr(), "Approve this file for runs in {folder}? [y/N] ")?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        if !is_yes(&answer) {
            output::tell("not approved");
            return Ok(1);
        }
    }
    let _turn = runtime::turn_to_approve(state)?;
    // What is approved is what was shown, and it must be what stands there.
    if runtime::read_policy_if_there(&file.path)?.as_ref() != Some(&file.text) {
        return Err(Usage::nothing(
            format!("{name} is not approved: it changed while you looked"),
            "read it again: lockgate policy approve",
        ));
    }
    runtime::approve(state, &file.path, &[&file.text])?;
    output::tell(&format!("approved {name} as it is now; a change needs a new approval"));
    Ok(0)
}

fn is_yes(answer: &str) -> bool {
    ["y", "yes"].iter().any(|yes| answer.trim().eq_ignore_ascii_case(yes))
}

/// Lists where the file would send or expose credentials, which is easily overlooked in a long file.
fn tell_bindings(config: &RunConfig) {
    for provider in &config.provider {
        let uris = provider.authorized_uris.join(", ");
        output::tell(&format!("it sends the credential `{}` to {uris}", output::plain(&provider.id)));
    }
    for proxy in &config.proxy {
        if let Some(credential) = &proxy.credential {
            let text = format!("it sends the credential `{credential}` to the proxy {}", proxy.url);
            output::tell(&output::plain(&text));
        }
    }
    for name in &config.providers {
        output::tell(&format!("it uses the credential `{}`", output::plain(name)));
    }
    for (name, _) in config.env.variable.iter().filter(|(_, variable)| variable.expose == Some(true)) {
        output::tell(&format!(
            "it puts a credential itself into `{}`, not a placeholder: what runs there can keep it and send it on",
            output::plain(name)
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_text_keeps_the_ends_of_its_lines() {
        let changed = |before: &str| as_before(before, before.replace(['\r', '\u{feff}'], "") + "b = 2\n");
        for (before, after) in [
            ("a = 1\r\n", "a = 1\r\nb = 2\r\n"),
            ("\u{feff}a = 1\n", "\u{feff}a = 1\nb = 2\n"),
            ("a = 1\n", "a = 1\nb = 2\n"),
            ("", "b = 2\n"),
        ] {
            assert_eq!(changed(before), after);
        }
    }

    #[test]
    fn what_is_added_goes_below_the_comments_at_the_head() {
        for (before, after) in [
            ("# What this is.\n", "# What this is.\n\n[egress]\n"),
            ("# One.\n\n# Two.", "# One.\n\n# Two.\n\n[egress]\n"),
            ("\n", "[egress]\n\n"),
            ("# Of a.\na = 1\n# Last.\n", "# Of a.\na = 1\n\n[egress]\n# Last.\n"),
        ] {
            let mut document: DocumentMut = before.parse().unwrap();
            let head = take_head(&mut document);
            document.insert("egress", Item::Table(Table::new()));
            assert_eq!(format!("{head}{document}"), after, "{before:?}");
        }
    }

    #[test]
    fn only_yes_is_yes() {
        for (answer, expected) in
            [("y\n", true), ("Yes\n", true), (" YES ", true), ("\n", false), ("n\n", false), ("yep\n", false)]
        {
            assert_eq!(is_yes(answer), expected, "{answer:?}");
        }
    }

    #[test]
    fn a_policy_is_written_into_a_file_and_through_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("elsewhere"), "mine").unwrap();
        symlink(at("elsewhere"), at("link")).unwrap();
        symlink(at("none"), at("dangling")).unwrap();
        for bad in ["link", "dangling"] {
            let error = put(&at(bad), BLANK).unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("symbolic link"), "{error}");
        }
        assert_eq!(std::fs::read_to_string(at("elsewhere")).unwrap(), "mine");
        assert!(!at("none").exists());
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(put(&at("pipe"), BLANK).unwrap_err().to_string().contains("no regular file"));
        for text in ["a longer text than the next", BLANK, "x = 1\n"] {
            put(&at("lockgate.toml"), text).unwrap();
            assert_eq!(std::fs::read_to_string(at("lockgate.toml")).unwrap(), text);
        }
        // What a reader sees between the two steps, and what is left if the second is never made.
        assert_eq!(padded("x = 1\n", 9), "x = 1\n\n\n\n");
        assert_eq!(padded("x = 1\n", 3), "x = 1\n");
    }
}
