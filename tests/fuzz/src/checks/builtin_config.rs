//! Configuration of built-in tools. The input's first octet selects files of a tool, and their texts follow, with the octet 3
//! between them; in the texts the octets 1 and 2 stand for credentials. Neither credential enters the sandbox or appears in a
//! notice. What enters parses again, and stays the same.

use std::path::Path;
use std::sync::LazyLock;

use credential::Placeholder;
use policy::{Layers, Origin, Policy, ProviderId};
use runtime::BuiltinTool;

use crate::octets;

/// A random credential, and one of a known form: a text for people may contain the first, as it may contain any hash.
const RANDOM: &str = "q7Fh2Kd93LmXz81PwRtYbN4cVgTaE5Js";
const KNOWN: &str = "ghp_q7Fh2Kd93LmXz81PwRtYbN4cVgTaE5Js6Q";
/// A run of so many letters and digits is no word.
const SHORTEST_LEAK: usize = 24;
/// A run of so many letters of the credential is no accident.
const LEARNT: usize = 5;

/// Every file format, as files of some tool that uses it.
const FILES: &[(&str, &[&str])] = &[
    ("git", &[".gitconfig"]),
    ("git", &[".git-credentials"]),
    ("pip", &[".config/pip/pip.conf"]),
    ("npm", &[".npmrc"]),
    ("cargo", &[".cargo/config.toml", ".cargo/credentials.toml"]),
    ("claude", &[".claude/settings.json"]),
    ("codex", &[".codex/config.toml", ".codex/AGENTS.md"]),
    ("gh", &[".config/gh/config.yml", ".config/gh/hosts.yml"]),
    ("pi", &[".pi/agent/settings.json", ".pi/agent/models.json"]),
];

const RULES: &str = r#"
    [[provider]]
    id = "bound"
    authorized_uris = ["https://bound.example/*"]
    env = "BOUND_TOKEN"
"#;

static RUN: LazyLock<(Policy, Vec<(Placeholder, ProviderId)>)> = LazyLock::new(|| {
    let mut layers = Layers::default();
    layers.push(Origin::Flags, toml::from_str(RULES).expect("the rules are TOML"));
    let policy = layers.compile().expect("the rules compile").policy;
    (policy, vec![(Placeholder::mint([7; 27]), "bound".parse().expect("a provider's name"))])
});

static TOOLS: LazyLock<Vec<(&str, BuiltinTool)>> = LazyLock::new(|| {
    let tool = |name| (name, BuiltinTool::named(name).expect("the tool is known"));
    FILES.iter().map(|(name, _)| tool(*name)).collect()
});

/// Takes the input for files of a built-in tool, and brings them into a sandbox twice.
pub fn builtin_config(input: &[u8]) {
    let input = octets::text_of(input);
    // The fuzzer has learnt a piece of the credential and could put it where no credential stands.
    if RANDOM.as_bytes().windows(LEARNT).any(|piece| octets::contains(input.as_bytes(), piece)) {
        return;
    }
    let Some(first) = input.chars().next().filter(char::is_ascii) else { return };
    let (tool, paths) = FILES[first as usize % FILES.len()];
    let texts: Vec<String> =
        input[1..].split('\u{3}').zip(paths).map(|(text, path)| written(path, text)).collect();
    let files: Vec<(&str, &str)> = paths.iter().copied().zip(texts.iter().map(String::as_str)).collect();
    let length: usize = texts.iter().map(String::len).sum();

    let (entered, notices) = brought(tool, &files);
    for notice in &notices {
        hides(notice);
        assert!(!notice.contains(char::is_control), "{notice:?}");
    }
    assert!(notices.iter().map(String::len).sum::<usize>() <= 200 * (length + 8), "{notices:?}");
    for (path, content) in &entered {
        assert!(paths.contains(&path.as_str()), "{path}");
        hides(content);
        assert!(content.len() <= 200 * (length + 8), "{} octets came of {length}", content.len());
    }
    let again: Vec<(&str, &str)> =
        entered.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let (same, notices) = brought(tool, &again);
    assert_eq!(same, entered, "{notices:?}");
}

/// Returns a text with the credentials in it. Nothing before one may make it a placeholder; in a text for people it stands by
/// itself.
fn written(path: &str, text: &str) -> String {
    let text = text.replace("lgph_", "");
    if Path::new(path).extension().is_some_and(|extension| extension == "md") {
        return text.replace('\u{1}', "").replace('\u{2}', &format!(" {KNOWN}"));
    }
    text.replace('\u{1}', RANDOM).replace('\u{2}', KNOWN)
}

fn brought(tool: &str, files: &[(&str, &str)]) -> (Vec<(String, String)>, Vec<String>) {
    let tool = TOOLS.iter().find(|(name, _)| *name == tool).map(|(_, tool)| tool).expect("it is among them");
    let (entered, notices) = tool.brings(files, &RUN.0, &RUN.1);
    let path = |path: std::path::PathBuf| path.to_str().expect("a path of the table").to_owned();
    (entered.into_iter().map(|(at, text)| (path(at), text)).collect(), notices)
}

fn hides(told: &str) {
    let part = RANDOM.as_bytes().windows(SHORTEST_LEAK).find(|part| octets::contains(told.as_bytes(), part));
    assert!(part.is_none(), "a credential is told: {told}");
}
