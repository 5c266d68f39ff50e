//! What paths lead to, each looked at once: the checks before a run ask for the same few folders again and again.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType};
use rustix::io::Errno;

/// A device and an inode number: the same by whatever name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Folder,
    /// A link, and its target.
    Link(PathBuf),
    Other,
}

type Look = Result<(Kind, Identity), Errno>;

/// The looks of one check. What is changed meanwhile is not noticed.
#[derive(Default)]
pub(crate) struct Looks(RefCell<HashMap<PathBuf, Look>>);

impl Looks {
    /// Looks at a path whose folders are no links. A link at its end is not followed.
    pub(crate) fn at(&self, path: &Path) -> Look {
        if let Some(known) = self.0.borrow().get(path) {
            return known.clone();
        }
        let found = look(path);
        self.0.borrow_mut().insert(path.to_path_buf(), found.clone());
        found
    }

    /// Returns the identity of what is at a path, if something is.
    pub(crate) fn identity(&self, path: &Path) -> Option<Identity> {
        self.at(path).ok().map(|(_, identity)| identity)
    }
}

fn look(path: &Path) -> Look {
    let about = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    let kind = match FileType::from_raw_mode(about.st_mode) {
        FileType::Directory => Kind::Folder,
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(CWD, path, Vec::new())?;
            Kind::Link(PathBuf::from(OsString::from_vec(target.into_bytes())))
        }
        _ => Kind::Other,
    };
    Ok((kind, Identity { device: about.st_dev, inode: about.st_ino }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_looked_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::os::unix::fs::symlink("x/y", at("link")).unwrap();
        let looks = Looks::default();
        assert!(matches!(looks.at(folder.path()), Ok((Kind::Folder, _))));
        assert!(matches!(looks.at(&at("link")), Ok((Kind::Link(target), _)) if target == Path::new("x/y")));
        assert_eq!(looks.at(&at("none")), Err(Errno::NOENT));
        std::fs::write(at("none"), "").unwrap();
        assert_eq!(looks.identity(&at("none")), None);
        assert!(matches!(Looks::default().at(&at("none")), Ok((Kind::Other, _))));
    }
}
