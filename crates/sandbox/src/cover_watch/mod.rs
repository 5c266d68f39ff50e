//! Watches the covers of protected paths during a run. A cover is a mount on one file or directory. If somebody on this machine replaces,
//! renames or removes that file, as `git config` and many editors do, the kernel drops the cover and the agent can take the name.
//!
//! Nobody inside can do this to a covered name, so any change was made outside. A file may be back at its name when it is looked at, by
//! another name that it had meanwhile; its cover is gone all the same. So the mounts of the sandbox are looked at too, through a descriptor
//! that init sends before it runs anything. At an engine nobody sends one.
//!
//! The kernel tells of changes that this machine makes. Where a file system's server, or another machine, may make some, or files have names
//! that are not listed, the names are also looked at from time to time, by a thread of its own: such a server may be silent, and nobody who waits for a command to end, or for its
//! time to be over, may wait for it.

mod aside;

use std::collections::BTreeSet;
use std::ffi::{CStr, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use sys::notify;
use sys::signal::Signals;

use self::aside::Aside;
use crate::file_system::lists_what_is_found;
use crate::open_file::{is_at, lookup};

/// The covered names of one workspace, with the files that they led to at the start.
#[derive(Debug)]
pub(crate) struct CoverWatch {
    /// Where a look may take long.
    aside: Option<Aside>,
    changes: Signals,
    names: Arc<Names>,
}

/// The names that are looked at.
#[derive(Debug, Default)]
struct Names {
    directories: Vec<OwnedFd>,
    names: Vec<Name>,
    /// The workspace as it is shown, once it is known.
    shown: OnceLock<OwnedFd>,
}

/// One name on the path to something covered.
#[derive(Debug)]
struct Name {
    /// The index of its directory.
    directory: usize,
    name: OsString,
    path: PathBuf,
    /// Kept open: overlayfs gives a file of a lower layer another identity when it is first written to, and no other file gets the inode
    /// number of an open one.
    was: OwnedFd,
    /// Whether its cover may be lost while it leads to the same file. A name above the covered ones has none to lose, and neither does a
    /// directory: it has one name, and the kernel takes its cover off only as it removes it.
    may_be_bare: bool,
}

impl CoverWatch {
    /// Begins to watch the paths of a workspace that exist now. Follows no links.
    pub(crate) fn begin<'a>(
        workspace: BorrowedFd<'_>,
        paths: impl IntoIterator<Item = &'a Path>,
    ) -> io::Result<Self> {
        let changes = notify::changes()?;
        let mut names = Names::default();
        let mut known: Vec<PathBuf> = Vec::new();
        let paths = paths.into_iter().collect::<BTreeSet<_>>();
        for path in &paths {
            let above = path.ancestors().collect::<Vec<_>>();
            for above in above.into_iter().rev().filter(|path| !path.as_os_str().is_empty()) {
                names.add(workspace, &changes, &mut known, above, paths.contains(above))?;
            }
        }
        let names = Arc::new(names);
        let is_far = names.directories.iter().any(|directory| !lists_what_is_found(directory));
        let aside = if is_far { Some(Self::aside(&changes, &names)?) } else { None };
        Ok(Self { aside, changes, names })
    }

    /// Prepares looks by another thread, which keeps the names while it looks.
    fn aside(changes: &Signals, names: &Arc<Names>) -> io::Result<Aside> {
        let looked_at = Arc::clone(names);
        Aside::beside(changes, &names.directories, move || looked_at.broken())
    }

    /// Returns the directories of the names, or none if each is of a kind that this machine has alone, and that lists what is found in it.
    pub(crate) fn strange_directories(&self) -> &[OwnedFd] {
        if self.aside.is_some() { &self.names.directories } else { &[] }
    }

    /// Whether a path led to something when the watch began.
    pub(crate) fn knows(&self, path: &Path) -> bool {
        self.names.names.iter().any(|known| known.path == path)
    }

    /// Looks at the covers as well from now on, in the workspace as it is shown with all of them.
    pub(crate) fn look_at(&self, shown: OwnedFd) {
        let _ = self.names.shown.set(shown); // init sends one
    }

    /// Returns the paths of all names that lead to another file, or to none, or that have lost their cover. Where a server has to be asked
    /// and does not answer in time, what it answers is returned by a later look.
    pub(crate) fn broken(&self, patience: Duration) -> Vec<&Path> {
        while let Ok(Some(_)) = self.changes.next() {}
        let broken = self.aside.as_ref().map_or_else(|| self.names.broken(), |aside| aside.look(patience));
        broken.into_iter().filter_map(|at| self.names.names.get(at)).map(|it| it.path.as_path()).collect()
    }
}

impl Names {
    fn add(
        &mut self,
        workspace: BorrowedFd<'_>,
        changes: &Signals,
        known: &mut Vec<PathBuf>,
        path: &Path,
        is_covered: bool,
    ) -> io::Result<()> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
        if self.names.iter().any(|known| known.path == path) {
            return Ok(());
        }
        let directory = match known.iter().position(|known| known == parent) {
            Some(directory) => directory,
            None => {
                let here = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let opened = match lookup(workspace, here, flags) {
                    Ok(opened) => opened,
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
                    Err(errno) => return Err(errno.into()),
                };
                notify::watch(opened.as_fd(), changes)?;
                self.directories.push(opened);
                known.push(parent.into());
                known.len() - 1
            }
        };
        // After the watch has begun, so that no change is missed.
        if let Some(was) = opened(&self.directories[directory], name)? {
            let is_directory = FileType::from_raw_mode(rustix::fs::fstat(&was)?.st_mode).is_dir();
            let may_be_bare = is_covered && !is_directory;
            self.names.push(Name { directory, name: name.into(), path: path.into(), was, may_be_bare });
        }
        Ok(())
    }

    /// Looks at all names. Returns the places of those that are broken.
    fn broken(&self) -> Vec<usize> {
        let is_other = |it: &Name| {
            let directory = &self.directories[it.directory];
            let is_still = || through(directory, || is_at(directory, &it.name, &it.was)).unwrap_or(false);
            // Its identity may have changed between the two halves of the first comparison.
            !is_still() && !is_still()
        };
        let is_bare = |it: &Name| {
            let bare = |shown| through(&self.directories[it.directory], || is_uncovered(shown, &it.path));
            it.may_be_bare && self.shown.get().is_some_and(|shown| bare(shown).unwrap_or(false))
        };
        let is_broken = |(_, it): &(usize, &Name)| is_other(it) || is_bare(it);
        self.names.iter().enumerate().filter(is_broken).map(|(at, _)| at).collect()
    }
}

impl AsFd for CoverWatch {
    /// Becomes readable when a watched directory has changed, or the names are to be looked at.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.aside.as_ref().map_or(self.changes.as_fd(), AsFd::as_fd)
    }
}

/// Whether a path of the workspace that is shown has no mount of its own. Of a sandbox that is over none has.
fn is_uncovered(shown: &OwnedFd, path: &Path) -> rustix::io::Result<bool> {
    let mount_of = |path: &Path| {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let here = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        mount_at(&lookup(shown, here, flags)?, c"")
    };
    let around = path.parent().unwrap_or(Path::new(""));
    Ok(mount_of(path)? == mount_of(around)? && mount_at(shown, c"..")? != mount_at(shown, c"")?)
}

/// Returns the number of the mount that a name in an open directory, or that itself, is on.
fn mount_at(directory: &OwnedFd, name: &CStr) -> rustix::io::Result<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(directory, name, flags, StatxFlags::MNT_ID)?;
    match found.stx_mask & StatxFlags::MNT_ID.bits() {
        0 => Err(Errno::NOSYS),
        _ => Ok(found.stx_mnt_id),
    }
}

/// How often a directory's mode is changed back before the look fails.
const TRIES: usize = 100;

/// Opens what a name leads to, if it exists.
fn opened(directory: &OwnedFd, name: &OsStr) -> rustix::io::Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match through(directory, || rustix::fs::openat(directory, name, flags, Mode::empty())) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Looks through an open directory. The command may change its mode, and again as soon as it was changed back: that hides nothing, and is
/// no reason to end the run.
fn through<T>(directory: &OwnedFd, look: impl Fn() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    for _ in 0..TRIES {
        match look() {
            Err(Errno::ACCESS) => {
                let mode = Mode::from_raw_mode(rustix::fs::fstat(directory)?.st_mode & 0o7777);
                rustix::fs::fchmod(directory, mode | Mode::RWXU)?;
            }
            seen => return seen,
        }
    }
    look()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::event::{PollFd, PollFlags};
    use rustix::time::Timespec;

    use super::*;

    fn stirred(cover_watch: &CoverWatch) -> bool {
        let second = Timespec { tv_sec: 2, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut [PollFd::new(cover_watch, PollFlags::IN)], Some(&second)), Ok(1))
    }

    #[test]
    fn whatever_is_done_to_a_name_is_seen_and_what_is_written_into_it_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at(".git/hooks")).unwrap();
        for file in [".git/config", ".envrc"] {
            fs::write(at(file), "x").unwrap();
        }
        let acts: [(&str, &dyn Fn()); 5] = [
            (".git/config", &|| {
                fs::write(at(".git/config.lock"), "x").unwrap();
                fs::rename(at(".git/config.lock"), at(".git/config")).unwrap();
            }),
            (".envrc", &|| {
                fs::remove_file(at(".envrc")).unwrap();
                fs::write(at(".envrc"), "x").unwrap();
            }),
            (".git/hooks", &|| fs::rename(at(".git/hooks"), at(".git/other")).unwrap()),
            (".envrc", &|| fs::remove_file(at(".envrc")).unwrap()),
            (".git", &|| fs::rename(at(".git"), at("git")).unwrap()),
        ];
        let names = [".git/hooks", ".git/config", ".envrc", ".vscode", "a/b"].map(Path::new);
        for (name, act) in acts {
            let cover_watch =
                CoverWatch::begin(fs::File::open(folder.path()).unwrap().as_fd(), names).unwrap();
            fs::write(at("other"), "x").unwrap();
            fs::write(at(".envrc"), "y").unwrap();
            assert!(cover_watch.broken(Duration::ZERO).is_empty() || !at(".envrc").exists(), "before {name}");
            act();
            assert!(stirred(&cover_watch), "{name}");
            assert_eq!(cover_watch.broken(Duration::ZERO), [Path::new(name)]);
        }
    }

    #[test]
    fn all_names_are_told_and_where_the_kernel_may_not_tell_they_are_looked_at_each_second() {
        let folder = tempfile::tempdir().unwrap();
        let names = [".envrc", "lockgate.toml", ".vscode"].map(Path::new);
        names.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
        let mut cover_watch =
            CoverWatch::begin(fs::File::open(folder.path()).unwrap().as_fd(), names).unwrap();
        assert!(cover_watch.aside.is_none(), "this test's own folder is on a local file system");
        cover_watch.aside = Some(CoverWatch::aside(&cover_watch.changes, &cover_watch.names).unwrap());
        for round in 0..2 {
            assert!(stirred(&cover_watch), "{round}");
            assert!(cover_watch.broken(Duration::from_secs(10)).is_empty());
        }
        for name in &names[..2] {
            fs::remove_file(folder.path().join(name)).unwrap();
        }
        assert!(stirred(&cover_watch));
        assert_eq!(cover_watch.broken(Duration::from_secs(10)), names[..2]);
    }

    #[test]
    fn a_file_above_a_covered_name_has_no_cover_to_lose() {
        // A workspace is shown as a mount of its own, and so is this. A thread looks at it, as at what a server has.
        let shown = || fs::File::open("/proc").unwrap();
        let broken = |path: &str| {
            let cover_watch = CoverWatch::begin(shown().as_fd(), [Path::new(path)]).unwrap();
            assert!(cover_watch.knows(Path::new("version")), "{path}");
            cover_watch.look_at(shown().into());
            cover_watch.broken(Duration::from_secs(10)).len()
        };
        assert_eq!((broken("version"), broken("version/config")), (1, 0));
    }
}
