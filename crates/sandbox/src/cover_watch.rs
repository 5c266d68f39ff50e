//! Watches the covers of protected paths during a run. A cover is a mount on one file or directory. If somebody on this machine replaces,
//! renames or removes that file, as `git config` and many editors do, the kernel drops the cover and the agent can take the name.
//!
//! Nobody inside can do this to a covered name, so any change was made outside.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use sys::notify;
use sys::signal::Signals;

use crate::file_id::FileId;

/// The covered names of one workspace, with their identities at the start.
#[derive(Debug)]
pub(crate) struct CoverWatch {
    changes: Signals,
    directories: Vec<OwnedFd>,
    names: Vec<Name>,
}

/// One name on the path to something covered.
#[derive(Debug)]
struct Name {
    /// The index of its directory.
    directory: usize,
    name: OsString,
    path: PathBuf,
    was: FileId,
}

impl CoverWatch {
    /// Begins to watch the paths of a workspace that exist now. Follows no links.
    pub(crate) fn begin<'a>(
        workspace: BorrowedFd<'_>,
        paths: impl IntoIterator<Item = &'a Path>,
    ) -> io::Result<Self> {
        let changes = notify::changes()?;
        let mut it = Self { changes, directories: Vec::new(), names: Vec::new() };
        let mut known: Vec<PathBuf> = Vec::new();
        for path in paths {
            let above = path.ancestors().collect::<Vec<_>>();
            for path in above.into_iter().rev().filter(|path| !path.as_os_str().is_empty()) {
                it.add(workspace, &mut known, path)?;
            }
        }
        Ok(it)
    }

    fn add(&mut self, workspace: BorrowedFd<'_>, known: &mut Vec<PathBuf>, path: &Path) -> io::Result<()> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
        if self.names.iter().any(|known| known.path == path) {
            return Ok(());
        }
        let directory = match known.iter().position(|known| known == parent) {
            Some(directory) => directory,
            None => {
                let here = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
                let opened = match openat2(workspace, here, flags, Mode::empty(), beneath) {
                    Ok(opened) => opened,
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
                    Err(errno) => return Err(errno.into()),
                };
                notify::watch(opened.as_fd(), &self.changes)?;
                self.directories.push(opened);
                known.push(parent.into());
                known.len() - 1
            }
        };
        // After the watch has begun, so that no change is missed.
        if let Some(was) = being(self.directories[directory].as_fd(), name)? {
            self.names.push(Name { directory, name: name.into(), path: path.into(), was });
        }
        Ok(())
    }

    /// Returns the path of the first name whose identity has changed.
    pub(crate) fn broken(&self) -> Option<&Path> {
        while let Ok(Some(_)) = self.changes.next() {}
        let is_other = |it: &&Name| {
            being(self.directories[it.directory].as_fd(), &it.name).ok().flatten() != Some(it.was)
        };
        self.names.iter().find(is_other).map(|it| it.path.as_path())
    }
}

impl AsFd for CoverWatch {
    /// Becomes readable when a watched directory has changed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

/// How often a directory's mode is changed back before the look fails.
const TRIES: usize = 100;

/// Returns the identity of a name, if it exists. Works through the open directory. The command may change its mode, and again as soon as
/// it was changed back: that hides nothing, and is no reason to end the run.
fn being(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<FileId>> {
    for _ in 0..TRIES {
        match FileId::at(directory, name) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let mode = Mode::from_raw_mode(rustix::fs::fstat(directory)?.st_mode & 0o7777);
                rustix::fs::fchmod(directory, mode | Mode::RWXU)?;
            }
            found => return found,
        }
    }
    FileId::at(directory, name)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::event::{PollFd, PollFlags, Timespec};

    use super::*;

    fn stirred(cover_watch: &CoverWatch) -> bool {
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
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
            assert!(cover_watch.broken().is_none() || !at(".envrc").exists(), "before {name}");
            act();
            assert!(stirred(&cover_watch), "{name}");
            assert_eq!(cover_watch.broken(), Some(Path::new(name)));
        }
    }
}
