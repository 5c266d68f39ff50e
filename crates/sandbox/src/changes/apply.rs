//! Applies changes to the workspace: checks them as a whole, then applies them file by file, each atomically.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::change::{Change, What};
use super::order::Order;
use super::possible::leave_impossible;
use super::side::{file_name, open, open_file, open_parent, stat};
use super::since::Linked;
use super::staged::{self, StagedFile};
use super::{Changes, LeftOut, access, mode};
use crate::file_copy::{copy_content, keep_times};
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

impl Changes {
    /// Returns the conflicts of the changes at or below the named paths; of all changes if no path is named.
    #[must_use]
    pub fn conflicts(&self, only: &[PathBuf]) -> Vec<&Change> {
        self.list.iter().filter(|change| change.conflict.is_some() && change.is_chosen(only)).collect()
    }

    /// Applies the changes at or below the named paths; all changes if no path is named. Applies a path that this machine would execute or
    /// trust only if it is named, or such a folder around it is. Asks `is_ended` again and again whether to end early.
    ///
    /// # Errors
    /// When a change cannot be written, or it was asked to end, which is `Interrupted`. Those applied before stay applied, and are no
    /// changes any more.
    pub fn apply(
        &self,
        only: &[PathBuf],
        is_ended: &dyn Fn() -> bool,
    ) -> Result<Applied, (PathBuf, io::Error)> {
        let mut applied = Applied { left_out: self.left_out.clone(), ..Applied::default() };
        let mut order: Vec<&Change> = Vec::new();
        for change in self.list.iter().filter(|change| change.is_chosen(only)) {
            if change.is_withheld(only) {
                let why = "this machine would execute or trust it; `--path PATH` takes it over by its name";
                applied.left_out.push(LeftOut { path: change.path.clone(), why });
            } else {
                order.push(change);
            }
        }
        leave_impossible(&mut order, &mut applied.left_out, self.below.as_fd());
        let order = Order::of(order, |path| self.written(path));
        self.resume(&order.changes);
        let done = order.changes.iter().try_for_each(|change| {
            self.take(change, &order, is_ended).map_err(|error| (change.path.clone(), error))?;
            applied.done.push(change.path.clone());
            Ok(())
        });
        self.since.end();
        done.map(|()| applied)
    }

    /// Goes on where an apply was killed, and removes the staged file that it left.
    fn resume(&self, order: &[&Change]) {
        let around: BTreeSet<&Path> = order.iter().flat_map(|change| change.path.ancestors()).collect();
        for path in around {
            if let Ok(directory) = open(self.below.as_fd(), path, OFlags::PATH | OFlags::DIRECTORY) {
                self.since.resume_in(&directory);
                if let Some(left) = self.since.last_staged() {
                    staged::remove(&directory, &self.since, left);
                }
            }
        }
    }

    /// Returns when the run wrote a file.
    fn written(&self, path: &Path) -> Option<(i64, u64)> {
        let above = stat(self.above.as_fd(), path).ok()??;
        Some((above.st_mtime, above.st_mtime_nsec))
    }

    fn take(&self, change: &Change, order: &Order<'_>, is_ended: &dyn Fn() -> bool) -> io::Result<()> {
        if is_ended() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let path = &change.path;
        match change.what {
            What::Gone { mode } => self.remove(path, mode),
            What::Made { mode } if mode::is_directory(mode) => self.make_directory(path, mode),
            What::Made { mode } => self.replace(path, mode, None, order, is_ended),
            What::Changed { from, to } => self.replace(path, to, Some(from), order, is_ended),
        }
    }

    /// Returns the file at a path, which is to be taken away there, if it has several names. Refuses one that changed since it was read.
    fn refuse_changed(&self, parent: &OwnedFd, path: &Path) -> io::Result<Option<Linked>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let there = match rustix::fs::openat(parent, file_name(path), flags, Mode::empty()) {
            Ok(there) => there,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let now = rustix::fs::fstat(&there)?;
        if mode::is_directory(now.st_mode) {
            return Ok(None);
        }
        if self.since.is_past(&now) {
            return Err(io::Error::other("it was changed in the workspace meanwhile"));
        }
        let linked = (now.st_nlink > 1).then_some(Linked { file: there, before: now });
        linked.iter().for_each(|linked| self.since.begin_with(linked));
        Ok(linked)
    }

    fn remove(&self, path: &Path, mode: u32) -> io::Result<()> {
        let parent = open_parent(self.below.as_fd(), path)?;
        let flags = if mode::is_directory(mode) { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let linked = if mode::is_directory(mode) { None } else { self.refuse_changed(&parent, path)? };
        match self.since.change_in(&parent, || rustix::fs::unlinkat(&parent, file_name(path), flags)) {
            Ok(()) => {
                linked.into_iter().for_each(|linked| self.since.note_own(linked));
                Ok(())
            }
            // A directory stays if something in it was left out, or was made meanwhile.
            Err(Errno::NOENT | Errno::NOTEMPTY) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn make_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        let parent = self.parent(path)?;
        let make = || rustix::fs::mkdirat(&parent, file_name(path), mode::of_new_directory(mode));
        match self.since.change_in(&parent, make) {
            Ok(()) => {}
            Err(Errno::EXIST) if is_directory(&parent, file_name(path))? => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&parent, file_name(path), flags, Mode::empty())?;
        // Another process may have put its own there meanwhile, whose owner must not change.
        if !is_own(&made)? || !is_empty(&made)? {
            return Err(staged::replaced());
        }
        self.give(&made)?;
        self.since.note_made(&rustix::fs::fstat(&made)?);
        Ok(())
    }

    /// Writes the new file or link beside its place, and renames it. A file that replaces another gets that one's mode, group and ACL.
    fn replace(
        &self,
        path: &Path,
        mode: u32,
        from: Option<u32>,
        order: &Order<'_>,
        is_ended: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        let parent = self.parent(path)?;
        let beside = if FileType::from_raw_mode(mode).is_file() {
            self.copy(path, mode, from, &parent, is_ended)?
        } else {
            self.copy_link(path, &parent)?
        };
        let linked = self.refuse_changed(&parent, path)?;
        if let Some(time) = order.time(path) {
            let _ = beside.made().set_modified(time); // a link has none of its own, and a file system may keep none
        }
        beside.place(file_name(path))?;
        linked.into_iter().for_each(|linked| self.since.note_own(linked));
        Ok(())
    }

    fn copy<'a>(
        &'a self,
        path: &Path,
        mode: u32,
        from: Option<u32>,
        parent: &'a OwnedFd,
        is_ended: &dyn Fn() -> bool,
    ) -> io::Result<StagedFile<'a>> {
        let content = self.read_above(path)?;
        let as_it_was = content.metadata()?;
        // The umask applies to a new file. A replaced file keeps the mode that its owner gave it.
        let at_first = if from.is_some() { Mode::RUSR | Mode::WUSR } else { mode::of_new_file(mode) };
        let beside = StagedFile::file(parent, at_first, &self.since)?;
        let to = beside.made();
        copy_content(&content, &as_it_was, to, is_ended)?;
        self.give(to)?;
        if let Some(from) = from {
            let mode = mode::of_changed(from, mode);
            let old = open_file(self.below.as_fd(), path)?;
            access::keep_attributes(&old, to)?;
            let keeps_group = access::keep(&old, to);
            rustix::fs::fchmod(to, if keeps_group { mode } else { mode - Mode::RWXG })?;
        } else {
            keep_times(to, &as_it_was);
        }
        to.sync_all()?;
        Ok(beside)
    }

    fn copy_link<'a>(&'a self, path: &Path, parent: &'a OwnedFd) -> io::Result<StagedFile<'a>> {
        let above = open_parent(self.above.as_fd(), path)?;
        let target = rustix::fs::readlinkat(&above, file_name(path), Vec::new())?;
        let beside = StagedFile::link(parent, &target, &self.since)?;
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

fn is_directory(parent: &OwnedFd, name: &OsStr) -> io::Result<bool> {
    Ok(mode::is_directory(rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::changes::fixture::{Kept, copied_up, made_anew, write};
    use crate::changes::since::{Staged, id};

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
        assert!(changes.apply(&[], &|| false).unwrap().left_out.is_empty());
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
    fn what_is_new_keeps_its_time_and_what_takes_a_place_is_later_than_what_was_built_meanwhile() {
        let kept = Kept::new();
        for path in ["changed", "first"] {
            write(&kept.workspace(path), "before", 0o644);
        }
        for link in ["link", "linked"] {
            symlink("changed", kept.workspace(link)).unwrap();
        }
        for folder in ["new", "linked"] {
            std::fs::create_dir(kept.written(folder)).unwrap();
        }
        let mut written = SystemTime::UNIX_EPOCH + Duration::new(1 << 30, 5);
        for path in ["new/file", "first", "changed", "link", "linked/file"] {
            write(&kept.written(path), "the run's", 0o644);
            File::open(kept.written(path)).unwrap().set_modified(written).unwrap();
            written += Duration::from_nanos(5);
        }
        let built = std::cell::Cell::new(SystemTime::now());
        let builds = || {
            built.set(SystemTime::now());
            false
        };
        kept.changes().apply(&[], &builds).unwrap();
        let modified = |path: &str| kept.workspace(path).metadata().unwrap().modified().unwrap();
        let run = kept.written("new/file").metadata().unwrap().modified().unwrap();
        assert_eq!(modified("new/file"), run);
        let times = ["first", "changed", "link", "linked/file"].map(modified);
        assert!(times.is_sorted_by(|a, b| a < b), "the order of the run stays: {times:?}");
        assert!(built.get() <= times[3], "{times:?}");
    }

    #[test]
    fn an_apply_that_was_killed_anywhere_is_finished_by_the_next() {
        for killed_at in 0.. {
            let kept = Kept::new();
            for path in ["sub/old name", "dist/old", "dist/deep/old", "gone/deep/x", "gone/y", "linked/one"] {
                std::fs::create_dir_all(kept.workspace(path).parent().unwrap()).unwrap();
                write(&kept.workspace(path), path, 0o644);
            }
            std::fs::hard_link(kept.workspace("linked/one"), kept.workspace("linked/other")).unwrap();
            kept.begin_now();
            for (path, is_copied_up) in [
                ("dist/new", false),
                ("gone/z", false),
                ("linked/one", true),
                ("linked/other", true),
                ("made/deep/it", false),
                ("sub/edited", true),
                ("sub/new name", true),
            ] {
                std::fs::create_dir_all(kept.written(path).parent().unwrap()).unwrap();
                write(&kept.written(path), "the run's", 0o644);
                if is_copied_up {
                    copied_up(&kept.written(path));
                }
            }
            for folder in ["dist", "gone", "made"] {
                made_anew(&kept.written(folder));
            }
            assert!(kept.conflicts().is_empty(), "{killed_at}");
            let asked = std::cell::Cell::new(0);
            let changes = kept.read();
            let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                changes.apply(&[], &|| {
                    asked.set(asked.get() + 1);
                    if asked.get() > killed_at { std::panic::resume_unwind(Box::new(())) } else { false }
                })
            }));
            // A killed process leaves its staged file, which it has noted.
            let staged = ".lockgate-apply-0123456789abcdef";
            if !kept.workspace("sub/new name").exists() {
                let sub = File::open(kept.workspace("sub")).unwrap().into();
                let make = || write(&kept.workspace("sub").join(staged), "half", 0o644);
                changes.since.change_in(&sub, make);
                let number = id(&rustix::fs::stat(kept.workspace("sub").join(staged)).unwrap());
                changes.since.note_staged(&Staged { name: staged.into(), number });
            }
            for theirs in [staged, ".lockgate-apply-fedcba9876543210"] {
                write(&kept.workspace("linked").join(theirs), "theirs", 0o644);
            }
            assert!(kept.conflicts().is_empty(), "{killed_at}: {:?}", kept.conflicts());
            kept.read().apply(&[], &|| false).unwrap();
            assert!(kept.read().list.is_empty(), "{killed_at}: {:?}", kept.read().list);
            assert!(!kept.workspace("sub").join(staged).exists(), "{killed_at}");
            assert_eq!(std::fs::read_dir(kept.workspace("linked")).unwrap().count(), 4, "{killed_at}");
            if killed.is_ok() {
                assert!(killed_at > 7, "it was asked too seldom");
                break;
            }
        }
    }

    #[test]
    fn what_was_ended_early_is_applied_by_the_next() {
        let kept = Kept::new();
        std::fs::create_dir(kept.workspace("sub")).unwrap();
        kept.begin_now();
        std::fs::create_dir(kept.written("sub")).unwrap();
        // The second one was moved and written in, so that the time of its folder tells whose it is.
        for name in ["first", "moved"] {
            write(&kept.written(&format!("sub/{name}")), "the run's", 0o644);
        }
        copied_up(&kept.written("sub/moved"));
        let asked = std::cell::Cell::new(0);
        let once_it_is_staged = || asked.replace(asked.get() + 1) == 1;
        let (path, error) = kept.read().apply(&[], &once_it_is_staged).unwrap_err();
        assert!(path == Path::new("sub/first") && error.kind() == io::ErrorKind::Interrupted, "{error}");
        assert_eq!(std::fs::read_dir(kept.workspace("sub")).unwrap().count(), 0);
        assert!(kept.conflicts().is_empty(), "{:?}", kept.conflicts());
        assert_eq!(kept.read().apply(&[], &|| false).unwrap().done.len(), 2);
    }

    #[test]
    fn an_apply_elsewhere_does_not_end_one_that_was_killed() {
        let kept = Kept::new();
        for folder in ["sub", "other"] {
            std::fs::create_dir(kept.workspace(folder)).unwrap();
        }
        kept.begin_now();
        for path in ["sub/made", "sub/moved", "other/made"] {
            std::fs::create_dir_all(kept.written(path).parent().unwrap()).unwrap();
            write(&kept.written(path), "the run's", 0o644);
        }
        copied_up(&kept.written("sub/moved"));
        let asked = std::cell::Cell::new(0);
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            kept.read().apply(&["sub/made".into(), "sub/moved".into()], &|| {
                if asked.replace(asked.get() + 1) > 1 {
                    std::panic::resume_unwind(Box::new(()))
                } else {
                    false
                }
            })
        }));
        assert!(killed.is_err() && kept.workspace("sub/made").exists());
        kept.read().apply(&["other".into()], &|| false).unwrap();
        assert!(kept.conflicts().is_empty(), "{:?}", kept.conflicts());
        assert_eq!(kept.read().apply(&[], &|| false).unwrap().done, [PathBuf::from("sub/moved")]);
        assert!(kept.read().list.is_empty());
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
        let applied = kept.changes().apply(&[], &|| false).unwrap();
        assert_eq!(applied.done, ["aa", "zz"].map(PathBuf::from), "{applied:?}");
        assert!(applied.left_out.iter().any(|it| it.path == Path::new("sub")), "{applied:?}");
        assert_eq!(std::fs::read_to_string(kept.workspace("sub/code")).unwrap(), "mine");
    }

    #[test]
    fn a_folder_does_not_take_the_place_of_a_file_that_somebody_made() {
        let kept = Kept::new();
        std::fs::create_dir(kept.written("new")).unwrap();
        let changes = kept.changes();
        write(&kept.workspace("new"), "mine", 0o644);
        let (path, error) = changes.apply(&[], &|| false).unwrap_err();
        assert!(path == Path::new("new") && error.kind() == io::ErrorKind::AlreadyExists, "{error}");
        assert_eq!(std::fs::read_to_string(kept.workspace("new")).unwrap(), "mine");
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
        kept.changes().apply(&[], &|| false).unwrap();
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
    fn what_programs_noted_on_a_file_stays() {
        let kept = Kept::new();
        write(&kept.workspace("file"), "before", 0o644);
        write(&kept.written("file"), "after", 0o644);
        let set = |path: PathBuf, name: &str, value: &[u8]| {
            rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
        };
        for name in ["user.note", "user.empty", "user.overlay.origin"] {
            set(kept.workspace("file"), name, if name == "user.empty" { b"" } else { b"mine" });
        }
        set(kept.written("file"), "user.theirs", b"x");
        kept.changes().apply(&[], &|| false).unwrap();
        assert_eq!(std::fs::read_to_string(kept.workspace("file")).unwrap(), "after");
        let mut value = [0; 8];
        let length = rustix::fs::getxattr(kept.workspace("file"), c"user.note", &mut value).unwrap();
        assert_eq!(&value[..length], b"mine");
        assert_eq!(rustix::fs::getxattr(kept.workspace("file"), c"user.empty", &mut value), Ok(0));
        for name in ["user.theirs", "user.overlay.origin"] {
            let there = rustix::fs::getxattr(kept.workspace("file"), name, &mut value);
            assert_eq!(there, Err(Errno::NODATA), "{name}");
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
        assert_eq!(kept.changes().apply(&[], &|| false).unwrap().done.len(), 4);
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
        kept.changes().apply(&[], &|| false).unwrap();
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
        assert!(changes.apply(&[], &|| false).is_err());
        assert_eq!(names(""), [".lockgate-apply", "blocked", "new", "over"]);
    }
}
