//! The private root: a tmpfs that gets everything the plan shows, and then becomes the root.
//!
//! Every path in it is opened relative to its descriptor and cannot leave it. No link is followed, except where a function says so.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use policy::{MountMode, WorkspaceMode};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use sys::mount::{self, Depth, Flags};

use super::{InitInputs, layer};
use crate::error::Error;
use crate::source::{self, CopyError};
use crate::step::{PrivateFile, Step, TreeSource, Visible};

/// The most attempts at a path that concurrent renames disturb.
const TRIES: usize = 10_000;
/// The flags of every tree from the host.
const PLAIN: Flags = Flags::NO_SUID.and(Flags::NO_DEV);

/// The private root.
#[derive(Debug, Default)]
pub(super) struct Root {
    directory: Option<OwnedFd>,
    /// The private file system below an image's root.
    pub(super) below: Option<OwnedFd>,
    /// The detached trees of sources, in the order of the steps that show them.
    trees: std::collections::VecDeque<OwnedFd>,
    is_entered: bool,
}

impl Root {
    /// Opens all sources of the plan, before the private root covers part of the host.
    pub(super) fn open_sources(&mut self, inputs: &InitInputs<'_>) -> Result<(), Error> {
        if inputs.plan.identity.is_private() {
            return Ok(()); // the parent, as root, opens and maps them and hands them over
        }
        for tree in inputs.plan.steps.iter().flat_map(Step::trees) {
            self.trees.push_back(match tree {
                TreeSource::Layer(layer) => layer::open(layer)?,
                TreeSource::Path(path, _) | TreeSource::State(path) => {
                    let opened = source::open(path)?;
                    mount::clone_tree(opened.as_fd(), c"", Depth::Recursive)
                        .map_err(|source| Error::Mount { path: path.into(), source })?
                }
            });
        }
        Ok(())
    }

    /// Adds trees that the parent opened.
    pub(super) fn receive(&mut self, trees: Vec<OwnedFd>) {
        self.trees.extend(trees);
    }

    /// Takes the next tree.
    pub(super) fn next_tree(&mut self) -> io::Result<OwnedFd> {
        self.trees.pop_front().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Whether the root is an image's.
    pub(super) fn is_image(&self) -> bool {
        self.below.is_some()
    }

    /// Returns the private file system, below an image's root.
    pub(super) fn private(&self) -> io::Result<BorrowedFd<'_>> {
        self.below.as_ref().map_or_else(|| self.fd(), |below| Ok(below.as_fd()))
    }

    /// Sets a root that was mounted over the private file system.
    pub(super) fn cover(&mut self, root: OwnedFd) {
        self.below = self.directory.replace(root);
    }

    /// Mounts the private root.
    pub(super) fn mount(&mut self, size: u64, inodes: u64) -> io::Result<()> {
        let (size, inodes) = (c_number(size), c_number(inodes));
        let options = [(c"size", size.as_c_str()), (c"nr_inodes", &inodes), (c"mode", c"755")];
        let tree = mount::make(c"tmpfs", &options, PLAIN)?;
        mount::attach_root_to_be(tree.as_fd())?;
        self.directory = Some(tree);
        Ok(())
    }

    pub(super) fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.directory
            .as_ref()
            .map(AsFd::as_fd)
            .ok_or_else(|| io::Error::other("the private root is not mounted yet"))
    }

    /// Returns a root that is an open directory.
    #[cfg(test)]
    pub(super) fn at(directory: OwnedFd) -> Self {
        Self { directory: Some(directory), ..Self::default() }
    }

    /// Opens a path of the private root.
    pub(super) fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        Ok(openat2(
            self.fd()?,
            relative(path),
            flags,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS,
        )?)
    }

    /// Makes a directory and its parents. The last one gets the mode, unless it exists. The umask must be 0.
    pub(super) fn directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        let path = relative(path);
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
        let mode = Mode::from_raw_mode(mode);
        let made = if parent.as_os_str().is_empty() {
            rustix::fs::mkdirat(self.fd()?, name, mode)
        } else {
            // An image may reach its directories through links.
            let open = |path: &Path| match self.open(path) {
                Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) && self.is_image() => {
                    self.follow(path, OFlags::PATH | OFlags::DIRECTORY)
                }
                opened => opened,
            };
            let parent = match open(parent) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.directory(parent, 0o755)?;
                    open(parent)?
                }
                opened => opened?,
            };
            rustix::fs::mkdirat(&parent, name, mode)
        };
        match made {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes a file with its content. Its parent must exist.
    pub(super) fn file(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        io::Write::write_all(&mut self.create(path)?, content)
    }

    /// Makes a file and opens it for writing.
    pub(super) fn create(&self, path: &Path) -> io::Result<File> {
        let parent = self.open(path.parent().unwrap_or(path))?;
        create_in(parent.as_fd(), path.file_name().ok_or(io::ErrorKind::InvalidInput)?)
    }

    /// Writes a file of the sandbox's own and makes its directories. Replaces what an image has there.
    pub(super) fn write(&self, file: &PrivateFile) -> io::Result<()> {
        let (parent, name) = (file.path.parent(), file.path.file_name());
        let (Some(parent), Some(name)) = (parent, name) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        self.directory(parent, 0o700)?;
        self.let_through(parent)?;
        let parent = self.open(parent)?;
        match rustix::fs::unlinkat(&parent, name, rustix::fs::AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&parent, name, flags, Mode::from_raw_mode(file.mode))?;
        io::Write::write_all(&mut std::fs::File::from(made), &file.content)
    }

    /// Opens a path with its links resolved as if this were the root. In an image, whose links are not trusted, no link can lead into a
    /// mount, such as another process's environment or the workspace.
    pub(super) fn follow(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let mut resolve = ResolveFlags::IN_ROOT;
        if self.is_image() {
            resolve |= ResolveFlags::NO_XDEV;
        }
        // If a path goes upwards and something was renamed anywhere meanwhile, the kernel returns EAGAIN.
        let mut tries = 0;
        loop {
            match openat2(self.fd()?, relative(path), flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
                Err(Errno::AGAIN) if tries < TRIES => tries += 1,
                opened => return Ok(opened?),
            }
        }
    }

    /// Reads a file, without blocking on one that is no regular file.
    pub(super) fn read(&self, path: &Path, most: u64) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(self.open_file(path)?, most), &mut content)?;
        Ok(content)
    }

    /// Opens a file for reading.
    pub(super) fn open_file(&self, path: &Path) -> io::Result<File> {
        let file = File::from(self.follow(path, OFlags::RDONLY | OFlags::NONBLOCK)?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// Makes a link, and the directories above it.
    pub(super) fn link(&self, path: &Path, to: &Path) -> io::Result<()> {
        let path = relative(path);
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        // The root itself need not be opened once more.
        match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            Some(parent) => {
                self.directory(parent, 0o755)?;
                rustix::fs::symlinkat(to, &self.open(parent)?, name)?;
            }
            None => rustix::fs::symlinkat(to, self.fd()?, name)?,
        }
        Ok(())
    }

    /// Attaches a detached tree at a path, and makes a directory there if nothing exists.
    pub(super) fn attach(&self, tree: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
        self.directory(path, 0o755)?;
        self.let_through(path)?;
        match relative(path).parent() {
            // A name right below the root needs no descriptor of its parent, and a link there is not followed.
            Some(parent) if parent.as_os_str().is_empty() => {
                mount::attach(tree, self.fd()?, &source::c_path(relative(path)))
            }
            _ => mount::attach(tree, self.open(path)?.as_fd(), c""),
        }
    }

    /// Makes a directory of the sandbox's own, in place of whatever the image has at its name.
    pub(super) fn own_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        let Some(below) = &self.below else { return self.directory(path, mode) };
        let name = relative(path);
        self.take_link_away(name)?;
        self.refuse_another(name)?;
        rustix::fs::mkdirat(below, name, Mode::from_raw_mode(mode))?;
        let tree = mount::clone_tree(below.as_fd(), &source::c_path(name), Depth::One)?;
        self.attach(tree.as_fd(), path)
    }

    /// Takes a link of the image away, right below its root. What it led to stays.
    fn take_link_away(&self, name: &Path) -> io::Result<()> {
        match rustix::fs::readlinkat(self.fd()?, name, Vec::new()) {
            Ok(_) => Ok(rustix::fs::unlinkat(self.fd()?, name, AtFlags::empty())?),
            // It is no link, or there is none.
            Err(Errno::INVAL | Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Fails if the image has something right below its root that is no directory.
    fn refuse_another(&self, name: &Path) -> io::Result<()> {
        match rustix::fs::statat(self.fd()?, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) if FileType::from_raw_mode(there.st_mode) != FileType::Directory => {
                Err(io::Error::other("the image has something else of that name"))
            }
            _ => Ok(()),
        }
    }

    /// Shows a system directory or file of the host read-only.
    pub(super) fn show_system(&self, path: &Path) -> io::Result<()> {
        let tree = mount::clone_tree(CWD, &source::c_path(path), Depth::Recursive)?;
        self.show_tree(tree.as_fd(), path, MountMode::ReadOnly)
    }

    /// Shows the workspace at its own path.
    pub(super) fn show_workspace(&mut self, path: &Path, mode: WorkspaceMode) -> io::Result<()> {
        let mode = match mode {
            WorkspaceMode::ReadWrite => MountMode::ReadWrite,
            WorkspaceMode::ReadOnly | WorkspaceMode::Overlay => MountMode::ReadOnly,
        };
        self.show_next(path, mode)
    }

    /// Shows a path of the host.
    pub(super) fn show(&mut self, visible: &Visible) -> io::Result<()> {
        self.show_next(&visible.target, visible.mode)
    }

    fn show_next(&mut self, target: &Path, mode: MountMode) -> io::Result<()> {
        let tree = self.next_tree()?;
        self.show_tree(tree.as_fd(), target, mode)
    }

    /// Attaches a detached tree, a directory or a file, at a path.
    fn show_tree(&self, tree: BorrowedFd<'_>, target: &Path, mode: MountMode) -> io::Result<()> {
        let flags = match mode {
            MountMode::ReadOnly => PLAIN.and(Flags::READ_ONLY),
            MountMode::ReadWrite => PLAIN,
        };
        mount::set_flags(tree, flags)?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(tree)?.st_mode);
        if kind == FileType::Directory {
            return self.attach(tree, target);
        }
        if self.open(target).is_err() {
            self.directory(target.parent().unwrap_or(target), 0o755)?;
            self.file(target, b"")?;
        }
        mount::attach(tree, self.open(target)?.as_fd(), c"")
    }

    /// Copies the next source to a path.
    pub(super) fn copy(&mut self, target: &Path) -> Result<(), CopyError> {
        let tree = self.next_tree()?;
        let parent = target.parent().unwrap_or(target);
        self.directory(parent, 0o755)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let parent = openat2(self.fd()?, relative(parent), flags, Mode::empty(), resolve)?;
        let name = Path::new(target.file_name().ok_or(io::ErrorKind::InvalidInput)?);
        source::copy_into(tree.as_fd(), parent.as_fd(), name)
    }

    /// Mounts `/proc` of this pid namespace. What can be set in it for the whole machine is read-only, and the lists of the caller's
    /// keys, which no namespace divides, cannot be opened.
    pub(super) fn mount_proc(&self) -> io::Result<()> {
        self.refuse_another(Path::new("proc"))?;
        let proc = mount::make(c"proc", &[], PLAIN.and(Flags::NO_EXEC))?;
        self.attach(proc.as_fd(), Path::new("/proc"))?;
        let still = PLAIN.and(Flags::READ_ONLY).and(Flags::NO_EXEC);
        for set in ["/proc/sys", "/proc/pressure"] {
            let Some(set) = self.open_if_there(Path::new(set))? else { continue };
            let tree = mount::clone_tree(set.as_fd(), c"", Depth::Recursive)?;
            mount::set_flags(tree.as_fd(), still)?;
            mount::attach(tree.as_fd(), set.as_fd(), c"")?;
        }
        for list in ["/proc/keys", "/proc/key-users"] {
            let Some(list) = self.open_if_there(Path::new(list))? else { continue };
            // A device that nobody may open there.
            let nothing = mount::clone_tree(CWD, c"/dev/null", Depth::One)?;
            mount::set_flags(nothing.as_fd(), still)?;
            mount::attach(nothing.as_fd(), list.as_fd(), c"")?;
        }
        Ok(())
    }

    /// Opens a path, unless this kernel does not have it.
    fn open_if_there(&self, path: &Path) -> io::Result<Option<OwnedFd>> {
        match self.open(path) {
            Ok(opened) => Ok(Some(opened)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the private root the root of this namespace.
    pub(super) fn enter(&mut self) -> io::Result<()> {
        rustix::process::fchdir(self.fd()?)?;
        mount::pivot_to_current_directory()?;
        self.is_entered = true;
        Ok(())
    }

    /// Whether it is the root of this namespace, and nothing of the host's is reached any more.
    pub(super) fn is_entered(&self) -> bool {
        self.is_entered
    }
}

/// Makes a file in an open directory and opens it for writing.
pub(super) fn create_in(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o644))?.into())
}

/// Returns a path of the private root in relative form, for `openat2(2)`.
pub(super) fn relative(path: &Path) -> &Path {
    let path = path.strip_prefix("/").unwrap_or(path);
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

fn c_number(number: u64) -> std::ffi::CString {
    std::ffi::CString::new(number.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_in_the_place_of_an_own_directory_goes_and_what_it_leads_to_stays() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("var/run")).unwrap();
        std::os::unix::fs::symlink("var/run", directory.path().join("run")).unwrap();
        let root = Root::at(std::fs::File::open(directory.path()).unwrap().into());
        for name in ["run", "none", "var"] {
            root.take_link_away(Path::new(name)).unwrap();
        }
        let there = ["run", "var/run"].map(|path| directory.path().join(path).exists());
        assert_eq!(there, [false, true]);
    }

    #[test]
    fn an_image_whose_proc_is_no_directory_is_told_apart_from_a_covered_proc() {
        let directory = tempfile::tempdir().unwrap();
        let proc = directory.path().join("proc");
        let mounted = || Root::at(std::fs::File::open(directory.path()).unwrap().into()).mount_proc();
        std::os::unix::fs::symlink("etc", &proc).unwrap();
        let linked = mounted().unwrap_err();
        std::fs::remove_file(&proc).unwrap();
        std::fs::write(&proc, "").unwrap();
        for error in [linked, mounted().unwrap_err()] {
            assert!(error.to_string().contains("something else of that name"), "{error}");
        }
    }
}
