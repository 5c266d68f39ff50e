//! The ways an engine can fail to start, one variant per operation.

use std::io;
use std::path::PathBuf;

/// Why there is no engine. Each message fits after "failed to".
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "read the arguments: {0}\nusage: engine [--podman | --docker-of USER:GROUP | --podman-of USER:GROUP] [--here] \
         [--archive FILE]… -- CMD ARGS…"
    )]
    Arguments(String),
    #[error("use {path}")]
    File { path: PathBuf, source: io::Error },
    #[error("make mount, process and network namespaces (is this root?)")]
    Unshare { source: io::Error },
    #[error("start a process")]
    Fork { source: io::Error },
    #[error("mount {what} on {target}")]
    Mount { what: &'static str, target: PathBuf, source: io::Error },
    #[error("run {program} ({package}): {message}")]
    Tool { program: &'static str, package: &'static str, message: String },
    #[error("get an answer from the engine: {message}")]
    Daemon { message: String },
    #[error("take the image {name} in: {message}")]
    Import { name: String, message: String },
    #[error("have an engine; its own message is above")]
    Inside,
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
