//! Walks everything below a folder, each name once, following no link. It goes depth first, from descriptor to descriptor, with bounded
//! memory whatever the tree: the folders of one directory read per level, and a fixed number of descriptors.

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

use crate::source;

/// The rules of a walk.
pub(super) struct Walk<'a> {
    /// The most names that the walk visits.
    pub(super) most: usize,
    /// Whether a folder is not entered, by its path from the top.
    pub(super) leaves: &'a dyn Fn(&Path) -> bool,
    pub(super) shut: Shut,
}

/// What the walk does at a folder that it may not enter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shut {
    /// It ends with the error.
    Refuse,
    /// It gives the folder, which is the caller's own, a mode by which its owner may enter. If that fails, it records the error and
    /// goes on.
    Open,
}

/// A name that the walk found.
pub(super) struct Found<'a> {
    pub(super) folder: BorrowedFd<'a>,
    pub(super) name: &'a OsStr,
    /// The path of its folder from the top.
    pub(super) within: &'a Path,
    pub(super) kind: FileType,
}

impl Found<'_> {
    /// Returns its path from the top.
    pub(super) fn path(&self) -> PathBuf {
        self.within.join(self.name)
    }
}

/// The visitor, called for each name.
type Visit<'a> = dyn FnMut(&Found<'_>) -> io::Result<ControlFlow<()>> + 'a;

/// The size of one directory read, in octets.
const READ: usize = 8 * 1024;
/// The number of levels whose folders stay open while the walk is further down. From deeper levels it comes back by `..`.
const KEPT: usize = 64;
/// The longest path that a program can name (`PATH_MAX`, limits.h). What is deeper cannot be reached from the top.
const LONGEST: usize = 4095;

impl Walk<'_> {
    /// Visits every name below a folder, until the visitor ends the walk.
    pub(super) fn visit(&self, top: BorrowedFd<'_>, visit: &mut Visit<'_>) -> io::Result<()> {
        let mut going = Going { walk: self, visit, path: Vec::new(), looked_at: 0, troubles: 0, first: None };
        let mut levels = vec![Level::of(self.open_top(top)?, 0)];
        while let Some(level) = levels.last_mut() {
            going.path.truncate(level.end);
            if let Some(child) = going.child(level)? {
                if levels.len() >= KEPT
                    && let Some(level) = levels.last_mut()
                {
                    level.leave()?;
                }
                levels.push(child);
            } else if level.has_more {
                if going.read(level)?.is_break() {
                    return Ok(());
                }
            } else if let Some(below) = levels.pop()
                && let Some(level) = levels.last_mut()
                && let Err(error) = level.come_back(&below)
            {
                going.path.truncate(level.end);
                going.trouble(error)?;
                // The levels above are still open.
                levels.truncate(KEPT - 1);
            }
        }
        match going.first {
            None => Ok(()),
            Some(first) if going.troubles == 1 => Err(first),
            Some(first) => {
                Err(io::Error::new(first.kind(), format!("{first}, and {} more", going.troubles - 1)))
            }
        }
    }

    /// Opens the top for reading, by its descriptor.
    fn open_top(&self, top: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let itself = format!("/proc/self/fd/{}", top.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = match rustix::fs::open(&itself, flags, Mode::empty()) {
            Err(Errno::ACCESS) if self.shut == Shut::Open => {
                let_owner_in(top)?;
                rustix::fs::open(&itself, flags, Mode::empty())
            }
            opened => opened,
        }?;
        self.let_in(&opened);
        Ok(opened)
    }

    /// Opens a folder for reading. Returns `None` if it is gone.
    fn open(&self, folder: &OwnedFd, name: &OsStr) -> io::Result<Option<OwnedFd>> {
        let open = |how: OFlags| {
            let flags = how | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(folder, name, flags, Mode::empty())
        };
        let opened = match open(OFlags::RDONLY) {
            Err(Errno::ACCESS) if self.shut == Shut::Open => open(OFlags::PATH)
                .and_then(|shut| let_owner_in(shut.as_fd()))
                .and_then(|()| open(OFlags::RDONLY)),
            opened => opened,
        };
        match opened {
            Ok(opened) => {
                self.let_in(&opened);
                Ok(Some(opened))
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes a folder that can be read searchable as well. If that fails, opening its entries reports it.
    fn let_in(&self, opened: &OwnedFd) {
        if self.shut == Shut::Open
            && rustix::fs::fstat(opened).is_ok_and(|stat| stat.st_mode & ENTERED != ENTERED)
        {
            let _ = let_owner_in(opened.as_fd());
        }
    }
}

/// The rights that the owner of a folder needs to walk it.
const ENTERED: u32 = 0o500;

/// Gives the owner of a folder every right to it. Works by descriptor and not by name, at which something else could be.
pub(super) fn let_owner_in(folder: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let mode = Mode::from_raw_mode(rustix::fs::fstat(folder)?.st_mode & 0o7777) | Mode::RWXU;
    rustix::fs::chmod(format!("/proc/self/fd/{}", folder.as_raw_fd()), mode)
}

/// The state of a walk.
struct Going<'a, 'v> {
    walk: &'a Walk<'a>,
    visit: &'a mut Visit<'v>,
    /// The current path from the top.
    path: Vec<u8>,
    looked_at: usize,
    /// The number of errors, and the first one.
    troubles: usize,
    first: Option<io::Error>,
}

impl Going<'_, '_> {
    /// Enters the next waiting folder of a level.
    fn child(&mut self, level: &mut Level) -> io::Result<Option<Level>> {
        while let Some(name) = level.next() {
            self.path.truncate(level.end);
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend(&name);
            let Some(folder) = &level.folder else { break };
            if self.path.len() > LONGEST {
                continue;
            }
            match self.walk.open(folder, OsStr::from_bytes(&name)) {
                Ok(Some(opened)) => return Ok(Some(Level::of(opened, self.path.len()))),
                Ok(None) => {}
                Err(error) => self.trouble(error)?,
            }
        }
        self.path.truncate(level.end);
        Ok(None)
    }

    /// Reads and visits some more names of a folder. Folders among them wait to be entered.
    fn read(&mut self, level: &mut Level) -> io::Result<ControlFlow<()>> {
        let Level { folder: Some(folder), waiting, has_more, .. } = level else {
            level.has_more = false;
            return Ok(ControlFlow::Continue(()));
        };
        let mut buffer = [MaybeUninit::uninit(); READ];
        let mut entries = RawDir::new(&*folder, &mut buffer);
        loop {
            let (name, told) = match entries.next() {
                Some(Ok(ref entry)) if matches!(entry.file_name().to_bytes(), b"." | b"..") => continue,
                Some(Ok(entry)) => (entry.file_name().to_bytes().to_vec(), entry.file_type()),
                None | Some(Err(Errno::NOENT)) => {
                    *has_more = false;
                    break;
                }
                Some(Err(errno)) => {
                    *has_more = false;
                    self.trouble(errno.into())?;
                    break;
                }
            };
            match self.found(folder, OsStr::from_bytes(&name), told)? {
                ControlFlow::Break(()) => return Ok(ControlFlow::Break(())),
                ControlFlow::Continue(true) => waiting.extend([&name[..], b"\0"].concat()),
                ControlFlow::Continue(false) => {}
            }
            if entries.is_buffer_empty() {
                break;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Visits one name. Returns whether it is to be entered.
    fn found(&mut self, folder: &OwnedFd, name: &OsStr, told: FileType) -> io::Result<ControlFlow<(), bool>> {
        self.looked_at += 1;
        if self.looked_at > self.walk.most {
            return Err(io::Error::other(format!("there are more than {} files in it", self.walk.most)));
        }
        let kind = match kind(folder, name, told) {
            Ok(Some(kind)) => kind,
            Ok(None) => return Ok(ControlFlow::Continue(false)),
            Err(error) => return self.trouble(error).map(|()| ControlFlow::Continue(false)),
        };
        let within = Path::new(OsStr::from_bytes(&self.path));
        let found = Found { folder: folder.as_fd(), name, within, kind };
        match (self.visit)(&found) {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => return Ok(ControlFlow::Break(())),
            Err(error) => return self.trouble(error).map(|()| ControlFlow::Continue(false)),
        }
        Ok(ControlFlow::Continue(kind == FileType::Directory && !(self.walk.leaves)(&found.path())))
    }

    /// Handles an error at the current path.
    fn trouble(&mut self, error: io::Error) -> io::Result<()> {
        let is_whole = self.walk.shut == Shut::Refuse
            && Errno::from_io_error(&error).is_some_and(source::is_of_this_machine);
        let path = OsStr::from_bytes(&self.path).display().to_string();
        let error = match path.is_empty() || is_whole {
            true => error,
            false => io::Error::new(error.kind(), format!("`{}`: {error}", path.escape_debug())),
        };
        match self.walk.shut {
            Shut::Refuse => Err(error),
            Shut::Open => {
                self.troubles += 1;
                self.first.get_or_insert(error);
                Ok(())
            }
        }
    }
}

/// A folder that the walk is in, or has come through.
struct Level {
    /// The folder, while it is open.
    folder: Option<OwnedFd>,
    /// Its device, inode number and read position when it was closed.
    left: (u64, u64, u64),
    /// The names of folders found and not entered yet, each ending in NUL.
    waiting: Vec<u8>,
    /// Whether there may be more to read.
    has_more: bool,
    /// The length of its path.
    end: usize,
}

impl Level {
    fn of(folder: OwnedFd, end: usize) -> Self {
        Self { folder: Some(folder), left: (0, 0, 0), waiting: Vec::new(), has_more: true, end }
    }

    /// Takes the name of the next folder to enter.
    fn next(&mut self) -> Option<Vec<u8>> {
        self.waiting.pop()?;
        let start = self.waiting.iter().rposition(|octet| *octet == 0).map_or(0, |zero| zero + 1);
        Some(self.waiting.split_off(start))
    }

    /// Closes the folder while the walk is below it.
    fn leave(&mut self) -> io::Result<()> {
        if let Some(folder) = self.folder.take() {
            let stat = rustix::fs::fstat(&folder)?;
            self.left = (stat.st_dev, stat.st_ino, rustix::fs::tell(&folder)?);
        }
        Ok(())
    }

    /// Opens the folder again by `..` of a folder in it, and checks that it is the same one.
    fn come_back(&mut self, below: &Self) -> io::Result<()> {
        let (None, Some(below)) = (&self.folder, &below.folder) else { return Ok(()) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(below, c"..", flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&folder)?;
        let (device, inode, position) = self.left;
        if (stat.st_dev, stat.st_ino) != (device, inode) {
            return Err(io::Error::other("what is in it was moved meanwhile"));
        }
        rustix::fs::seek(&folder, SeekFrom::Start(position))?;
        self.folder = Some(folder);
        Ok(())
    }
}

/// Returns the type of a name. `None` if it is gone.
fn kind(folder: &OwnedFd, name: &OsStr, told: FileType) -> io::Result<Option<FileType>> {
    if told != FileType::Unknown {
        return Ok(Some(told));
    }
    match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    /// Returns the links that a walk visits, and its result.
    fn links(top: &Path, shut: Shut, mut at: impl FnMut(&Path)) -> (BTreeSet<PathBuf>, io::Result<()>) {
        let mut links = BTreeSet::new();
        let top = fs::File::open(top).unwrap();
        let done = Walk { most: usize::MAX, leaves: &|_| false, shut }.visit(top.as_fd(), &mut |found| {
            if found.kind == FileType::Symlink {
                assert!(links.insert(found.path()), "twice: {}", found.path().display());
                at(&found.path());
            }
            Ok(ControlFlow::Continue(()))
        });
        (links, done)
    }

    /// Makes nested folders, some with further folders, and a link in each.
    fn nested(depth: usize) -> (tempfile::TempDir, BTreeSet<PathBuf>) {
        let folder = tempfile::tempdir().unwrap();
        let mut at = fs::File::open(folder.path()).unwrap();
        let mut within = PathBuf::new();
        let mut made = BTreeSet::new();
        let make = |at: &fs::File, name: &str| -> fs::File {
            rustix::fs::mkdirat(at, name, Mode::RWXU).unwrap();
            rustix::fs::openat(at, name, OFlags::RDONLY, Mode::empty()).unwrap().into()
        };
        for level in 0..depth {
            at = make(&at, "d");
            within.push("d");
            // More than one read returns, and more than may be open.
            let beside = if level == 100 { 1_200 } else { usize::from(level % 50 == 49) };
            for number in 0..beside {
                let name = format!("{number:03}");
                rustix::fs::symlinkat("x", make(&at, &name), "l").unwrap();
                made.insert(within.join(name).join("l"));
            }
        }
        (folder, made)
    }

    #[test]
    fn however_deep_every_name_that_has_a_path_is_visited_once_and_few_folders_are_open() {
        let (folder, made) = nested(1_800);
        let mut most = 0;
        let (found, done) = links(folder.path(), Shut::Refuse, |path| {
            if path.components().count() > 1_700 && most == 0 {
                most = fs::read_dir("/proc/self/fd").unwrap().count();
            }
        });
        done.unwrap();
        assert_eq!(found, made);
        assert!((1..4 * KEPT).contains(&most), "{most} are open");
        // No path reaches deeper folders.
        let mut at = fs::File::open(folder.path().join("d/".repeat(1_800))).unwrap();
        for _ in 0..300 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = rustix::fs::openat(&at, "d", OFlags::RDONLY, Mode::empty()).unwrap().into();
        }
        rustix::fs::symlinkat("x", &at, "l").unwrap();
        assert_eq!(links(folder.path(), Shut::Open, |_| ()).0, made);
    }

    #[test]
    fn a_folder_that_is_moved_meanwhile_keeps_nobody_from_the_others() {
        let (folder, made) = nested(150);
        let (from, to) = (folder.path().join("d/".repeat(120)), folder.path().join("moved"));
        let mut is_moved = false;
        let (found, done) = links(folder.path(), Shut::Open, |path| {
            if path.components().count() > 130 && !is_moved {
                fs::rename(&from, &to).unwrap();
                is_moved = true;
            }
        });
        let why = done.unwrap_err().to_string();
        assert!(is_moved && why.contains("was moved meanwhile"), "{why}");
        // All levels above are visited; before a run the walk is refused.
        let is_above = |path: &&PathBuf| path.components().count() < KEPT;
        assert!(made.iter().filter(is_above).all(|path| found.contains(path)));
        fs::rename(&to, &from).unwrap();
        let done = links(folder.path(), Shut::Refuse, |path| {
            if path.components().count() > 130 && from.exists() {
                fs::rename(&from, &to).unwrap();
            }
        });
        assert!(done.1.is_err());
    }
}
