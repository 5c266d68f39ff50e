//! The caller of a run: identity, directory and environment, read once, before planning, which changes nothing.

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
    /// The whole environment. A sandbox gets only the variables that a policy names.
    pub environment: Vec<(OsString, OsString)>,
}

impl Caller {
    /// A caller without a home, with an empty environment. User 0 is the superuser.
    #[must_use]
    pub fn new(uid: u32, gid: u32, directory: impl Into<PathBuf>) -> Self {
        Self {
            uid,
            gid,
            superuser: uid == 0,
            home: None,
            directory: directory.into(),
            environment: Vec::new(),
        }
    }

    /// Adds variables to the environment.
    #[must_use]
    pub fn with_env<'a>(mut self, variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        self.environment.extend(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// Sets the home.
    #[must_use]
    pub fn with_home(self, home: impl Into<PathBuf>) -> Self {
        Self { home: Some(home.into()), ..self }
    }

    /// Reads identity, directory and environment of this process.
    ///
    /// # Errors
    /// When the current directory cannot be read, or root's user namespace.
    pub fn current() -> io::Result<Self> {
        Ok(Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            superuser: rustix::process::geteuid().is_root() && maps_every_id()?,
            home: std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute()).map(real),
            directory: std::env::current_dir()?,
            environment: std::env::vars_os().collect(),
        })
    }

    /// Returns the value of a variable, if it is set and UTF-8.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.iter().find(|(n, _)| n == name).and_then(|(_, value)| value.to_str())
    }

    /// Returns the folder that a command works in: the named one, or the caller's directory.
    #[must_use]
    pub fn workspace(&self, named: Option<&std::path::Path>) -> PathBuf {
        named.map_or_else(|| self.directory.clone(), |named| self.resolve(named))
    }

    /// Returns a path with a leading `~` replaced by the home, made absolute against the directory.
    #[must_use]
    pub fn resolve(&self, path: &std::path::Path) -> PathBuf {
        match (path.strip_prefix("~"), &self.home) {
            (Ok(rest), Some(home)) if rest.as_os_str().is_empty() => home.clone(),
            (Ok(rest), Some(home)) => home.join(rest),
            _ => self.directory.join(path),
        }
    }
}

/// Returns a path with its links resolved if it exists, so that it can be compared with other such paths.
fn real(path: PathBuf) -> PathBuf {
    path.canonicalize().unwrap_or(path)
}

/// The id map of this process's user namespace, user_namespaces(7).
const ID_MAP: &str = "/proc/self/uid_map";

/// Nothing tells which root this is.
#[derive(Debug, thiserror::Error)]
#[error("cannot tell which root this is: {ID_MAP}: {0}")]
struct UntoldRoot(#[source] io::Error);

/// Returns whether this user namespace is the machine's own, in which every id is mapped to itself.
///
/// # Errors
/// When that cannot be read.
pub fn maps_every_id() -> io::Result<bool> {
    is_of_every_id(sys::kernel_file::read(ID_MAP))
}

fn is_of_every_id(map: io::Result<String>) -> io::Result<bool> {
    Ok(map.map_err(|error| io::Error::new(error.kind(), UntoldRoot(error)))?.split_whitespace().eq([
        "0",
        "0",
        "4294967295",
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_not_taken_for_another_where_its_map_cannot_be_read() {
        let told = |map: &str| is_of_every_id(Ok(map.into())).unwrap();
        assert!(told("         0          0 4294967295\n"));
        assert!(!told("         0       1000          1\n") && !told(""));
        let error = is_of_every_id(Err(rustix::io::Errno::MFILE.into())).unwrap_err().to_string();
        assert!(error.contains("cannot tell") && error.contains(ID_MAP), "{error}");
        let refused = is_of_every_id(Err(rustix::io::Errno::MFILE.into())).unwrap_err();
        let cause = std::error::Error::source(&refused).and_then(|cause| cause.downcast_ref::<io::Error>());
        assert_eq!(cause.and_then(io::Error::raw_os_error), Some(rustix::io::Errno::MFILE.raw_os_error()));
    }
}
