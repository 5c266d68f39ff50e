//! Where the agents and model libraries lie that `cargo xtask setup` installs: for Node beside the virtual environment, for
//! Python in it. A sandbox sees neither unless they are mounted.

use std::env;
use std::path::{Path, PathBuf};

use crate::needs::{Need, ready};
use crate::run::Run;

/// Both folders.
#[derive(Debug, Clone)]
pub struct Agents {
    node: PathBuf,
    python: PathBuf,
}

impl Agents {
    /// The folders, if these programs or libraries for Node are in them. Otherwise the reason is printed, and the test is to
    /// return.
    ///
    /// # Panics
    /// When something is missing and `LOCKGATE_TEST_REQUIRE` is `all`.
    #[must_use]
    pub fn with(names: &[&str]) -> Option<Self> {
        if !ready(&[Need::Venv]) {
            return None;
        }
        let python = PathBuf::from(env::var_os("LOCKGATE_TEST_VENV")?);
        let agents = Self { node: python.with_file_name("agents"), python };
        let Some(missing) = names.iter().find(|name| !agents.has(name)) else { return Some(agents) };
        let why = format!("{missing} is not in {}; `cargo xtask setup` installs it", agents.node.display());
        assert!(env::var("LOCKGATE_TEST_REQUIRE").as_deref() != Ok("all"), "this test cannot run: {why}");
        eprintln!("skipped: {why}");
        None
    }

    fn has(&self, name: &str) -> bool {
        self.program(name).exists() || self.node.join("node_modules").join(name).exists()
    }

    /// A program of theirs.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs().join(name)
    }

    /// What a script's PATH begins with: their programs, and the Node that they and the libraries want.
    #[must_use]
    pub fn programs(&self) -> PathBuf {
        self.node.join("node_modules/.bin")
    }

    /// Where scripts for Node find the libraries.
    #[must_use]
    pub fn libraries(&self) -> PathBuf {
        self.node.join("node_modules")
    }

    /// The Python that has the libraries.
    #[must_use]
    pub fn python(&self) -> PathBuf {
        self.python.join("bin/python")
    }

    /// Shows them to a run, read-only, at the same places.
    #[must_use]
    pub fn shown_to<'site>(&self, run: Run<'site>) -> Run<'site> {
        let folders: [&Path; 2] = [&self.node, &self.python];
        folders.into_iter().fold(run, Run::mount)
    }
}
