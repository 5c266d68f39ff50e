//! One `lockgate run` as a person would type it, in the small internet. It adds only the workspace and, where asked, takes
//! the proxy variables away inside, so that a client is left to the planes it knows nothing of.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::ended::{self, Ended};
use crate::needs::product;
use crate::site::Site;

/// No command of these tests takes longer, not even on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
/// What a client that knows of proxies would read.
const BARE: &str =
    "unset HTTP_PROXY http_proxy HTTPS_PROXY https_proxy ALL_PROXY all_proxy NO_PROXY no_proxy\n";
/// Runs `$attempt` and says on the last line how it ended and how long it took.
const TIMED: &str = "begun=$(date +%s%N); sh -c \"$attempt\" </dev/null; code=$?; ended=$(date +%s%N)
printf '\\ncode=%s ms=%s\\n' $code $(( (ended - begun) / 1000000 ))\n";

/// A run that has not started.
#[derive(Clone)]
pub struct Run<'site> {
    site: &'site Site,
    flags: Vec<OsString>,
    prologue: &'static str,
}

impl<'site> Run<'site> {
    pub(crate) fn new(site: &'site Site) -> Self {
        Self { site, flags: Vec::new(), prologue: "" }
    }

    /// Adds flags of `lockgate run`.
    #[must_use]
    pub fn flags<T: AsRef<OsStr>>(mut self, flags: impl IntoIterator<Item = T>) -> Self {
        self.flags.extend(flags.into_iter().map(|flag| flag.as_ref().to_owned()));
        self
    }

    /// Allows a host, `HOST[:PORT]`.
    #[must_use]
    pub fn allow(self, host: &str) -> Self {
        self.flags(["--allow", host])
    }

    /// Gives it a policy file.
    #[must_use]
    pub fn policy(self, text: &str) -> Self {
        let path = self.site.file("policy.toml", text);
        self.flags([OsStr::new("--policy"), path.as_os_str()])
    }

    /// Shows a path of the host at its own place, read-only.
    #[must_use]
    pub fn mount(self, path: &Path) -> Self {
        let pair = format!("{0}:{0}:ro", path.display());
        self.flags(["--mount", &pair])
    }

    /// Without proxy variables.
    #[must_use]
    pub fn bare(mut self) -> Self {
        self.prologue = BARE;
        self
    }

    /// The whole command line, from the world to the shell inside.
    ///
    /// # Panics
    /// When the product is not built, which `ready` rules out.
    #[must_use]
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = self.site.world().command(product().expect("`ready` was asked first"));
        command
            .arg("run")
            .arg("--workspace")
            .arg(self.site.workspace())
            .args(&self.flags)
            .arg("--")
            .args(words);
        command.current_dir(self.site.workspace()).env("XDG_STATE_HOME", self.site.state());
        command
    }

    /// Runs a shell script inside, to its end or its first error.
    #[must_use]
    pub fn script(&self, text: &str) -> Ended {
        let text = format!("{}{text}", self.prologue);
        ended::run_to_end(&mut self.command(&["/bin/sh", "-euc", &text]), LIMIT)
    }

    /// Runs one attempt inside, by a shell, and measures it there.
    #[must_use]
    pub fn attempt(&self, text: &str) -> Ended {
        let quoted = text.replace('\'', r"'\''");
        let script = format!("{}attempt='{quoted}'\n{TIMED}", self.prologue);
        ended::run_to_end(&mut self.command(&["/bin/sh", "-c", &script]), LIMIT).measured()
    }
}
