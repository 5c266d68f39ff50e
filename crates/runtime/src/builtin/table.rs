//! The table of built-in tools: `profiles/builtin_tools.toml`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::error::Error;

const DATA: &str = include_str!("../../../../profiles/builtin_tools.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    tool: Vec<Tool>,
    made: Vec<Made>,
}

/// A program whose configuration enters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tool {
    pub(super) name: String,
    #[expect(dead_code, reason = "for whoever reads the table")]
    about: String,
    #[serde(default)]
    pub(super) file: Vec<Entry>,
    #[serde(default)]
    pub(super) whole: Vec<Whole>,
    #[serde(default)]
    pub(super) made: Vec<Made>,
    #[serde(default)]
    pub(super) cache: Vec<Cache>,
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Form {
    /// git-config(1).
    GitConfig,
    /// gitcredentials(7), as the `store` helper writes it.
    GitCredentials,
    /// Python's configparser, for pip.
    Ini,
    /// npm's.
    Npmrc,
    /// JSON.
    Json,
    /// TOML.
    Toml,
    /// YAML as people write it by hand.
    Yaml,
    /// A text for people or models.
    Text,
    /// A folder of such texts.
    Texts,
}

/// A file, or a folder of texts, by its path relative to the home.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) path: PathBuf,
    pub(super) form: Form,
    /// Keys that mean nothing inside; a trailing `*` stands for any rest.
    #[serde(default)]
    pub(super) outside: Vec<String>,
    /// Keys of credentials, and where each is good. In a key `*` is any one part, and in the address that part. A value that is no
    /// address is a key of an earlier file that holds one.
    #[serde(default)]
    pub(super) credentials: BTreeMap<String, String>,
}

/// A file that is nothing but a credential. It is never read.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Whole {
    pub(super) path: PathBuf,
    /// Where its credential is good.
    pub(super) at: String,
    /// What else it may hold than a key that is good there, and how to give that: `{org}` is the flag of the run's organisation.
    #[serde(default)]
    pub(super) otherwise: Option<String>,
}

/// A file of the sandbox's own, by its path relative to the home.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Made {
    pub(super) path: PathBuf,
    /// It is written where a provider is good at this address.
    pub(super) at: String,
    /// Its text, with `{placeholder}` or `{end}`.
    pub(super) content: String,
    /// With this in the caller's own file nothing is added to that.
    #[serde(default)]
    pub(super) unless: Option<String>,
}

/// A folder of fetched files, by its path relative to the home.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cache {
    pub(super) path: PathBuf,
    /// Paths in it that keep the whole cache outside if they exist; `*` is any part of a name.
    #[serde(default)]
    pub(super) unless: Vec<String>,
    /// Paths in it that are searched for the header of a request with a credential.
    #[serde(default)]
    pub(super) search: Vec<String>,
}

fn read() -> Result<Table, Error> {
    toml::from_str(DATA).map_err(|e| {
        let what = format!("the table of built-in tools: {}", e.message());
        Error::Sandbox(sandbox::Error::Refused { what, remedy: None })
    })
}

/// Returns the files that providers need, whichever tools are named.
pub(super) fn of_providers() -> Result<Vec<Made>, Error> {
    Ok(read()?.made)
}

/// Returns the named tools, each once.
pub(super) fn named(names: &[String]) -> Result<Vec<Tool>, Error> {
    let table = read()?;
    let known: Vec<&str> = table.tool.iter().map(|tool| tool.name.as_str()).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
        let meant = policy::did_you_mean(name, known.iter().copied());
        let remedy = format!("{meant}the built-in tools are {}", known.join(", "));
        let what = format!("there is no built-in tool `{}`", name.escape_debug());
        return Err(Error::Sandbox(sandbox::Error::Unknown { what, remedy }));
    }
    Ok(table.tool.into_iter().filter(|tool| names.contains(&tool.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_well_formed() {
        let all = ["claude", "codex", "pi", "git", "uv", "pip", "npm", "cargo", "gh"].map(str::to_owned);
        let tools = named(&all).unwrap();
        assert_eq!(tools.len(), all.len());
        for tool in &tools {
            let paths = tool.file.iter().map(|entry| &entry.path);
            let paths = paths
                .chain(tool.whole.iter().map(|whole| &whole.path))
                .chain(tool.made.iter().map(|made| &made.path))
                .chain(tool.cache.iter().map(|cache| &cache.path));
            for path in paths {
                let plain = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
                assert!(plain, "{} of {}", path.display(), tool.name);
            }
        }
        assert_eq!(named(&["git".into(), "git".into()]).unwrap().len(), 1);
    }

    #[test]
    fn an_unknown_name_lists_those_there_are() {
        let error = named(&["nonesuch".into()]).unwrap_err();
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("git, gh, uv, pip, npm")), "{error}");
    }
}
