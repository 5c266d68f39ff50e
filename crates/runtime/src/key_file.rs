//! Reads key files of the state directory: regular files of one person's alone. Makes none.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::Error;
use crate::state::state_error;
use crate::without_waiting::open_regular;

/// Returns the error for a key whose name exists and leads nowhere.
pub(crate) fn links_to_nothing(path: &Path) -> Error {
    Error::KeyFile { path: path.into(), source: io::Error::other("it is a link to nothing") }
}

/// The largest key file.
const LARGEST: u64 = 64 * 1024;

/// Reads a key file, if it exists. It must be a regular file of this person's alone; a pipe in its place is not waited for.
pub(crate) fn read_key(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    let unreadable = |source| Error::KeyFile { path: path.into(), source };
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(unreadable(error)),
        Err(source) => return Err(state_error(path, source)),
    };
    let metadata = file.metadata().map_err(unreadable)?;
    refuse_shared(path, metadata.uid(), metadata.mode(), rustix::process::geteuid().as_raw())?;
    let read = || {
        let mut content = Vec::new();
        (&file).take(LARGEST).read_to_end(&mut content)?;
        Ok(content)
    };
    read().map(Some).map_err(unreadable)
}

/// Refuses a key file of another user, or one that others may read or write.
fn refuse_shared(path: &Path, owner: u32, mode: u32, own: u32) -> Result<(), Error> {
    if owner != own && owner != 0 {
        return Err(Error::KeyOfOthers { path: path.into(), owner });
    }
    match mode & 0o077 {
        0 => Ok(()),
        _ => Err(Error::KeyShared { path: path.into(), mode: mode & 0o7777 }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::state::make_once;

    #[test]
    fn a_key_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vault.key");
        assert!(make_once(&path, b"key").unwrap());
        assert_eq!(read_key(&path).unwrap().as_deref(), Some(&b"key"[..]));
        for mode in [0o640, 0o604, 0o620, 0o602] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let refused = read_key(&path).unwrap_err();
            assert!(matches!(refused, Error::KeyShared { mode: told, .. } if told == mode), "{refused}");
            assert!(refused.remedy().unwrap().contains("chmod 600"), "{refused}");
        }
        let fits = |owner, mode| refuse_shared(&path, owner, mode, 1000);
        assert!(fits(1000, 0o100_600).is_ok() && fits(0, 0o100_400).is_ok());
        assert!(matches!(fits(1001, 0o100_600), Err(Error::KeyOfOthers { owner: 1001, .. })));
        assert!(matches!(fits(0, 0o100_644), Err(Error::KeyShared { mode: 0o644, .. })));
    }
}
