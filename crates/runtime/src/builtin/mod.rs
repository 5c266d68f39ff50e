//! Built-in tools: decides what of the caller's configuration enters a sandbox.
//!
//! ```text
//! table ─► files of the home ─► form: what they say ─► judge: keep, placeholder, leave out ─► written anew
//! ```
//! A file never enters unchanged. It is read, parsed, judged entry by entry, and written anew from what was kept; a file that does
//! not parse stays outside. All of this happens in a process of its own, so that no sandbox is forked from memory that held what was
//! read. No value that was left out is ever part of a notice.

mod bound;
mod cache;
mod command;
mod form;
mod judge;
mod left_out;
mod made;
mod prepare;
mod shape;
mod table;
mod telling;
mod userinfo;

use std::path::{Path, PathBuf};

use credential::Placeholder;
use policy::{Backend, Policy, ProviderId, RunSpec};
use sandbox::{Additions, Cache, Caller, PrivateFile};
use serde::{Deserialize, Serialize};

use self::bound::Bound;
use self::table::Tool;
use crate::error::Error;

/// The result of preparing the tools' files: all of it may be seen inside.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Prepared {
    /// Paths relative to the home, each with its content.
    files: Vec<(PathBuf, String)>,
    /// Caches, by their paths relative to the home.
    caches: Vec<PathBuf>,
    /// A sentence for the person for each thing that was left out.
    notices: Vec<String>,
}

/// Refuses a name that is no built-in tool's.
pub(crate) fn check(names: &[String]) -> Result<(), Error> {
    table::named(names).map(drop)
}

/// Adds what its built-in tools bring to a run, and the files that its providers need. The process must have one thread.
pub(crate) fn bring(
    spec: &mut RunSpec,
    caller: &Caller,
    placeholders: &[(Placeholder, ProviderId)],
    additions: &mut Additions,
) -> Result<(), Error> {
    let tools = table::named(&spec.builtin_tools)?;
    if spec.backend == Backend::Process {
        return Ok(()); // The plan refuses what cannot be.
    }
    let bound = Bound::new(&spec.policy, placeholders, spec.organisation.as_ref());
    let mut prepared = Prepared::default();
    if let Some(home) = caller.home.as_ref().filter(|_| !tools.is_empty()) {
        prepared = prepare_apart(home, &tools, &bound)?;
        let cache = |path: &PathBuf| Cache { source: home.join(path), target: path.clone() };
        additions.caches.extend(prepared.caches.iter().map(cache));
    }
    let Prepared { mut files, notices, .. } = prepared;
    made::write(&mut files, tools.iter().flat_map(|tool| &tool.made), &bound);
    // The home of an image may have a file of its own there.
    if spec.backend != Backend::Container {
        made::write(&mut files, &table::of_providers()?, &bound);
    }
    let private =
        |(path, content): (PathBuf, String)| PrivateFile { path, content: content.into(), mode: 0o600 };
    additions.files.extend(files.into_iter().map(private));
    let variables = tools.iter().flat_map(|tool: &Tool| &tool.env);
    additions.defaults.extend(variables.map(|(name, value)| (name.clone(), value.clone())));
    spec.notices.extend(notices);
    Ok(())
}

fn prepare_apart(home: &Path, tools: &[Tool], bound: &Bound<'_>) -> Result<Prepared, Error> {
    let answer = sandbox::apart("reading the configuration of the built-in tools", || {
        serde_json::to_vec(&prepare::prepare(home, tools, bound)).unwrap_or_default()
    })?;
    serde_json::from_slice(&answer).map_err(|e| Error::Plumbing {
        what: "take over the configuration of the built-in tools",
        source: e.into(),
    })
}

/// A built-in tool, for fuzzing and tests.
#[derive(Debug)]
pub struct BuiltinTool(Tool);

impl BuiltinTool {
    /// Returns the tool of that name.
    ///
    /// # Errors
    /// When there is none.
    pub fn named(name: &str) -> Result<Self, Error> {
        let tool = table::named(&[name.to_owned()])?.pop();
        tool.map(Self).ok_or(Error::Plumbing {
            what: "find a built-in tool",
            source: std::io::ErrorKind::NotFound.into(),
        })
    }

    /// Returns what it brings of files with these texts, by their paths relative to the home, and the notices about the rest.
    #[must_use]
    pub fn brings(
        &self,
        files: &[(&str, &str)],
        policy: &Policy,
        placeholders: &[(Placeholder, ProviderId)],
    ) -> (Vec<(PathBuf, String)>, Vec<String>) {
        let bound = Bound::new(policy, placeholders, None);
        let Prepared { mut files, notices, .. } = prepare::prepare_texts(&self.0, files, &bound);
        made::write(&mut files, &self.0.made, &bound);
        (files, notices)
    }
}
