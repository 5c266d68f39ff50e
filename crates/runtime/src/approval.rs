//! What the person has approved: the exact contents of a project's policy, by their digests.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::state::{StateDirectory, append, make_directory, replace, state as at};
/// Whether the person has approved this exact content of this file.
#[must_use]
pub fn is_approved(state: &StateDirectory, path: &Path, text: &str) -> bool {
    std::fs::read_to_string(approval(state, path))
        .is_ok_and(|kept| kept.lines().any(|digest| digest == egress::digest(text.as_bytes())))
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
        .map_err(|errno| at(&path, errno.into()))?;
    Ok(file)
}

fn approval(state: &StateDirectory, path: &Path) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    state.approved().join(egress::digest(path.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use sandbox::Caller;

    use super::*;

    #[test]
    fn while_a_file_is_changed_both_contents_are_approved_and_then_one() {
        let folder = tempfile::tempdir().unwrap();
        let environment = vec![("XDG_STATE_HOME".into(), folder.path().into())];
        let directory = folder.path().into();
        let caller = Caller { uid: 0, gid: 0, superuser: false, home: None, directory, environment };
        let (state, file) = (StateDirectory::of(&caller).unwrap(), Path::new("/srv/lockgate.toml"));
        let approved = || ["old", "new", "other"].map(|text| is_approved(&state, file, text));
        assert_eq!(approved(), [false; 3]);
        approve(&state, file, &["old", "new"]).unwrap();
        assert_eq!(approved(), [true, true, false]);
        approve(&state, file, &["new"]).unwrap();
        assert_eq!(approved(), [false, true, false]);
    }
}
