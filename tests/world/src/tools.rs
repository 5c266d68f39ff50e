//! The distribution's programs that the world uses: finds them, and runs one to its end. It must find the administrator's tools even if the
//! caller's PATH has none of their folders.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::Error;

/// The absolute path of `program`, in PATH or in one of the administrator's folders.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders =
        env::split_paths(&path).chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|candidate| {
        rustix::fs::access(candidate, rustix::fs::Access::EXEC_OK).is_ok() && candidate.is_file()
    })
}

/// Runs a tool without input and returns its output, without the last line break.
pub(crate) fn output<A: AsRef<OsStr>>(
    name: &'static str,
    program: &Path,
    arguments: impl IntoIterator<Item = A>,
) -> Result<String, Error> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Error::Tool { program: name, message: error.to_string() })?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::Tool { program: name, message });
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}
