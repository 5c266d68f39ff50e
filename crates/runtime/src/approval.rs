//! What the person has approved: the exact contents of a project's policy, by their digests.

use std::io;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::state::{StateDirectory, append, make_directory, remove_left_beside, replace, state_error};
use crate::without_waiting;

/// The largest record of one file's approvals, in octets: it has three digests at most.
const LARGEST: u64 = 4096;

/// Whether the person has approved this exact content of this file.
///
/// # Errors
/// When there is a record of it that cannot be read.
pub fn is_approved(state: &StateDirectory, path: &Path, text: &str) -> Result<bool, Error> {
    let record = approval(state, path);
    let kept = match without_waiting::read(&record, LARGEST) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        kept => kept.map_err(|source| Error::Approval { path: record, of: path.into(), source })?,
    };
    let digest = egress::digest(text.as_bytes());
    Ok(kept.split(|octet| *octet == b'\n').any(|kept| kept == digest.as_bytes()))
}

/// Records that the person approves these exact contents of this file, and no other.
///
/// # Errors
/// When the record cannot be written.
pub fn approve(state: &StateDirectory, path: &Path, texts: &[&str]) -> Result<(), Error> {
    make_directory(&state.approved())?;
    let digests: String = texts.iter().map(|text| format!("{}\n", egress::digest(text.as_bytes()))).collect();
    replace(&approval(state, path), digests.as_bytes())
}

/// Waits until no other process changes and approves a policy, so that what is read still stands there when it is replaced. Dropping
/// the file ends the turn.
///
/// # Errors
/// When the state directory cannot be written to.
pub fn turn_to_approve(state: &StateDirectory) -> Result<std::fs::File, Error> {
    let path = state.approved().join(".turn");
    let file = append(&path)?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|errno| state_error(&path, errno.into()))?;
    remove_left_beside(&state.approved());
    Ok(file)
}

fn approval(state: &StateDirectory, path: &Path) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    state.approved().join(egress::digest(path.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_a_file_is_changed_both_contents_are_approved_and_then_one() {
        let folder = tempfile::tempdir().unwrap();
        let (state, file) = (StateDirectory::for_test(folder.path()), Path::new("/srv/lockgate.toml"));
        let approved = || ["old", "new", "other"].map(|text| is_approved(&state, file, text).unwrap());
        assert_eq!(approved(), [false; 3]);
        approve(&state, file, &["old", "new"]).unwrap();
        assert_eq!(approved(), [true, true, false]);
        approve(&state, file, &["new"]).unwrap();
        assert_eq!(approved(), [false, true, false]);
    }

    #[test]
    fn an_approval_that_cannot_be_read_is_told_and_not_taken_for_none() {
        let folder = tempfile::tempdir().unwrap();
        let (state, file) = (StateDirectory::for_test(folder.path()), Path::new("/srv/lockgate.toml"));
        make_directory(&state.approved()).unwrap();
        let record = approval(&state, file);
        rustix::fs::mkfifoat(rustix::fs::CWD, &record, rustix::fs::Mode::RWXU).unwrap();
        let told = is_approved(&state, file, "text").unwrap_err().to_string();
        assert!(told.contains("no regular file") && told.contains(record.to_str().unwrap()), "{told}");
        let remedy = is_approved(&state, file, "text").unwrap_err().remedy().unwrap();
        assert!(
            remedy.contains(record.to_str().unwrap()) && remedy.contains("policy approve --workspace /srv`"),
            "{remedy}"
        );
        std::fs::remove_file(&record).unwrap();
        std::fs::write(&record, vec![b'\n'; 5000]).unwrap();
        assert!(is_approved(&state, file, "text").unwrap_err().to_string().contains("more than 4096"));
        // Approving replaces it.
        approve(&state, file, &["text"]).unwrap();
        assert!(is_approved(&state, file, "text").unwrap());
        // What a killed process left goes away with the next turn.
        let left = record.with_extension("new");
        std::fs::write(&left, "half").unwrap();
        drop(turn_to_approve(&state).unwrap());
        assert!(!left.exists() && record.exists());
        // With a reader and without one, a pipe in place of the turn is not waited for.
        let turn = state.approved().join(".turn");
        std::fs::remove_file(&turn).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &turn, rustix::fs::Mode::RWXU).unwrap();
        let refused = || turn_to_approve(&state).unwrap_err().to_string();
        assert!(refused().contains("no regular file"), "{}", refused());
        let _reader = std::fs::File::options().read(true).write(true).open(&turn).unwrap();
        assert!(refused().contains("no regular file"), "{}", refused());
    }
}
