//! The names at the top of a workspace, read at once: most names of the list are not there, and need no look of their own then.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, RawDir};
use rustix::io::Errno;

use crate::file_system::lists_what_is_found;

/// The most names that are read. Of more, each is looked at where it is asked for.
const MOST: usize = 128;

/// The names at the top of a workspace, as they are while it is looked through.
#[derive(Debug)]
pub(super) struct TopNames<'a> {
    root: BorrowedFd<'a>,
    /// `None` if they cannot be told, or do not tell what is found by a name.
    names: Option<Vec<OsString>>,
    /// Those that were looked at then, and whether something may be there. Each costs a server a question, and many paths begin with one.
    looked_at: RefCell<Vec<(OsString, bool)>>,
}

impl<'a> TopNames<'a> {
    /// Reads the names of an open folder.
    pub(super) fn of(root: BorrowedFd<'a>) -> Self {
        // A server may list less than it has.
        let names = lists_what_is_found(root).then(|| read(root)).flatten();
        Self { root, names, looked_at: RefCell::default() }
    }

    /// Whether something may be found by a path.
    pub(super) fn may_have(&self, path: &Path) -> bool {
        let Some(first) = path.iter().next() else { return true };
        // A folder may ignore case.
        let listed = |names: &Vec<OsString>| names.iter().any(|name| name.eq_ignore_ascii_case(first));
        self.names.as_ref().map_or_else(|| self.is_found(first), listed)
    }

    fn is_found(&self, name: &OsStr) -> bool {
        let mut looked_at = self.looked_at.borrow_mut();
        if let Some((_, is_there)) = looked_at.iter().find(|(known, _)| known == name) {
            return *is_there;
        }
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let is_there = !matches!(rustix::fs::statat(self.root, name, flags), Err(Errno::NOENT));
        looked_at.push((name.to_owned(), is_there));
        is_there
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
        // Of more, and of names that may be taken for others, each is looked at, and found once.
        let is_looked_at = |path: &str| {
            let names = TopNames::of(root.as_fd());
            let found = [path, path].map(|path| names.may_have(Path::new(path)));
            assert_eq!(found[0], found[1], "{path}");
            (found[0], names.looked_at.borrow().len())
        };
        assert_eq!(is_looked_at(".hg/hgrc"), (false, 0));
        for name in ["another", ".hus\u{212a}y"] {
            std::fs::write(at(name), "").unwrap();
            assert_eq!(is_looked_at(".hg/hgrc"), (false, 1));
            assert_eq!(is_looked_at(".Husky/pre-commit"), (true, 1));
            std::fs::remove_file(at(name)).unwrap();
        }
    }
}
