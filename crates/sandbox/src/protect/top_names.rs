//! The names at the top of a workspace, read at once: most names of the list are not there, and need no look of their own then.

use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, RawDir};

use crate::file_system::lists_what_is_found;

/// The most names that are read. Of more, each is looked at where it is asked for.
const MOST: usize = 128;

/// The names at the top of a workspace.
#[derive(Debug)]
pub(super) struct TopNames {
    /// `None` if they cannot be told, or do not tell what is found by a name.
    names: Option<Vec<OsString>>,
}

impl TopNames {
    /// Reads the names of an open folder.
    pub(super) fn of(root: BorrowedFd<'_>) -> Self {
        // A server may list less than it has.
        Self { names: lists_what_is_found(root).then(|| read(root)).flatten() }
    }

    /// Whether something may be found by a path.
    pub(super) fn may_have(&self, path: &Path) -> bool {
        let (Some(names), Some(first)) = (&self.names, path.iter().next()) else { return true };
        // A folder may ignore case.
        names.iter().any(|name| name.eq_ignore_ascii_case(first))
    }
}

fn read(root: BorrowedFd<'_>) -> Option<Vec<OsString>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(root, ".", flags, Mode::empty()).ok()?;
    let mut buffer = [MaybeUninit::uninit(); 8 * 1024];
    let mut entries = RawDir::new(&folder, &mut buffer);
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry.ok()?;
        let name = entry.file_name().to_bytes();
        // Where letters of other alphabets are taken for ours, as the Kelvin sign, only a look tells.
        if names.len() == MOST || !name.is_ascii() {
            return None;
        }
        names.push(OsStr::from_bytes(name).to_owned());
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_is_not_listed_is_not_there_and_what_cannot_be_told_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let root = std::fs::File::open(folder.path()).unwrap();
        let may_have = |path: &str| TopNames::of(root.as_fd()).may_have(Path::new(path));
        assert!(!may_have(".husky"));
        std::fs::create_dir(at(".Husky")).unwrap();
        assert!(may_have(".husky/pre-commit") && may_have(".husky") && !may_have(".hg/hgrc"));
        for number in 0..MOST - 3 {
            std::fs::write(at(&number.to_string()), "").unwrap();
        }
        assert!(!may_have(".hg/hgrc"));
        std::fs::write(at("another"), "").unwrap();
        assert!(may_have(".hg/hgrc"));
        std::fs::remove_file(at("another")).unwrap();
        assert!(!may_have(".hg/hgrc"));
        std::fs::write(at(".hus\u{212a}y"), "").unwrap();
        assert!(may_have(".hg/hgrc"));
    }
}
