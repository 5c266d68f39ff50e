//! The folders of the agents and model libraries that `cargo xtask setup` installs: for Node beside the virtual environment, for Python in
//! it. A sandbox sees neither unless they are mounted.

use std::env;
use std::path::{Path, PathBuf};

use lockgate_needs::met;

use crate::needs::{Need, ready};
use crate::run::Run;

/// Both folders.
#[derive(Debug, Clone)]
pub struct Agents {
    node: PathBuf,
    python: PathBuf,
}

impl Agents {
    /// Returns the folders, if these programs or Node libraries are in them. Otherwise it prints the reason, and the test must return.
    ///
    /// # Panics
    /// When something is missing and everything is required.
    #[must_use]
    pub fn with(names: &[&str]) -> Option<Self> {
        if !ready(&[Need::Venv]) {
            return None;
        }
        let python = PathBuf::from(env::var_os("LOCKGATE_TEST_VENV")?);
        let agents = Self { node: python.with_file_name("agents"), python };
        let absent = names.iter().find(|name| !agents.has(name)).map(|name| {
            format!("{name} is not in {}; `cargo xtask setup` installs it", agents.node.display())
        });
        met(absent.map_or(Ok(agents), Err))
    }

    fn has(&self, name: &str) -> bool {
        self.program(name).exists() || self.node.join("node_modules").join(name).exists()
    }

    /// Returns the path of an installed program.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs().join(name)
    }

    /// The beginning of a script's PATH: the installed programs, and the Node that they and the libraries need.
    #[must_use]
    pub fn programs(&self) -> PathBuf {
        self.node.join("node_modules/.bin")
    }

    /// The folder in which scripts for Node find the libraries.
    #[must_use]
    pub fn libraries(&self) -> PathBuf {
        self.node.join("node_modules")
    }

    /// The Python that has the libraries.
    #[must_use]
    pub fn python(&self) -> PathBuf {
        self.python.join("bin/python")
    }

    /// Mounts both folders in a run, read-only, at their own paths.
    #[must_use]
    pub fn shown_to<'site>(&self, run: Run<'site>) -> Run<'site> {
        let folders: [&Path; 2] = [&self.node, &self.python];
        folders.into_iter().fold(run, Run::mount)
    }
}
