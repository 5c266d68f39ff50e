//! One `lockgate run` as a person would type it, in the small internet. It adds only the workspace and, on request, removes the proxy
//! variables inside, so that clients use the planes they know nothing of.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::at_terminal::at_terminal_of;
use crate::ended::{self, Ended};
use crate::needs::product;
use crate::site::Site;

/// The time limit of a command of these tests, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
/// What is denied fails within this time.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Removes the variables that a client with proxy support reads.
const BARE: &str =
    "unset HTTP_PROXY http_proxy HTTPS_PROXY https_proxy ALL_PROXY all_proxy NO_PROXY no_proxy\n";
/// Runs `$attempt` and prints on the last line how it ended and how long it took.
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

    /// Sets the policy file.
    #[must_use]
    pub fn policy(self, text: &str) -> Self {
        let path = self.site.file("policy.toml", text);
        self.flags([OsStr::new("--policy"), path.as_os_str()])
    }

    /// Mounts a path of the host at its own place, read-only.
    #[must_use]
    pub fn mount(self, path: &Path) -> Self {
        let pair = format!("{0}:{0}:ro", path.display());
        self.flags(["--mount", &pair])
    }

    /// Removes the proxy variables inside.
    #[must_use]
    pub fn bare(mut self) -> Self {
        self.prologue = BARE;
        self
    }

    /// Returns the whole command line, from the world to the shell inside.
    ///
    /// # Panics
    /// When the product is not built; `ready` tells beforehand.
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

    /// Runs a shell script inside at a terminal, for a caller with this home, and does these steps there.
    ///
    /// # Panics
    /// When the product is not built; `ready` tells beforehand.
    #[must_use]
    pub fn at_terminal(&self, home: &Path, text: &str, steps: &[&str]) -> Ended {
        let product = product().expect("`ready` was asked first");
        let begin = [product.as_os_str(), OsStr::new("run")].into_iter();
        let flags = self.flags.iter().map(OsString::as_os_str);
        let end = ["--", "/bin/sh", "-euc", text].map(OsStr::new);
        at_terminal_of(self.site, begin.chain(flags).chain(end), steps, &[("HOME", home.as_os_str())])
    }

    /// Runs a shell script inside, to its end or its first error.
    #[must_use]
    pub fn script(&self, text: &str) -> Ended {
        let text = format!("{}{text}", self.prologue);
        ended::run_to_end(&mut self.command(&["/bin/sh", "-euc", &text]), LIMIT)
    }

    /// Runs one attempt inside in a shell, and measures it there.
    #[must_use]
    pub fn attempt(&self, text: &str) -> Ended {
        let quoted = text.replace('\'', r"'\''");
        let script = format!("{}attempt='{quoted}'\n{TIMED}", self.prologue);
        ended::run_to_end(&mut self.command(&["/bin/sh", "-c", &script]), LIMIT).measured()
    }

    /// Makes an attempt that is to end within a second, up to three times, and returns the fastest: a pause of the machine makes one slow.
    ///
    /// # Panics
    /// When one succeeds and another does not.
    #[must_use]
    pub fn fastest(&self, text: &str) -> Ended {
        let mut fastest = self.attempt(text);
        for _ in 0..2 {
            if fastest.took < AT_ONCE {
                break;
            }
            let again = self.attempt(text);
            assert!((again.code == 0) == (fastest.code == 0), "{fastest}\n{again}");
            if again.took < fastest.took {
                fastest = again;
            }
        }
        fastest
    }
}
