//! Removes the path of a Unix socket when its sidecar ends, unless another socket has taken the path.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The path of a bound socket. Dropping it removes the path, if it still leads to that socket.
#[derive(Debug)]
pub struct SocketName {
    path: PathBuf,
    inode: Inode,
}

#[derive(Debug, PartialEq, Eq)]
struct Inode {
    device: u64,
    number: u64,
}

impl SocketName {
    /// The path of a socket that was bound just now. Its inode identifies it for as long as the socket is open.
    ///
    /// # Errors
    /// Whatever `lstat(2)` returns.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.into(), inode: Inode::of(path)? })
    }
}

impl Drop for SocketName {
    fn drop(&mut self) {
        if Inode::of(&self.path).is_ok_and(|inode| inode == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Inode {
    fn of(path: &Path) -> io::Result<Self> {
        std::fs::symlink_metadata(path).map(|it| Self { device: it.dev(), number: it.ino() })
    }
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
