//! A shell of the caller's in the small internet, outside any sandbox: what a person types, or a supervisor does, around the product.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::ended::{Ended, run_to_end};
use crate::needs::product;
use crate::site::Site;

/// The time limit of a script that sets none.
const LIMIT: Duration = Duration::from_secs(60);
/// `lockgate` is the product, under its own name.
const LOCKGATE: &str = r#"lockgate() { "$PRODUCT" "$@"; }
"#;
/// Defines `await CONDITION [SECONDS]` for any script, here or inside: after ten seconds, or that many, the script ends with 9 and prints
/// the condition and the files that `$complaints` names.
pub const AWAIT: &str = r#"await() { i=0; until eval "$1"; do i=$((i+1)); [ $i -lt $(( ${2:-10} * 50 )) ] || { echo "never: $1" >&2; cat ${complaints:-/dev/null} >&2; exit 9; }; sleep 0.02; done; }
"#;

/// A shell that has not started. Its scripts find the product as `lockgate` and as `$PRODUCT`, the caller's own folder as `$OUTSIDE`, and
/// `await`.
pub struct Shell<'site> {
    site: &'site Site,
    folder: PathBuf,
    variables: Vec<(OsString, OsString)>,
    limit: Duration,
}

impl<'site> Shell<'site> {
    pub(crate) fn new(site: &'site Site) -> Self {
        Self { site, folder: site.workspace(), variables: Vec::new(), limit: LIMIT }
    }

    /// Begins in another folder than the workspace.
    #[must_use]
    pub fn in_folder(mut self, folder: &Path) -> Self {
        folder.clone_into(&mut self.folder);
        self
    }

    /// Sets a variable.
    #[must_use]
    pub fn with(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Sets another time limit for a script.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs a script to its end. A variable that is not set is an error in it.
    ///
    /// # Panics
    /// When the product is not built; `ready` tells beforehand.
    #[must_use]
    pub fn run(&self, script: &str) -> Ended {
        let mut command = self.site.world().command("/bin/sh");
        command.args(["-uc", &format!("{LOCKGATE}{AWAIT}{script}")]).current_dir(&self.folder);
        command
            .env("PRODUCT", product().expect("`ready` was asked first"))
            .env("OUTSIDE", self.site.outside());
        command.env("XDG_STATE_HOME", self.site.state());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        run_to_end(&mut command, self.limit)
    }
}
