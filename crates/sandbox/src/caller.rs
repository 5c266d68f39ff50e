//! Who started a run, and from where: read once, so that the plan is a pure function.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

/// The person or program that started the run.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The effective user id.
    pub uid: u32,
    /// The effective group id.
    pub gid: u32,
    /// Whether this user id is the machine's superuser, and not one of a user namespace.
    pub superuser: bool,
    /// The home directory, links resolved, if the environment names one by an absolute path.
    pub home: Option<PathBuf>,
    /// The directory the run was started in, links resolved.
    pub directory: PathBuf,
    /// The whole environment. Only what a policy names leaves it.
    pub environment: Vec<(OsString, OsString)>,
}

impl Caller {
    /// Reads identity, directory and environment of this process.
    ///
    /// # Errors
    /// When the current directory cannot be read.
    pub fn current() -> io::Result<Self> {
        Ok(Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            superuser: rustix::process::geteuid().is_root() && maps_every_id(),
            home: std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute()).map(real),
            directory: std::env::current_dir()?,
            environment: std::env::vars_os().collect(),
        })
    }

    /// The value of a variable, if it is text.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.iter().find(|(n, _)| n == name).and_then(|(_, value)| value.to_str())
    }

    /// A path with a leading `~` replaced by the home, made absolute against the current directory.
    #[must_use]
    pub fn resolve(&self, path: &std::path::Path) -> PathBuf {
        match (path.strip_prefix("~"), &self.home) {
            (Ok(rest), Some(home)) if rest.as_os_str().is_empty() => home.clone(),
            (Ok(rest), Some(home)) => home.join(rest),
            _ => self.directory.join(path),
        }
    }
}

/// A path without links, where it is there: what is or holds it is told by the path that it has then.
fn real(path: PathBuf) -> PathBuf {
    path.canonicalize().unwrap_or(path)
}

/// Whether this user namespace is the machine's own: every id is itself.
fn maps_every_id() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}
