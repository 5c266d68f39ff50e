//! The ways a world can fail to start, one variant per operation. A refused connection is never an error here: the servers record it.

use std::io;
use std::path::PathBuf;

/// Why there is no world. Each message fits after "failed to".
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "read the arguments: {0}\nusage: world [--records FILE] [--tables FILE] [--keys FILE] [--ca-dir DIR] -- CMD ARGS…"
    )]
    Arguments(String),
    #[error("make {what} namespaces (are user namespaces enabled for this user?)")]
    Unshare { what: &'static str, source: io::Error },
    #[error("map the user into its namespace through {path}")]
    MapIdentity { path: &'static str, source: io::Error },
    #[error("set capabilities")]
    Capabilities { source: io::Error },
    #[error("start a process")]
    Fork { source: io::Error },
    #[error("enter the {namespace} network")]
    Enter { namespace: &'static str, source: io::Error },
    #[error("mount {what} on {target}")]
    Mount { what: &'static str, target: PathBuf, source: io::Error },
    #[error("find {program}; install {package}")]
    Missing { program: &'static str, package: &'static str },
    #[error("set up the {namespace} network: {message}")]
    Links { namespace: &'static str, message: String },
    #[error("use {path}")]
    File { path: PathBuf, source: io::Error },
    #[error("make a certificate")]
    Certificate { source: rcgen::Error },
    #[error("offer a certificate")]
    Tls { source: rustls::Error },
    #[error("listen on {address}")]
    Listen { address: String, source: io::Error },
    #[error("run {program}: {message}")]
    Tool { program: &'static str, message: String },
    #[error("start the servers; their own message is above")]
    Servers,
    #[error("wait for a process")]
    Wait { source: io::Error },
    #[error("run {program}")]
    Command { program: String, source: io::Error },
}

impl Error {
    /// Returns a closure for `map_err` that names the operation's file.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    /// The exit status: a shell's for a command that cannot run, and BSD's `EX_SOFTWARE` for the rest.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Arguments(_) => 64,
            Self::Command { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Command { .. } => 126,
            _ => 70,
        }
    }
}
