//! `lockgate policy init|allow|deny|approve`: edits the workspace's file and keeps its comments. The edit is approved with the
//! file if the content before it was.

use std::borrow::Cow;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};

use policy::{Hint, Policy, RunConfig};
use runtime::Patient;
use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, value};

use super::hint;
use super::policy_rule::{RuleList, give_reason, is_there, meant, names, names_the_root, push, rule, tables};
use super::policy_text::{Approval, PolicyText, turn};
use super::standing_denial::standing_denial;
use crate::arguments::PolicyFile;
use crate::exit::{Done, Usage};
use crate::output;

/// What a new file begins with.
const ABOUT: &str = concat!(
    "# What a run in this folder is, and what it may do. See `lockgate policy schema` and\n# ",
    env!("CARGO_PKG_REPOSITORY"),
    "/blob/main/docs/policy.md\n"
);
/// What `policy init` adds. A file that is made for one rule has none of it, which would close what an earlier layer opens.
const CLOSED: &str = "\
# Nothing may leave until a rule allows it: `lockgate policy allow HOST`.

[egress]
default = \"deny\"
";

pub(crate) fn init(file: &PolicyFile) -> Done {
    let _turn = turn(file)?;
    let file = PolicyText::open(file)?;
    if !file.text.is_empty() {
        return Err(Usage::error(
            format!("{} already exists", file.name),
            format!("change it with `lockgate policy allow{} HOST`", file.flag),
        ));
    }
    file.write(&format!("{ABOUT}{CLOSED}"))?;
    output::tell(&format!("wrote {}: nothing may leave yet", file.name));
    Ok(0)
}

pub(crate) fn allow(file: &PolicyFile, targets: &[String]) -> Done {
    edit(file, targets, RuleList::Allow, None)
}

pub(crate) fn deny(file: &PolicyFile, targets: &[String], reason: Option<&str>) -> Done {
    edit(file, targets, RuleList::Deny, reason)
}

/// Adds a rule for each target that has none in the list, and tells what that changes.
fn edit(file: &PolicyFile, targets: &[String], list: RuleList, reason: Option<&str>) -> Done {
    let _turn = turn(file)?;
    let file = PolicyText::open(file)?;
    let start = if file.text.is_empty() { ABOUT } else { &file.text };
    let mut document: DocumentMut = start
        .parse()
        .map_err(|error: toml_edit::TomlError| file.unreadable(error.to_string().trim_end().to_owned()))?;
    let head = take_head(&mut document);
    let targets: Vec<Cow<'_, str>> = targets.iter().map(|target| meant(list, target)).collect();
    let added = insert(&file, &mut document, &targets, list, reason)?;
    let text = as_before(start, format!("{head}{document}"));
    let policy = save(&file, &text, &added, list)?;
    tell_root_only(&added);
    if list == RuleList::Allow {
        let loopback = targets.iter().filter_map(|target| hint::of_allowed_loopback(target));
        let presets = added.iter().filter_map(|target| hint::of_allowed_preset(target));
        loopback.chain(presets).for_each(|note| output::tell(&format!("note: {note}")));
        tell_still_denied(&file.name, &document, &policy, &targets);
    }
    Ok(0)
}

/// Inserts the rules that are not there yet, and returns their targets.
fn insert<'a>(
    file: &PolicyText,
    document: &mut DocumentMut,
    targets: &'a [Cow<'_, str>],
    list: RuleList,
    reason: Option<&str>,
) -> Result<Vec<&'a str>, anyhow::Error> {
    let (name, key) = (&file.name, list.as_str());
    let rules = rules_of(document, list)
        .ok_or_else(|| Usage::error(format!("egress in {name} is no table"), "mend it first"))?;
    let mut added = Vec::new();
    for target in targets {
        let rule = rule(list, target, reason);
        file.refuse_unfit(list, target, &rule)?;
        if is_there(rules, &rule) {
            output::tell(&format!("{name}: {key} {target} is there already"));
        } else if reason.is_some_and(|reason| give_reason(rules, &rule, reason)) {
            // With two rules for one target only the first would be reported.
            added.push(&**target);
        } else {
            push(rules, rule).ok_or_else(|| {
                Usage::error(format!("egress.{key} in {name} is no list of tables"), "mend it first")
            })?;
            added.push(&**target);
        }
    }
    Ok(added)
}

/// Returns the rules of a list, which is begun where there is none; `None` if what should hold them is no table.
fn rules_of(document: &mut DocumentMut, list: RuleList) -> Option<&mut Item> {
    let egress = document.entry("egress").or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    // An inline table cannot hold `[[…]]` blocks.
    let none = if egress.is_inline_table() {
        value(Array::new())
    } else {
        Item::ArrayOfTables(ArrayOfTables::new())
    };
    Some(egress.as_table_like_mut()?.entry(list.as_str()).or_insert(none))
}

/// Writes the new content if it has something new, and returns the policy that is in force then.
fn save(file: &PolicyText, text: &str, added: &[&str], list: RuleList) -> Result<Policy, anyhow::Error> {
    if added.is_empty() {
        file.tell_unapproved();
        return file.compile(file.parse(&file.text)?);
    }
    let policy = file.write(text)?;
    let is_approved = file.approval.as_ref().is_none_or(|approval| approval.given);
    let once = if is_approved { "" } else { ", once you have approved it" };
    let (name, list, added) = (&file.name, list.as_str(), added.join(", "));
    output::tell(&format!("{name}: {list} {added}, for runs that begin from now on{once}"));
    Ok(policy)
}

/// Tells which rules are for a root page alone.
fn tell_root_only(added: &[&str]) {
    for exact in added.iter().filter(|target| names_the_root(target)) {
        let all = exact.trim_end_matches('/');
        output::tell(&format!("note: that is `/` of it and nothing below; {all}/* is all of it"));
    }
}

/// Tells which targets stay denied though they are allowed now.
fn tell_still_denied(name: &str, document: &DocumentMut, policy: &Policy, targets: &[Cow<'_, str>]) {
    let denied = document.get("egress").and_then(|egress| egress.get(RuleList::Deny.as_str()));
    for target in targets {
        let target: &str = target;
        let is_denied = |there: Table| ["host", "url"].iter().any(|key| names(&there, key, target));
        if let Some(denial) = standing_denial(policy, target) {
            let by = denial.rule.map(|rule| format!(" by {rule}")).unwrap_or_default();
            let hint = denial.hint.filter(|hint| matches!(hint, Hint::Edit(_) | Hint::Advice(_)));
            let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
            output::tell(&format!("note: {target} stays denied{by}: {}{hint}", denial.reason));
        } else if denied.is_some_and(|denied| tables(denied).any(is_denied)) {
            output::tell(&format!("note: {name} denies {target} as well, and what is denied stays so"));
        }
    }
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

/// Asks below a file that may be longer than the screen, so that it names again what is to be approved.
fn question(file: &Path, wider: Option<&str>) -> String {
    let folder = output::path(file.parent().unwrap_or(file));
    let wider = wider.map(|fields| format!("It widens a run by: {fields}\n")).unwrap_or_default();
    format!("{wider}Approve this file for runs in {folder}? [y/N] ")
}

pub(crate) fn approve(workspace: Option<PathBuf>) -> Done {
    let file = PolicyText::open(&PolicyFile { policy: None, workspace })?;
    let name = &file.name;
    let approval = file.approval.as_ref().filter(|_| file.is_there);
    let Some(Approval { state, .. }) = approval else {
        return Err(nothing_to_approve(name, &file.path, &file.flag));
    };
    let config = file.parse(&file.text)?;
    file.compile(config.clone())?;
    tell_bindings(&config);
    let wider = file.widened(config);
    let ask = || std::io::stderr().write_all(question(&file.path, wider.as_deref()).as_bytes());
    let answer = BufReader::new(Patient::of(std::io::stdin()));
    if std::io::stdin().is_terminal() && !is_agreed(&file.text, output::data, ask, answer)? {
        output::tell("not approved");
        return Ok(1);
    }
    let _turn = runtime::turn_to_approve(state)?;
    // What is approved is what was shown, and it must be what stands there.
    if runtime::read_policy_if_there(&file.path)?.as_ref() != Some(&file.text) {
        return Err(Usage::nothing(
            format!("{name} is not approved: it changed while you looked"),
            format!("read it again: lockgate policy approve{}", file.flag),
        ));
    }
    runtime::approve(state, &file.path, &[&file.text])?;
    output::tell(&format!("approved {name} as it is now; a change needs a new approval"));
    Ok(0)
}

/// Makes the error for a file that is not there. Nothing is written through a link, so none that leads nowhere is filled.
fn nothing_to_approve(name: &str, path: &Path, flag: &str) -> anyhow::Error {
    let init = format!("`lockgate policy init{flag}`");
    match path.is_symlink() {
        true => Usage::error(
            format!("{name} is a symbolic link that leads nowhere"),
            format!("put back what it leads to, or remove the link: {init} makes a file then"),
        ),
        false => Usage::error(format!("there is no {name}"), format!("{init} makes one")),
    }
}

/// Shows a text, asks, and returns whether the answer is yes. Where whoever reads it has gone, it is no.
fn is_agreed(
    text: &str,
    show: impl Fn(&str) -> std::io::Result<()>,
    ask: impl Fn() -> std::io::Result<()>,
    mut answer: impl BufRead,
) -> std::io::Result<bool> {
    // Somebody else may have written it to be shown here.
    let mut lines = text.lines().map(|line| output::plain(&line.replace('\t', "    ")));
    match lines.try_for_each(|line| show(&line)).and_then(|()| ask()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(false),
        shown => shown?,
    }
    let mut answered = String::new();
    answer.read_line(&mut answered)?;
    Ok(is_yes(&answered))
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
    use super::*;

    #[test]
    fn a_new_file_names_a_page_that_is_there() {
        let page = ABOUT.trim_end().split_once("/blob/main/").unwrap().1;
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page).is_file(), "{page}");
    }

    #[test]
    fn a_folder_says_no_more_than_its_name_where_its_file_is_to_be_approved() {
        let asked = question(Path::new("/srv/a\u{1b}]0;t\u{7}\nb/lockgate.toml"), None);
        assert_eq!(asked, "Approve this file for runs in /srv/a\\u{1b}]0;t\\u{7}\\nb? [y/N] ");
    }

    #[test]
    fn what_widens_is_named_above_the_question() {
        let asked = question(Path::new("/srv/a/lockgate.toml"), Some("presets, mount"));
        assert_eq!(asked, "It widens a run by: presets, mount\nApprove this file for runs in /srv/a? [y/N] ");
    }

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
    fn what_nobody_could_read_is_not_approved() {
        let to_reader = |is_there: bool| match is_there {
            true => Ok(()),
            false => Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe)),
        };
        for (is_shown, is_asked) in [(true, true), (false, true), (true, false)] {
            let (show, ask) = (|_: &str| to_reader(is_shown), || to_reader(is_asked));
            assert_eq!(is_agreed("x = 1\n", show, ask, &b"y\n"[..]).unwrap(), is_shown && is_asked);
        }
        let full = |_: &str| Err(std::io::ErrorKind::StorageFull.into());
        assert!(is_agreed("x = 1\n", full, || Ok(()), &b"y\n"[..]).is_err());
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
    fn a_link_that_leads_nowhere_is_not_to_be_filled() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::os::unix::fs::symlink(at("none"), at("dangling")).unwrap();
        for (name, told) in [("dangling", "leads nowhere"), ("none", "there is no none")] {
            let error = nothing_to_approve(name, &at(name), "").to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
