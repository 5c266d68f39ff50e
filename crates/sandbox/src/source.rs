//! Opens the host's files that a sandbox shows: once, through no symbolic link, and used by descriptor from then on.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use crate::error::Error;
use crate::file_copy::{copy_content, keep_times};
use crate::file_system;
use crate::open_file::lookup;

/// Opens a path of the host. No component may be a link.
pub(crate) fn open(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS)
        .map_err(|errno| refused(path, errno))
}

/// Opens a path of the host like [`open`], for showing what is there. Refuses what [is of `/proc`](refuse_proc).
pub(crate) fn open_shown(path: &Path) -> Result<OwnedFd, Error> {
    let opened = open(path)?;
    refuse_proc(path, &opened)?;
    Ok(opened)
}

/// Refuses a source on procfs, wherever that is mounted, and one below `/proc`, of whichever file system: they tell of this machine's
/// processes, and writing to one changes a process or the kernel. A proc that is mounted deeper in a source is shown with it.
fn refuse_proc(path: &Path, opened: &OwnedFd) -> Result<(), Error> {
    let is_on_proc = file_system::is_proc(opened).map_err(|errno| refused(path, errno))?;
    if is_on_proc || path.starts_with("/proc") {
        return Err(Error::Impossible {
            what: format!(
                "`{}` cannot be shown or copied: it is of /proc, which tells of this machine's processes",
                path.display()
            ),
            remedy: "leave it out: inside is a /proc of its own".into(),
        });
    }
    Ok(())
}

/// Opens a path of the host like [`open`]. Returns `None` if it does not exist.
pub(crate) fn open_if_there(path: &Path) -> Result<Option<OwnedFd>, Error> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match openat2(CWD, path, flags, Mode::empty(), resolve) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(refused(path, errno)),
    }
}

/// Refuses a path that cannot be copied: a device, a pipe or a socket, and a directory [of `/proc`](refuse_proc).
pub(crate) fn refuse_uncopied(path: &Path) -> Result<(), Error> {
    let opened = open(path)?;
    let stat = rustix::fs::fstat(&opened).map_err(|errno| refused(path, errno))?;
    let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
    if kind.is_dir() {
        refuse_proc(path, &opened)?;
    }
    match kind.is_file() || kind.is_dir() {
        true => Ok(()),
        false => Err(Error::Impossible {
            what: format!(
                "`{}` cannot be copied: only files and directories can be, and it is neither",
                path.display()
            ),
            remedy: "name a file or a directory".into(),
        }),
    }
}

/// Opens a path below a directory. No component may be a link. Returns `None` if it does not exist.
pub(crate) fn open_beneath(directory: BorrowedFd<'_>, path: &Path) -> Result<Option<OwnedFd>, Error> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match lookup(directory, path, flags) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => {
            let itself = format!("/proc/self/fd/{}", directory.as_raw_fd());
            Err(refused_at(path, &Path::new(&itself).join(path), errno))
        }
    }
}

pub(crate) fn refused(path: &Path, errno: Errno) -> Error {
    refused_at(path, path, errno)
}

/// Explains why `path` cannot be opened, looking for its links at `found`, the same place as this process can see it.
fn refused_at(path: &Path, found: &Path, errno: Errno) -> Error {
    let why = match errno {
        Errno::LOOP => {
            let real = found.canonicalize().ok().filter(|real| real != path);
            return Error::behind_link(path, real.as_deref());
        }
        Errno::NOENT => "there is no such file or directory".into(),
        Errno::ACCESS => "you may not read it".into(),
        errno if errno == Errno::NOSYS || is_of_this_machine(errno) => {
            return Error::Open { path: path.into(), source: errno.into() };
        }
        other => io::Error::from(other).to_string(),
    };
    Error::Source { path: path.into(), why }
}

/// Whether an error says nothing of what was looked at: this machine, or this process, has nothing left to look with.
pub(crate) fn is_of_this_machine(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::IO)
}

/// Whether what was opened is a directory.
pub(crate) fn is_directory(found: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    Ok(rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(found)?.st_mode).is_dir())
}

/// Returns the user and group that own an open file.
pub(crate) fn owner(fd: BorrowedFd<'_>) -> Result<(u32, u32), rustix::io::Errno> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_uid, stat.st_gid))
}

/// Converts a path for a system call.
pub(crate) fn c_path(path: &Path) -> CString {
    // The kernel returns no path with a NUL, and the policy refuses one in its fields.
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// Copies a file or a directory tree into a directory of the sandbox, links as links.
///
/// # Errors
/// When it cannot be read or written, or is beyond the bounds of a copy.
pub(crate) fn copy_into(
    source: BorrowedFd<'_>,
    target_dir: BorrowedFd<'_>,
    name: &Path,
) -> Result<(), CopyError> {
    copy_entry(source, target_dir, name, 1, &mut Budget { entries: MOST })
}

/// Why a copy failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error(
        "it holds more than 1,048,576 entries, or directories more than 128 deep; copy only what is needed of it, or \
         show it where it is, with --mount"
    )]
    TooLarge,
    /// What was to be copied itself.
    #[error(transparent)]
    Itself(io::Error),
    /// Something in the directory that was to be copied.
    #[error("{}: {source}", path.display())]
    Below { path: PathBuf, source: io::Error },
}

impl CopyError {
    /// Returns the error of the entry `name` as one of its directory.
    fn below(self, name: &Path) -> Self {
        match self {
            Self::TooLarge => Self::TooLarge,
            Self::Itself(source) => Self::Below { path: name.into(), source },
            Self::Below { path, source } => Self::Below { path: name.join(path), source },
        }
    }
}

impl<E: Into<io::Error>> From<E> for CopyError {
    fn from(error: E) -> Self {
        Self::Itself(error.into())
    }
}

struct Budget {
    entries: u64,
}

/// The most entries that are copied.
const MOST: u64 = 1 << 20;
/// The most directories within one another that are copied: enough for any real tree, and a hostile one cannot exhaust the stack.
const DEEPEST: u32 = 128;

fn copy_entry(
    source: BorrowedFd<'_>,
    target_dir: BorrowedFd<'_>,
    name: &Path,
    depth: u32,
    budget: &mut Budget,
) -> Result<(), CopyError> {
    budget.entries = budget.entries.checked_sub(1).ok_or(CopyError::TooLarge)?;
    let stat = rustix::fs::fstat(source)?;
    let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
    match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::Directory if depth > DEEPEST => Err(CopyError::TooLarge),
        rustix::fs::FileType::Directory => {
            let is_made = match rustix::fs::mkdirat(target_dir, name, mode | Mode::RWXU) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(errno) => return Err(errno.into()),
            };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let from = rustix::fs::openat(source, c".", flags, Mode::empty())?;
            let to = rustix::fs::openat(target_dir, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
            copy_children(&from, to.as_fd(), depth, budget)?;
            if is_made {
                keep_times(&to, &File::from(from).metadata()?);
            }
            Ok(())
        }
        rustix::fs::FileType::RegularFile => {
            let from = File::from(reopen(source)?);
            let as_it_was = from.metadata()?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let to = File::from(rustix::fs::openat(target_dir, name, flags, mode | Mode::WUSR)?);
            copy_content(&from, &as_it_was, &to, &|| false).inspect_err(|_| {
                // A part of it would pass for the whole.
                let _ = rustix::fs::unlinkat(target_dir, name, AtFlags::empty());
            })?;
            keep_times(&to, &as_it_was);
            Ok(())
        }
        rustix::fs::FileType::Symlink => {
            let target = rustix::fs::readlinkat(source, c"", Vec::new())?;
            Ok(rustix::fs::symlinkat(target, target_dir, name)?)
        }
        _ => Ok(()), // sockets, pipes and devices stay outside
    }
}

fn copy_children(
    from: &OwnedFd,
    to: BorrowedFd<'_>,
    depth: u32,
    budget: &mut Budget,
) -> Result<(), CopyError> {
    let entries = rustix::fs::Dir::read_from(from)?;
    for entry in entries {
        let entry = entry?;
        let bytes = entry.file_name().to_bytes();
        if bytes == b"." || bytes == b".." {
            continue;
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let child = rustix::fs::openat(from, entry.file_name(), flags, Mode::empty())?;
        let name = PathBuf::from(std::ffi::OsStr::from_bytes(bytes));
        copy_entry(child.as_fd(), to, &name, depth + 1, budget).map_err(|error| error.below(&name))?;
    }
    Ok(())
}

/// Opens the file of an `O_PATH` descriptor for reading, if it is a regular file.
pub(crate) fn reopen(fd: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{CWD, RenameFlags};

    use super::*;

    const TRIES: u32 = 100_000;
    const COPIES: u32 = 2_000;

    #[test]
    fn a_link_is_refused_with_what_it_leads_to() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(folder.join("real/below")).unwrap();
        std::os::unix::fs::symlink(folder.join("real"), folder.join("link")).unwrap();
        let why = open(&folder.join("link/below")).unwrap_err().to_string();
        assert!(why.ends_with(&format!("leads to: {}", folder.join("real/below").display())), "{why}");
        // A name below a directory is resolved from there, and not from this process's own.
        std::os::unix::fs::symlink("real", folder.join("src")).unwrap();
        let beneath = open_beneath(open(&folder).unwrap().as_fd(), Path::new("src"));
        let why = beneath.unwrap_err().to_string();
        assert!(why.ends_with(&format!("leads to: {}", folder.join("real").display())), "{why}");
        std::os::unix::fs::symlink("nowhere", folder.join("loose")).unwrap();
        assert!(open(&folder.join("loose")).unwrap_err().to_string().ends_with("the link leads to"));
    }

    #[test]
    fn files_of_the_kernel_are_not_shown() {
        for path in ["/proc", "/proc/1", "/proc/cpuinfo", "/proc/sys/kernel"] {
            let why = open_shown(Path::new(path)).unwrap_err().to_string();
            assert!(why.contains(path) && why.contains("it is of /proc"), "{why}");
        }
        open_shown(Path::new("/")).unwrap();
        // What is mounted in /proc is of another file system.
        let other = open(&std::env::temp_dir().canonicalize().unwrap()).unwrap();
        assert!(refuse_proc(Path::new("/proc/sys/fs/binfmt_misc"), &other).is_err());
        assert!(refuse_proc(Path::new("/process"), &other).is_ok());
    }

    #[test]
    fn directories_of_the_kernel_are_not_copied() {
        for path in ["/proc", "/proc/sys/kernel"] {
            let why = refuse_uncopied(Path::new(path)).unwrap_err().to_string();
            assert!(why.contains(path) && why.contains("it is of /proc"), "{why}");
        }
        refuse_uncopied(Path::new("/proc/cpuinfo")).unwrap();
    }

    #[test]
    fn a_copy_is_as_deep_as_its_bound_and_one_beyond_says_so() {
        let folder = tempfile::tempdir().unwrap();
        // The copied directory is one of them.
        let chain = |directories: u32| {
            let top = folder.path().join(directories.to_string());
            let deepest = (1..directories).fold(top.clone(), |path, _| path.join("d"));
            std::fs::create_dir_all(&deepest).unwrap();
            std::fs::write(deepest.join("file"), "x").unwrap();
            let to = std::fs::File::open(folder.path()).unwrap();
            copy_into(open(&top).unwrap().as_fd(), to.as_fd(), Path::new(&format!("{directories}-copy")))
        };
        chain(DEEPEST).unwrap();
        let why = chain(DEEPEST + 1).unwrap_err().to_string();
        assert!(why.contains("more than 128 deep") && why.contains("--mount"), "{why}");
    }

    #[test]
    fn a_copy_that_fails_names_the_file_and_what_is_no_file_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        std::fs::create_dir_all(from.join("below/deep")).unwrap();
        std::fs::create_dir(&to).unwrap();
        std::fs::write(from.join("below/deep/file"), "x").unwrap();
        std::fs::set_permissions(from.join("below/deep/file"), Permissions::from_mode(0o4755)).unwrap();
        rustix::fs::mkfifoat(CWD, from.join("below/pipe"), Mode::RUSR).unwrap();
        let target = std::fs::File::open(&to).unwrap();
        let copied = || copy_into(open(&from).unwrap().as_fd(), target.as_fd(), Path::new("copy"));
        copied().unwrap();
        let below = to.join("copy/below");
        assert!(!below.join("pipe").exists());
        let mode = below.join("deep/file").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7000, 0, "{mode:o}");
        // What is there already is not written over.
        let error = copied().unwrap_err();
        assert!(error.to_string().starts_with("below/deep/file: File exists"), "{error}");
        let itself = copy_into(
            open(&from.join("below/deep/file")).unwrap().as_fd(),
            target.as_fd(),
            Path::new("copy"),
        );
        assert!(itself.unwrap_err().to_string().starts_with("File exists"));
    }

    #[test]
    fn a_copy_keeps_holes_and_times() {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join("from");
        std::fs::create_dir_all(from.join("below")).unwrap();
        File::create(from.join("below/sparse")).unwrap().set_len(1 << 30).unwrap();
        let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1 << 30, 5);
        for path in ["below/sparse", "below", ""] {
            File::open(from.join(path)).unwrap().set_modified(long_ago).unwrap();
        }
        let target = File::open(folder.path()).unwrap();
        copy_into(open(&from).unwrap().as_fd(), target.as_fd(), Path::new("copy")).unwrap();
        let copy = |path: &str| folder.path().join("copy").join(path).metadata().unwrap();
        for path in ["below/sparse", "below", ""] {
            assert_eq!(copy(path).modified().unwrap(), long_ago, "{path}");
        }
        assert!(copy("below/sparse").len() == 1 << 30 && copy("below/sparse").blocks() < 1 << 11);
    }

    #[test]
    fn a_file_that_cannot_be_copied_whole_is_not_left() {
        let folder = tempfile::tempdir().unwrap();
        // Reading the beginning of one's own memory fails.
        let memory = format!("/proc/{}/mem", std::process::id());
        let unread = open(Path::new(&memory)).unwrap();
        let target = File::open(folder.path()).unwrap();
        assert!(copy_into(unread.as_fd(), target.as_fd(), Path::new("copy")).is_err());
        assert!(!folder.path().join("copy").exists());
    }

    /// Runs `work` in a folder in which `name` alternates between the expected directory and a link to one outside.
    fn while_it_flips(name: &str, work: impl FnOnce(&Path)) {
        let folder = tempfile::tempdir().unwrap();
        let (inside, outside) = (folder.path().join("inside"), folder.path().join("outside"));
        for (place, content) in [(&inside, "inside"), (&outside, "outside")] {
            std::fs::create_dir_all(place.join("below")).unwrap();
            std::fs::write(place.join("below/file"), content).unwrap();
        }
        let (real, link) = (inside.join(name), folder.path().join("link"));
        std::os::unix::fs::symlink(outside.join(name), &link).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    rustix::fs::renameat_with(CWD, &real, CWD, &link, RenameFlags::EXCHANGE).unwrap();
                }
            });
            work(&inside);
            over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_source_that_flips_is_never_followed_out() {
        // S3.12: a hundred thousand times.
        while_it_flips("below", |inside| {
            let (mut opened, mut refused) = (0, 0);
            for _ in 0..TRIES {
                match open(&inside.join("below/file")) {
                    Ok(found) => {
                        let mut content = String::new();
                        let mut file = std::fs::File::from(reopen(found.as_fd()).unwrap());
                        std::io::Read::read_to_string(&mut file, &mut content).unwrap();
                        assert_eq!(content, "inside");
                        opened += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
            assert!(opened > 0 && refused > 0, "nothing flipped: {opened} opened, {refused} refused");
        });
    }

    #[test]
    fn a_copy_of_what_flips_holds_nothing_from_outside() {
        while_it_flips("below/file", |inside| {
            let to = tempfile::tempdir().unwrap();
            let target =
                rustix::fs::open(to.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
            let (mut files, mut links) = (0, 0);
            for number in 0..COPIES {
                let name = number.to_string();
                let from = open(inside).unwrap();
                if copy_into(from.as_fd(), target.as_fd(), Path::new(&name)).is_err() {
                    continue;
                }
                let copy = to.path().join(&name).join("below/file");
                match std::fs::read_link(&copy) {
                    Ok(_) => links += 1,
                    Err(_) => {
                        assert_eq!(std::fs::read_to_string(&copy).unwrap(), "inside");
                        files += 1;
                    }
                }
            }
            assert!(files > 0 && links > 0, "nothing flipped: {files} files, {links} links");
        });
    }
}
