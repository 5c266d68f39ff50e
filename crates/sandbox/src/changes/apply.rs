//! Applies changes to the workspace: checks them as a whole, then applies them file by file, each atomically.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Bound;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, SeekFrom as Offset};
use rustix::io::Errno;

use super::side::{file_name, open_file, open_parent, stat};
use super::since::Linked;
use super::staged::{self, StagedFile};
use super::walk::{Change, What};
use super::{Changes, LeftOut, access, mode};
use crate::open_file::{is_empty, is_own};
use crate::source;

/// The result of an apply.
#[derive(Debug, Default)]
pub struct Applied {
    /// The paths that were applied.
    pub done: Vec<PathBuf>,
    /// The changes that were not, with reasons.
    pub left_out: Vec<LeftOut>,
}

const FILE: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;

impl Changes {
    /// Returns the conflicts of the changes at or below the named paths; of all changes if no path is named.
    #[must_use]
    pub fn conflicts(&self, only: &[PathBuf]) -> Vec<&Change> {
        self.list.iter().filter(|change| change.conflict.is_some() && chosen(change, only)).collect()
    }

    /// Applies the changes at or below the named paths; all changes if no path is named. Applies a path that this machine would execute or
    /// trust only if that path itself is named.
    ///
    /// # Errors
    /// When a change cannot be written. Those applied before stay applied, and are no changes any more.
    pub fn apply(&self, only: &[PathBuf]) -> Result<Applied, (PathBuf, io::Error)> {
        let mut applied = Applied { left_out: self.left_out.clone(), ..Applied::default() };
        let mut order: Vec<&Change> = Vec::new();
        for change in self.list.iter().filter(|change| chosen(change, only)) {
            if change.protected && !only.contains(&change.path) {
                let why = "this machine would execute or trust it; `--path PATH` takes it over by its name";
                applied.left_out.push(LeftOut { path: change.path.clone(), why });
            } else {
                order.push(change);
            }
        }
        applied.left_out.extend(leave_folders(&mut order, &applied.left_out));
        // Removals first, deepest paths first; then additions, topmost paths first.
        let gone = order.iter().rev().filter(|change| matches!(change.what, What::Gone { .. }));
        let other = order.iter().filter(|change| !matches!(change.what, What::Gone { .. }));
        for change in gone.chain(other) {
            self.take(change).map_err(|error| (change.path.clone(), error))?;
            applied.done.push(change.path.clone());
        }
        Ok(applied)
    }

    fn take(&self, change: &Change) -> io::Result<()> {
        let path = &change.path;
        match change.what {
            What::Gone { mode } => self.remove(path, mode),
            What::Made { mode } if kind(mode) == DIRECTORY => self.make_directory(path, mode),
            What::Made { mode } => self.replace(path, mode, None),
            What::Changed { from, to } => self.replace(path, to, Some(from)),
        }
    }

    /// Returns the file at a path if it has several names. Refuses one that changed since it was read.
    fn refuse_changed(&self, parent: &OwnedFd, path: &Path) -> io::Result<Option<Linked>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let there = match rustix::fs::openat(parent, file_name(path), flags, Mode::empty()) {
            Ok(there) => there,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let now = rustix::fs::fstat(&there)?;
        if kind(now.st_mode) == DIRECTORY {
            return Ok(None);
        }
        if self.since.is_past(&now) {
            return Err(io::Error::other("it was changed in the workspace meanwhile"));
        }
        Ok((now.st_nlink > 1).then_some(Linked { file: there, before: now }))
    }

    fn remove(&self, path: &Path, mode: u32) -> io::Result<()> {
        let parent = open_parent(self.below.as_fd(), path)?;
        let before = rustix::fs::fstat(&parent)?;
        let flags = if kind(mode) == DIRECTORY { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let linked = if kind(mode) == DIRECTORY { None } else { self.refuse_changed(&parent, path)? };
        match rustix::fs::unlinkat(&parent, file_name(path), flags) {
            Ok(()) => {
                linked.into_iter().for_each(|linked| self.since.note_own(linked));
                self.since.note_own_in(&parent, &before);
                Ok(())
            }
            // A directory stays if something in it was left out, or was made meanwhile.
            Err(Errno::NOENT | Errno::NOTEMPTY) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn make_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        let parent = self.parent(path)?;
        let before = rustix::fs::fstat(&parent)?;
        match rustix::fs::mkdirat(&parent, file_name(path), mode::of_new_directory(mode)) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&parent, file_name(path), flags, Mode::empty())?;
        // Another process may have put its own there meanwhile, whose owner must not change.
        if !is_own(&made)? || !is_empty(&made) {
            return Err(staged::replaced());
        }
        self.give(&made)?;
        self.since.note_made(&made);
        self.since.note_own_in(&parent, &before);
        Ok(())
    }

    /// Writes the new file or link beside its place, and renames it. A file that replaces another gets that one's mode, group and ACL.
    fn replace(&self, path: &Path, mode: u32, from: Option<u32>) -> io::Result<()> {
        let parent = self.parent(path)?;
        let before = rustix::fs::fstat(&parent)?;
        let beside = if kind(mode) == FILE {
            self.copy(path, mode, from, &parent)?
        } else {
            self.copy_link(path, &parent)?
        };
        let linked = self.refuse_changed(&parent, path)?;
        beside.place(file_name(path))?;
        linked.into_iter().for_each(|linked| self.since.note_own(linked));
        self.since.note_own_in(&parent, &before);
        Ok(())
    }

    fn copy<'a>(
        &self,
        path: &Path,
        mode: u32,
        from: Option<u32>,
        parent: &'a OwnedFd,
    ) -> io::Result<StagedFile<'a>> {
        let content = self.read_above(path)?;
        // The umask applies to a new file. A replaced file keeps the mode that its owner gave it.
        let at_first = if from.is_some() { Mode::RUSR | Mode::WUSR } else { mode::of_new_file(mode) };
        let (beside, to) = StagedFile::file(parent, at_first)?;
        copy_content(&content, &to)?;
        self.give(&to)?;
        if let Some(from) = from {
            let mode = mode::of_changed(from, mode);
            let keeps_group = access::keep(&open_file(self.below.as_fd(), path)?, &to);
            rustix::fs::fchmod(&to, if keeps_group { mode } else { mode - Mode::RWXG })?;
        }
        to.sync_all()?;
        Ok(beside)
    }

    fn copy_link<'a>(&self, path: &Path, parent: &'a OwnedFd) -> io::Result<StagedFile<'a>> {
        let above = open_parent(self.above.as_fd(), path)?;
        let target = rustix::fs::readlinkat(&above, file_name(path), Vec::new())?;
        let beside = StagedFile::link(parent, &target)?;
        if let Some((uid, gid)) = self.owner()? {
            rustix::fs::chownat(beside.made(), "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
        }
        Ok(beside)
    }

    /// Opens the directory of a path in the workspace, and makes it if it is new.
    fn parent(&self, path: &Path) -> io::Result<OwnedFd> {
        match open_parent(self.below.as_fd(), path) {
            Err(Errno::NOENT) => {
                let above = path.parent().unwrap_or(Path::new(""));
                let mode = stat(self.above.as_fd(), above)?.map_or(0o755, |stat| stat.st_mode);
                self.make_directory(above, mode)?;
                Ok(open_parent(self.below.as_fd(), path)?)
            }
            opened => Ok(opened?),
        }
    }

    /// Returns the workspace's owner if root applies the changes.
    fn owner(&self) -> io::Result<Option<(rustix::fs::Uid, rustix::fs::Gid)>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let (uid, gid) = source::owner(self.below.as_fd())?;
        Ok(Some((rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid))))
    }

    fn give(&self, made: impl AsFd) -> io::Result<()> {
        if let Some((uid, gid)) = self.owner()? {
            rustix::fs::fchown(made, Some(uid), Some(gid))?;
        }
        Ok(())
    }
}

/// Copies a file's content and keeps its holes: otherwise a sparse file of a few octets could fill the disk.
fn copy_content(mut from: &File, mut to: &File) -> io::Result<()> {
    let length = from.metadata()?.len();
    let mut at = 0;
    while at < length {
        at = match rustix::fs::seek(from, Offset::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break, // only a hole is left
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(from, Offset::Hole(at))?;
        from.seek(SeekFrom::Start(at))?;
        to.seek(SeekFrom::Start(at))?;
        let copied = io::copy(&mut from.take(end - at), &mut to)?;
        if copied == 0 {
            break; // the file was truncated meanwhile
        }
        at += copied;
    }
    to.set_len(length)
}

/// Takes out of the order what is to stand where a folder is that stays, because something below it is left out; and the removals below
/// it, which belong to that.
fn leave_folders(order: &mut Vec<&Change>, left_out: &[LeftOut]) -> Vec<LeftOut> {
    let left: BTreeSet<&Path> = left_out.iter().map(|it| it.path.as_path()).collect();
    let has_left_below = |path: &Path| {
        left.range::<Path, _>((Bound::Excluded(path), Bound::Unbounded))
            .next()
            .is_some_and(|it| it.starts_with(path))
    };
    let instead = |change: &&&Change| matches!(change.what, What::Made { mode } if kind(mode) != DIRECTORY);
    let stay: BTreeSet<&Path> = order
        .iter()
        .filter(instead)
        .map(|it| it.path.as_path())
        .filter(|path| has_left_below(path))
        .collect();
    let is_of_one = |change: &&Change| change.path.ancestors().any(|path| stay.contains(path));
    let why = "the folder there stays, with something in it that is left out";
    order
        .extract_if(.., |change| is_of_one(change))
        .map(|it| LeftOut { path: it.path.clone(), why })
        .collect()
}

fn chosen(change: &Change, only: &[PathBuf]) -> bool {
    only.is_empty() || only.iter().any(|path| change.path.starts_with(path))
}

fn kind(mode: u32) -> u32 {
    mode & 0o170_000
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};

    use super::*;
    use crate::changes::kept::Kept;

    fn write(path: &Path, content: &str, mode: u32) {
        std::fs::write(path, content).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn mode_of(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn nobody_else_may_read_or_write_more_than_before() {
        let kept = Kept::new();
        for (name, mode) in [("key", 0o600), ("tool", 0o640), ("same", 0o600)] {
            write(&kept.workspace(name), "before", mode);
        }
        for (name, content, mode) in [
            ("key", "after", 0o666),
            ("tool", "before", 0o777),
            ("same", "before", 0o666),
            ("new", "after", 0o666),
            ("run", "after", 0o777),
        ] {
            write(&kept.written(name), content, mode);
        }
        std::fs::create_dir(kept.written("folder")).unwrap();
        std::fs::set_permissions(kept.written("folder"), std::fs::Permissions::from_mode(0o777)).unwrap();
        let changes = kept.changes();
        assert!(!changes.list.iter().any(|change| change.path == Path::new("same")), "{:?}", changes.list);
        assert!(changes.apply(&[]).unwrap().left_out.is_empty());
        let probe = kept.path().join("probe");
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o777).open(&probe).unwrap();
        let masked = |mode| mode & mode_of(&probe);
        for (name, expected) in [
            ("key", 0o600),
            ("tool", 0o750),
            ("same", 0o600),
            ("new", masked(0o644)),
            ("run", masked(0o755)),
            ("folder", masked(0o755)),
        ] {
            assert_eq!(mode_of(&kept.workspace(name)), expected, "{name}");
        }
    }

    #[test]
    fn names_of_one_file_are_taken_over_one_after_the_other() {
        let kept = Kept::new();
        for (first, second) in [("x", "y"), ("a", "b"), ("m", "n"), ("o", "p")] {
            write(&kept.workspace(first), "one", 0o644);
            std::fs::hard_link(kept.workspace(first), kept.workspace(second)).unwrap();
        }
        let whiteout = |name: &str| {
            let kind = rustix::fs::FileType::CharacterDevice;
            rustix::fs::mknodat(rustix::fs::CWD, kept.written(name), kind, Mode::empty(), 0)
        };
        for name in ["x", "y", "m", "n", "o", "p"] {
            write(&kept.written(name), "new", 0o644);
        }
        // Only root can make whiteouts by hand.
        let removes = whiteout("a").is_ok() && whiteout("b").is_ok();
        begin_now(&kept);
        let (directory, workspace) = (kept.path().join("kept"), kept.workspace(""));
        let read = || Changes::read(&directory, &workspace).unwrap();
        // Whether applied together or one by one, the file's other name is no conflict.
        assert!(read().conflicts(&[]).is_empty(), "{:?}", read().list);
        read().apply(&["x".into(), "a".into(), "y".into()]).unwrap();
        read().apply(&["m".into()]).unwrap();
        std::fs::write(kept.workspace("p"), "theirs").unwrap();
        let conflicts: Vec<_> = read().conflicts(&[]).iter().map(|it| it.path.clone()).collect();
        assert_eq!(conflicts, [PathBuf::from("o"), PathBuf::from("p")]);
        read().apply(&["n".into(), "b".into()]).unwrap();
        for name in ["x", "y", "m", "n"] {
            assert_eq!(std::fs::read_to_string(kept.workspace(name)).unwrap(), "new", "{name}");
        }
        assert!(!removes || !kept.workspace("a").exists() && !kept.workspace("b").exists());
    }

    /// Marks a file as one that overlayfs has copied up.
    fn copied_up(path: &Path) {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(path, c"user.overlay.origin", b"x", flags).unwrap();
    }

    /// Begins the run now, after the workspace's files were made.
    fn begin_now(kept: &Kept) {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let directory = kept.path().join("kept");
        std::fs::remove_file(directory.join("since")).unwrap();
        Changes::prepare(&directory, &kept.workspace("")).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }

    #[test]
    fn our_own_changes_in_a_folder_are_no_conflict_for_what_was_renamed_there() {
        let kept = Kept::new();
        std::fs::create_dir(kept.workspace("d")).unwrap();
        begin_now(&kept);
        std::fs::create_dir_all(kept.written("d")).unwrap();
        std::fs::create_dir_all(kept.written("new")).unwrap();
        for name in ["d/renamed", "d/plain", "new/renamed", "new/plain"] {
            write(&kept.written(name), "it", 0o644);
        }
        copied_up(&kept.written("d/renamed"));
        copied_up(&kept.written("new/renamed"));
        let read = || Changes::read(&kept.path().join("kept"), &kept.workspace("")).unwrap();
        for name in ["d/plain", "new/plain"] {
            read().apply(&[name.into()]).unwrap();
        }
        assert!(read().conflicts(&[]).is_empty(), "{:?}", read().list);
        // Somebody else's change is one.
        std::thread::sleep(std::time::Duration::from_millis(20));
        write(&kept.workspace("d/theirs"), "theirs", 0o644);
        let conflicts: Vec<_> = read().conflicts(&[]).iter().map(|it| it.path.clone()).collect();
        assert_eq!(conflicts, [PathBuf::from("d/renamed")]);
    }

    #[test]
    fn what_was_changed_in_a_folder_that_is_gone_is_a_conflict() {
        let kept = Kept::new();
        for folder in ["gone", "new"] {
            std::fs::create_dir(kept.written(folder)).unwrap();
            write(&kept.written(&format!("{folder}/x")), "it", 0o644);
            copied_up(&kept.written(&format!("{folder}/x")));
        }
        // The run has made the other one, and moved a file into it.
        copied_up(&kept.written("gone"));
        let conflicts: Vec<_> = kept.changes().conflicts(&[]).iter().map(|it| it.path.clone()).collect();
        assert_eq!(conflicts, [PathBuf::from("gone/x")]);
    }

    /// Returns the paths of the conflicts of what is kept now.
    fn conflicts(kept: &Kept) -> Vec<String> {
        let changes = Changes::read(&kept.path().join("kept"), &kept.workspace("")).unwrap();
        let conflicts = changes.conflicts(&[]);
        conflicts.iter().map(|change| change.path.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn what_somebody_moved_to_where_the_run_removed_is_a_conflict() {
        let kept = Kept::new();
        for path in ["dist/old", "library/deep/mine", "tidy/old", ".git/index"] {
            std::fs::create_dir_all(kept.workspace(path).parent().unwrap()).unwrap();
            write(&kept.workspace(path), "mine", 0o644);
        }
        begin_now(&kept);
        // The run has removed these and made the first ones anew, one of which was not there.
        for folder in ["dist", "fresh", "tidy", ".git"] {
            std::fs::create_dir(kept.written(folder)).unwrap();
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(kept.written(folder), c"user.overlay.opaque", b"y", flags).unwrap();
        }
        assert!(conflicts(&kept).is_empty());
        std::fs::rename(kept.workspace("library/deep"), kept.workspace("dist/deep")).unwrap();
        std::fs::rename(kept.workspace("library"), kept.workspace("fresh")).unwrap();
        // As git does on mere reads.
        write(&kept.workspace(".git/lock"), "", 0o644);
        std::fs::remove_file(kept.workspace(".git/lock")).unwrap();
        assert_eq!(conflicts(&kept), ["dist/deep", "dist/deep/mine", "dist/old"]);
        std::fs::rename(kept.workspace("dist/deep"), kept.workspace("fresh/deep")).unwrap();
        assert_eq!(conflicts(&kept), ["dist/old", "fresh/deep", "fresh/deep/mine"]);
        let changes = Changes::read(&kept.path().join("kept"), &kept.workspace("")).unwrap();
        assert_eq!(changes.conflicts(&["fresh/deep/mine".into()]).len(), 1);
        assert!(changes.conflicts(&["tidy".into()]).is_empty());
    }

    #[test]
    fn a_folder_that_somebody_exchanged_is_a_conflict() {
        let kept = Kept::new();
        for path in ["src/code", "next/code", "touched/code", "around/shut/code"] {
            std::fs::create_dir_all(kept.workspace(path).parent().unwrap()).unwrap();
            write(&kept.workspace(path), "mine", 0o644);
        }
        begin_now(&kept);
        for path in ["src/code", "touched/code", "touched/new", "around/shut/code"] {
            std::fs::create_dir_all(kept.written(path).parent().unwrap()).unwrap();
            write(&kept.written(path), "the run's", 0o644);
        }
        write(&kept.workspace("touched/beside"), "mine", 0o644);
        // Nothing was moved where the folder around is as it was.
        std::fs::set_permissions(kept.workspace("around/shut"), std::fs::Permissions::from_mode(0o700))
            .unwrap();
        assert!(conflicts(&kept).is_empty());
        std::fs::rename(kept.workspace("src"), kept.workspace("src.v1")).unwrap();
        std::fs::rename(kept.workspace("next"), kept.workspace("src")).unwrap();
        assert_eq!(conflicts(&kept), ["src/code"]);
    }

    #[test]
    fn what_was_written_in_another_workspace_is_no_change_of_this_one() {
        let kept = Kept::new();
        write(&kept.workspace("code"), "mine", 0o644);
        std::fs::create_dir(kept.path().join("other")).unwrap();
        write(&kept.path().join("other/code"), "another's", 0o644);
        begin_now(&kept);
        for name in ["code", "new"] {
            write(&kept.written(name), "the run's", 0o644);
        }
        assert!(conflicts(&kept).is_empty());
        std::fs::rename(kept.workspace(""), kept.path().join("was")).unwrap();
        std::fs::rename(kept.path().join("other"), kept.workspace("")).unwrap();
        assert_eq!(conflicts(&kept), ["code", "new"]);
        // What an older version kept does not tell.
        std::fs::write(kept.path().join("kept/since"), "").unwrap();
        assert!(conflicts(&kept).is_empty());
    }

    #[test]
    fn a_folder_of_which_something_is_left_out_stays_as_it_is() {
        let kept = Kept::new();
        std::fs::create_dir_all(kept.workspace("sub/.git")).unwrap();
        write(&kept.workspace("sub/.git/config"), "mine", 0o644);
        write(&kept.workspace("sub/code"), "mine", 0o644);
        for name in ["aa", "sub", "zz"] {
            write(&kept.written(name), "new", 0o644);
        }
        let applied = kept.changes().apply(&[]).unwrap();
        assert_eq!(applied.done, ["aa", "zz"].map(PathBuf::from), "{applied:?}");
        assert!(applied.left_out.iter().any(|it| it.path == Path::new("sub")), "{applied:?}");
        assert_eq!(std::fs::read_to_string(kept.workspace("sub/code")).unwrap(), "mine");
    }

    #[test]
    fn who_may_read_a_file_beside_its_owner_stays() {
        let kept = Kept::new();
        write(&kept.workspace("key"), "before", 0o640);
        write(&kept.written("key"), "after", 0o640);
        write(&kept.workspace("listed"), "before", 0o640);
        write(&kept.written("listed"), "after", 0o640);
        // acl(5), version 2: the owner, a user, the group, the mask, and the others.
        let entries = [(1, 6, u32::MAX), (2, 6, 2), (4, 0, u32::MAX), (16, 6, u32::MAX), (32, 0, u32::MAX)];
        let mut list = 2u32.to_le_bytes().to_vec();
        for (tag, rights, id) in entries {
            list.extend([u16::to_le_bytes(tag), u16::to_le_bytes(rights)].concat());
            list.extend(u32::to_le_bytes(id));
        }
        const ACL: &str = "system.posix_acl_access";
        let flags = rustix::fs::XattrFlags::empty();
        let has_lists = rustix::fs::setxattr(kept.workspace("listed"), ACL, &list, flags).is_ok();
        // Only root gives a file to another group.
        let group =
            std::os::unix::fs::chown(kept.workspace("key"), None, Some(60)).map_or(None, |()| Some(60));
        kept.changes().apply(&[]).unwrap();
        let key = std::fs::metadata(kept.workspace("key")).unwrap();
        assert!(group.is_none_or(|group| key.gid() == group) && key.mode() & 0o777 == 0o640, "{key:?}");
        if has_lists {
            let mut there = vec![0; 256];
            let length = rustix::fs::getxattr(kept.workspace("listed"), ACL, &mut there).unwrap();
            assert_eq!(there[..length], list);
            assert_eq!(mode_of(&kept.workspace("listed")), 0o660);
        }
    }

    #[test]
    fn what_holds_nothing_is_not_filled() {
        let kept = Kept::new();
        let sparse = std::fs::File::create(kept.written("sparse")).unwrap();
        sparse.write_all_at(b"begins", 0).unwrap();
        sparse.write_all_at(b"in it", 40 << 20).unwrap();
        sparse.set_len(1 << 30).unwrap();
        write(&kept.written("plain"), &"words ".repeat(50_000), 0o644);
        write(&kept.written("empty"), "", 0o644);
        std::fs::File::create(kept.written("hole")).unwrap().set_len(1 << 20).unwrap();
        assert_eq!(kept.changes().apply(&[]).unwrap().done.len(), 4);
        let copy = std::fs::File::open(kept.workspace("sparse")).unwrap();
        let meta = copy.metadata().unwrap();
        assert!(meta.len() == 1 << 30 && meta.blocks() * 512 < 1 << 20, "{} blocks", meta.blocks());
        let mut octets = [0; 5];
        copy.read_exact_at(&mut octets, 40 << 20).unwrap();
        assert_eq!(&octets, b"in it");
        assert_eq!(std::fs::read(kept.workspace("plain")).unwrap(), "words ".repeat(50_000).as_bytes());
        assert_eq!(std::fs::metadata(kept.workspace("empty")).unwrap().len(), 0);
        assert_eq!(std::fs::read(kept.workspace("hole")).unwrap(), vec![0; 1 << 20]);
    }

    #[test]
    fn what_stands_beside_is_nobody_elses() {
        let kept = Kept::new();
        write(&kept.workspace(".lockgate-apply"), "mine", 0o644);
        std::fs::create_dir_all(kept.workspace("blocked/.lockgate-apply")).unwrap();
        std::fs::create_dir(kept.written("blocked")).unwrap();
        for name in ["new", "blocked/new"] {
            write(&kept.written(name), "content", 0o644);
        }
        std::os::unix::fs::symlink("new", kept.written("blocked/link")).unwrap();
        kept.changes().apply(&[]).unwrap();
        assert_eq!(std::fs::read_to_string(kept.workspace(".lockgate-apply")).unwrap(), "mine");
        let names = |path: &str| {
            let mut names: Vec<_> = std::fs::read_dir(kept.workspace(path))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(""), [".lockgate-apply", "blocked", "new"]);
        assert_eq!(names("blocked"), [".lockgate-apply", "link", "new"]);
        // A staged file that cannot take its place is removed.
        std::fs::remove_file(kept.workspace("new")).unwrap();
        write(&kept.written("over"), "content", 0o644);
        let changes = kept.changes();
        std::fs::create_dir(kept.workspace("over")).unwrap();
        assert!(changes.apply(&[]).is_err());
        assert_eq!(names(""), [".lockgate-apply", "blocked", "new", "over"]);
    }
}
