//! The name of a Unix socket in the file system: taken away behind the socket it was given to, and behind no other.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A name that is taken away when this is dropped, if it is still that socket's: somebody else may have bound it anew.
#[derive(Debug)]
pub struct SocketName {
    path: PathBuf,
    being: (u64, u64),
}

impl SocketName {
    /// The name of a socket that was bound just now. What tells it from others holds for as long as the socket is open.
    ///
    /// # Errors
    /// Whatever `lstat(2)` gives.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.into(), being: being(path)? })
    }
}

impl Drop for SocketName {
    fn drop(&mut self) {
        if being(&self.path).is_ok_and(|being| being == self.being) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Its device and its number there.
fn being(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|it| (it.dev(), it.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_name_that_is_anothers_by_now_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let first = UnixListener::bind(&path).unwrap();
        let name = SocketName::of(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let second = UnixListener::bind(&path).unwrap();
        let its = SocketName::of(&path).unwrap();
        drop(name);
        assert!(path.exists(), "it is the second one's");
        drop(its);
        assert!(!path.exists());
        drop((first, second));
    }
}
