//! Toolchains in the caller's home that a run can name and see read-only. The table is `profiles/tools.toml`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use policy::MountMode;
use serde::Deserialize;

use crate::caller::Caller;
use crate::error::Error;
use crate::step::Visible;

const DATA: &str = include_str!("../../../profiles/tools.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    tool: Vec<Tool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tool {
    name: String,
    about: String,
    paths: Vec<PathBuf>,
    #[serde(default)]
    path: Vec<PathBuf>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

/// The contributions of tools to a plan.
#[derive(Debug, Default)]
pub(crate) struct Brought {
    pub(crate) visible: Vec<Visible>,
    pub(crate) search: Vec<PathBuf>,
    pub(crate) environment: Vec<(String, String)>,
}

/// Returns every tool's name and description.
///
/// # Errors
/// When the embedded table is malformed, which its test rules out.
pub fn tool_names() -> Result<Vec<(String, String)>, Error> {
    Ok(table()?.tool.into_iter().map(|tool| (tool.name, tool.about)).collect())
}

/// Returns the tool that contains this program of a home, if one does.
#[must_use]
pub fn tool_with(program: &Path, home: &Path) -> Option<String> {
    let has = |path: &PathBuf| path.strip_prefix("~").is_ok_and(|rest| program.starts_with(home.join(rest)));
    table().ok()?.tool.into_iter().find(|tool| tool.paths.iter().any(has)).map(|tool| tool.name)
}

fn table() -> Result<Table, Error> {
    toml::from_str(DATA)
        .map_err(|e| Error::Refused { what: format!("the table of tools: {e}"), remedy: None })
}

/// Refuses a name that is no tool's.
///
/// # Errors
/// The first such name, or when the embedded table is malformed.
pub fn check_tools(names: &[String]) -> Result<(), Error> {
    names.iter().try_for_each(|name| find(name).map(drop))
}

fn find(name: &str) -> Result<Tool, Error> {
    let mut tools = table()?.tool;
    if let Some(at) = tools.iter().position(|tool| tool.name == name) {
        return Ok(tools.swap_remove(at));
    }
    let known: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    Err(Error::Unknown {
        what: format!("there is no tool `{}`", name.escape_debug()),
        remedy: format!(
            "{}the tools are {}; anything else can be mounted with --mount",
            policy::did_you_mean(name, known.iter().copied()),
            known.join(", ")
        ),
    })
}

/// Returns the contributions of the caller's tool of this name.
pub(crate) fn bring(name: &str, caller: &Caller) -> Result<Brought, Error> {
    let tool = find(name)?;
    let roots: Vec<PathBuf> = tool.paths.iter().map(|p| caller.resolve(p)).filter(|p| p.exists()).collect();
    if roots.is_empty() {
        let paths: Vec<String> = tool.paths.iter().map(|p| p.display().to_string()).collect();
        return Err(Error::Refused {
            what: format!("the tool `{name}` is not installed: none of {} exists", paths.join(", ")),
            remedy: None,
        });
    }
    let is_brought = |path: &Path| roots.iter().any(|root| path.starts_with(root));
    let active = caller.variable("PATH").unwrap_or_default().split(':').map(PathBuf::from);
    let active = active.filter(|entry| is_brought(entry));
    let search = active.chain(tool.path.iter().map(|p| caller.resolve(p)).filter(|p| p.exists())).collect();
    let visible = roots.iter().map(|root| Visible {
        source: root.clone(),
        target: root.clone(),
        mode: MountMode::ReadOnly,
    });
    let environment = tool.env.iter().map(|(name, value)| {
        let active = caller.variable(name).filter(|active| is_brought(Path::new(active)));
        let value = match value.strip_prefix('~') {
            Some(_) => {
                active.map_or_else(|| caller.resolve(Path::new(value)).display().to_string(), str::to_owned)
            }
            None => value.clone(),
        };
        (name.clone(), value)
    });
    Ok(Brought { visible: visible.collect(), search, environment: environment.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_that_is_active_outside_is_active_inside_by_path_and_by_variable() {
        let home = tempfile::tempdir().unwrap();
        let java = home.path().join(".sdkman/candidates/java");
        std::fs::create_dir_all(java.join("17/bin")).unwrap();
        let brought = |java_home: &Path| {
            let path = format!("/usr/bin:{}", java.join("17/bin").display());
            let caller = Caller::new(1000, 1000, "/").with_home(home.path());
            bring("sdkman", &caller.with_env([("PATH", &*path), ("JAVA_HOME", java_home.to_str().unwrap())]))
                .unwrap()
        };
        let variable = |java_home: &Path| {
            let mut environment = brought(java_home).environment.into_iter();
            environment.find(|(name, _)| name == "JAVA_HOME").map(|(_, value)| PathBuf::from(value))
        };
        assert_eq!(brought(&java.join("17")).search, [java.join("17/bin")]);
        assert_eq!(variable(&java.join("17")), Some(java.join("17")));
        // Of a folder that the tool does not bring nothing is there.
        assert_eq!(variable(Path::new("/srv/java")), Some(java.join("current")));
    }

    #[test]
    fn the_table_parses_and_names_are_unique() {
        let mut names: Vec<String> = super::tool_names().unwrap().into_iter().map(|(name, _)| name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
