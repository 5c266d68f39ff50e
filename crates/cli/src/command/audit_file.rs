//! `lockgate sidecar --audit`: opens and locks the file of the records. It must be new or empty, regular, and not in use.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use policy::RunId;
use runtime::{AuditFile, Readers, StateDirectory, open_given};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::exit::Usage;

/// How long a killed sidecar's serving process may still hold the lock.
const LEFT_BEHIND: Duration = Duration::from_secs(2);
/// How often the lock is tried.
const AGAIN: Duration = Duration::from_millis(20);

/// Locks the file of the records as long as a process has it open. Returns false if another sidecar has it. On a file system without
/// locks the caller has to see to that.
fn lock(file: &File) -> bool {
    let began = Instant::now();
    while flock(file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        if began.elapsed() > LEFT_BEHIND {
            return false;
        }
        std::thread::sleep(AGAIN);
    }
    true
}

/// Opens the named file, or a new one in the named directory.
pub(crate) fn open(path: &Path, run: &RunId, state: &StateDirectory) -> Result<AuditFile, anyhow::Error> {
    let key = runtime::audit_key(state)?;
    let mut options = OpenOptions::new();
    // It says what an agent asked for: for nobody else to read, as those of runs are.
    let readers = Readers::NotEverybody;
    options.append(true).create_new(true).mode(readers.mode());
    if path.as_os_str().as_bytes().ends_with(b"/") && !path.is_dir() {
        let what = format!("--audit: there is no folder {}", path.display());
        return Err(Usage::error(what, "make it first, or name a file"));
    }
    let path = match path.is_dir() {
        true => path.join(format!("{run}.jsonl")),
        false => path.to_path_buf(),
    };
    // A pipe that nobody reads would hold up all traffic, and a device may keep nothing.
    if path.metadata().is_ok_and(|it| !it.is_file()) {
        let what = format!("the audit {} is no regular file", path.display());
        return Err(Usage::error(what, "name a file or a directory; `tail -F` shows a file as it grows"));
    }
    let opened = match options.open(&path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            open_given(&path, OpenOptions::new().append(true), readers)
        }
        opened => opened,
    };
    let file = opened.map_err(|source| {
        let what = format!("failed to open the audit {}: {source}", path.display());
        let error = runtime::Error::Write { path: path.clone(), source };
        Usage::error(what, error.remedy().unwrap_or_default())
    })?;
    if !lock(&file) {
        let what = format!("another sidecar writes {}", path.display());
        return Err(Usage::error(what, "give each a file of its own, or name a directory"));
    }
    if file.metadata()?.len() > 0 {
        let what =
            format!("{} holds records already, and a new chain cannot follow an old one", path.display());
        let hint = "name a new file, or move that one away; in a directory each start has a file of its own";
        return Err(Usage::error(what, hint));
    }
    Ok(AuditFile { path, file: Arc::new(file), key })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::command::state_below;

    #[test]
    fn a_folder_that_is_not_there_is_not_called_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let run: RunId = "abcdefghjkmn".parse().unwrap();
        let error = open(&folder.path().join("none/"), &run, &state_below(folder.path())).unwrap_err();
        assert!(error.to_string().starts_with("--audit: there is no folder "), "{error}");
        assert!(!folder.path().join("none").exists());
    }

    #[test]
    fn records_are_for_their_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let state = state_below(folder.path());
        let run: RunId = "abcdefghjkmn".parse().unwrap();
        let in_a_folder = folder.path().join("records");
        std::fs::create_dir(&in_a_folder).unwrap();
        for path in [folder.path().join("records.jsonl"), in_a_folder] {
            let audit = open(&path, &run, &state).unwrap();
            assert_eq!(audit.file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
}
