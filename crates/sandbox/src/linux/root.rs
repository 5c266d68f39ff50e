//! The private root: a file system in memory, filled with what the plan shows, and then made the root.
//!
//! Every path below it is opened relative to its descriptor and cannot leave it; no link on the way is followed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use policy::{MountMode, WorkspaceMode};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use sys::mount::{self, Depth, Flags};

use super::{Inherited, layer};
use crate::source;
use crate::step::{PrivateFile, Source, Step, Visible};

/// Where the private root is mounted until it is the root. Everything shown is opened before, so nothing is lost.
const BASE: &str = "/tmp";
/// The devices every program may use.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// How often a path is tried that others' renames get in the way of.
const TRIES: usize = 10_000;
/// What every tree from the host is given.
const PLAIN: Flags = Flags::NO_SUID.and(Flags::NO_DEV);

/// The private root in the making.
#[derive(Debug, Default)]
pub(super) struct Root {
    directory: Option<OwnedFd>,
    /// The private file system that an image's root lies over.
    pub(super) below: Option<OwnedFd>,
    /// Detached trees of what is shown, in the order of the steps that show it.
    trees: std::collections::VecDeque<OwnedFd>,
}

impl Root {
    /// Opens everything the plan shows: first, because the private root covers part of the host.
    pub(super) fn open_sources(&mut self, inherited: &Inherited<'_>) -> Result<(), String> {
        if inherited.plan.identity.is_private() {
            return Ok(()); // root opens and maps them, and hands them over
        }
        for step in &inherited.plan.steps {
            if let Step::MountImage { layers, written, .. } = step {
                for layer in layers.iter().chain(written) {
                    self.trees.push_back(layer::open(layer).map_err(|e| e.to_string())?);
                }
                continue;
            }
            let paths: &[&Path] = match step {
                Step::OverlayWorkspace { workspace, changes } => &[workspace, changes],
                Step::ShowWorkspace(path, _) | Step::Copy(path, _) | Step::ShowUnder { source: path, .. } => {
                    &[path]
                }
                Step::Show(Visible { source: Source::Host(path), .. }) => &[path],
                _ => continue,
            };
            for path in paths {
                let opened = source::open(path).map_err(|e| e.to_string())?;
                let tree = mount::clone_tree(opened.as_fd(), c"", Depth::Recursive);
                self.trees.push_back(tree.map_err(|e| format!("{}: {e}", path.display()))?);
            }
        }
        Ok(())
    }

    /// Takes trees that the parent opened.
    pub(super) fn receive(&mut self, trees: Vec<OwnedFd>) {
        self.trees.extend(trees);
    }

    /// The next of the opened trees.
    pub(super) fn next_tree(&mut self) -> io::Result<OwnedFd> {
        self.trees.pop_front().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Whether the root is an image's, and not the host's directories.
    pub(super) fn is_image(&self) -> bool {
        self.below.is_some()
    }

    /// The private file system itself, whatever lies over it.
    pub(super) fn private(&self) -> io::Result<BorrowedFd<'_>> {
        self.below.as_ref().map_or_else(|| self.fd(), |below| Ok(below.as_fd()))
    }

    /// Takes a root that was put over the private one.
    pub(super) fn cover(&mut self, root: OwnedFd) {
        self.below = self.directory.replace(root);
    }

    /// Mounts the private root itself.
    pub(super) fn mount(&mut self, size: u64, inodes: u64) -> io::Result<()> {
        let (size, inodes) = (c_number(size), c_number(inodes));
        let options = [(c"size", size.as_c_str()), (c"nr_inodes", &inodes), (c"mode", c"755")];
        let tree = mount::make(c"tmpfs", &options, PLAIN)?;
        let base = rustix::fs::open(BASE, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        mount::attach(tree.as_fd(), base.as_fd(), c"")?;
        self.directory = Some(tree);
        Ok(())
    }

    pub(super) fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.directory
            .as_ref()
            .map(AsFd::as_fd)
            .ok_or_else(|| io::Error::other("the private root is not mounted yet"))
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

    /// A listener on a Unix socket at a path of the private root. Such a socket is made by its name only, so its directory
    /// becomes this process's own until it enters the root.
    pub(super) fn listen(&self, path: &Path) -> io::Result<OwnedFd> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        rustix::process::fchdir(self.open(parent)?)?;
        sys::listener::unix(Path::new(name))
    }

    /// Makes a directory and its parents. The last one gets the mode; one that is there is left as it is. The caller's
    /// mask is off.
    pub(super) fn directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        let path = relative(path);
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
        let mode = Mode::from_raw_mode(mode);
        let made = if parent.as_os_str().is_empty() {
            rustix::fs::mkdirat(self.fd()?, name, mode)
        } else {
            // An image may lead to its own directories by links of its own.
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

    /// Makes a file with its content; its parent must be there.
    pub(super) fn file(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        io::Write::write_all(&mut self.create(path)?, content)
    }

    /// Makes a file to be written.
    pub(super) fn create(&self, path: &Path) -> io::Result<File> {
        let parent = self.open(path.parent().unwrap_or(path))?;
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&parent, name, flags, Mode::from_raw_mode(0o644))?.into())
    }

    /// Writes a file of the sandbox's own, with the directories it lies in; what an image has there gives way.
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

    /// Opens what a path leads to, links resolved as if this were the root. In an image, whose links are anybody's, none
    /// leads to what is mounted there: another process's environment, the workspace.
    pub(super) fn follow(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let mut resolve = ResolveFlags::IN_ROOT;
        if self.is_image() {
            resolve |= ResolveFlags::NO_XDEV;
        }
        // Where a link leads upwards and something was renamed anywhere meanwhile, the kernel asks to try again.
        let mut tries = 0;
        loop {
            match openat2(self.fd()?, relative(path), flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
                Err(Errno::AGAIN) if tries < TRIES => tries += 1,
                opened => return Ok(opened?),
            }
        }
    }

    /// Reads a file; what is no regular file is not waited for.
    pub(super) fn read(&self, path: &Path, most: u64) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(self.open_file(path)?, most), &mut content)?;
        Ok(content)
    }

    /// Opens a file to be read.
    pub(super) fn open_file(&self, path: &Path) -> io::Result<File> {
        let file = File::from(self.follow(path, OFlags::RDONLY | OFlags::NONBLOCK)?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// Makes a link.
    pub(super) fn link(&self, path: &Path, to: &Path) -> io::Result<()> {
        let parent = self.open(path.parent().unwrap_or(path))?;
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(rustix::fs::symlinkat(to, &parent, name)?)
    }

    /// Puts a detached tree at a path, making a directory there if there is nothing.
    pub(super) fn attach(&self, tree: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
        self.directory(path, 0o755)?;
        self.let_through(path)?;
        match relative(path).parent() {
            // A name right below the root needs no descriptor of its own, and a link there is not followed.
            Some(parent) if parent.as_os_str().is_empty() => {
                mount::attach(tree, self.fd()?, &source::c_path(relative(path)))
            }
            _ => mount::attach(tree, self.open(path)?.as_fd(), c""),
        }
    }

    /// Directories of an image on the way to what is shown may be shut to the command, as `/root` is: they are passed through.
    pub(super) fn let_through(&self, path: &Path) -> io::Result<()> {
        if !self.is_image() {
            return Ok(());
        }
        for above in path.ancestors().skip(1).map(relative).take_while(|above| *above != Path::new(".")) {
            let mode = rustix::fs::fstat(self.open(above)?)?.st_mode;
            if mode & 0o001 == 0 {
                let mode = Mode::from_raw_mode(mode & 0o7777 | 0o011);
                rustix::fs::chmodat(self.fd()?, above, mode, rustix::fs::AtFlags::empty())?;
            }
        }
        Ok(())
    }

    /// A directory that is the sandbox's own, whatever the image has under its name.
    pub(super) fn own_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        let Some(below) = &self.below else { return self.directory(path, mode) };
        let name = relative(path);
        let there = rustix::fs::statat(self.fd()?, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        if there.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) != FileType::Directory) {
            return Err(io::Error::other("the image has something else of that name"));
        }
        rustix::fs::mkdirat(below, name, Mode::from_raw_mode(mode))?;
        let tree = mount::clone_tree(below.as_fd(), &source::c_path(name), Depth::One)?;
        self.attach(tree.as_fd(), path)
    }

    /// Shows a directory of the host's root read-only.
    pub(super) fn show_system(&self, path: &Path) -> io::Result<()> {
        let tree = mount::clone_tree(CWD, &source::c_path(path), Depth::Recursive)?;
        mount::set_flags(tree.as_fd(), PLAIN.and(Flags::READ_ONLY))?;
        self.attach(tree.as_fd(), path)
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
        let flags = match mode {
            MountMode::ReadOnly => PLAIN.and(Flags::READ_ONLY),
            MountMode::ReadWrite => PLAIN,
        };
        mount::set_flags(tree.as_fd(), flags)?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&tree)?.st_mode);
        if kind == FileType::Directory {
            return self.attach(tree.as_fd(), target);
        }
        if self.open(target).is_err() {
            self.directory(target.parent().unwrap_or(target), 0o755)?;
            self.file(target, b"")?;
        }
        mount::attach(tree.as_fd(), self.open(target)?.as_fd(), c"")
    }

    /// Copies the next source to a path.
    pub(super) fn copy(&mut self, target: &Path) -> io::Result<()> {
        let tree = self.next_tree()?;
        let parent = target.parent().unwrap_or(target);
        self.directory(parent, 0o755)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let parent = openat2(self.fd()?, relative(parent), flags, Mode::empty(), resolve)?;
        let name = Path::new(target.file_name().ok_or(io::ErrorKind::InvalidInput)?);
        Ok(source::copy_into(tree.as_fd(), parent.as_fd(), name)?)
    }

    /// Mounts `/proc` of this pid namespace; the kernel's switches in it are read-only.
    pub(super) fn mount_proc(&self) -> io::Result<()> {
        let proc = mount::make(c"proc", &[], PLAIN.and(Flags::NO_EXEC))?;
        self.attach(proc.as_fd(), Path::new("/proc"))?;
        let switches = self.open(Path::new("/proc/sys"))?;
        let tree = mount::clone_tree(switches.as_fd(), c"", Depth::Recursive)?;
        mount::set_flags(tree.as_fd(), PLAIN.and(Flags::READ_ONLY).and(Flags::NO_EXEC))?;
        mount::attach(tree.as_fd(), switches.as_fd(), c"")
    }

    /// Makes `/dev`: the harmless devices, terminals of its own, shared memory. Opens a terminal where one is wanted.
    pub(super) fn make_devices(&self, terminal: bool) -> io::Result<Option<OwnedFd>> {
        self.own_directory(Path::new("/dev"), 0o755)?;
        self.directory(Path::new("/dev/shm"), 0o1777)?;
        let devices = self.open(Path::new("/dev"))?;
        for device in DEVICES {
            rustix::fs::mknodat(&devices, device, FileType::RegularFile, Mode::from_raw_mode(0o666), 0)?;
            let path = Path::new("/dev").join(device);
            let tree = mount::clone_tree(CWD, &source::c_path(&path), Depth::One)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
            mount::set_flags(tree.as_fd(), Flags::NO_SUID.and(Flags::NO_EXEC))?;
            mount::attach(tree.as_fd(), devices.as_fd(), &source::c_path(Path::new(device)))?;
        }
        let links = [
            ("ptmx", "pts/ptmx"),
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
        ];
        for (name, to) in links {
            rustix::fs::symlinkat(to, &devices, name)?;
        }
        let options = [(c"ptmxmode", c"0666"), (c"mode", c"0620"), (c"max", c"1024")];
        let terminals = mount::make(c"devpts", &options, Flags::NO_SUID.and(Flags::NO_EXEC))?;
        self.attach(terminals.as_fd(), Path::new("/dev/pts"))?;
        if !terminal {
            return Ok(None);
        }
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let master = rustix::fs::openat(&terminals, c"ptmx", flags, Mode::empty())?;
        rustix::pty::unlockpt(&master)?;
        Ok(Some(master))
    }

    /// Makes the private root the root of this namespace.
    pub(super) fn enter(&self) -> io::Result<()> {
        rustix::process::fchdir(self.fd()?)?;
        mount::pivot_to_current_directory()
    }
}

/// A path of the private root as `openat2(2)` wants it.
pub(super) fn relative(path: &Path) -> &Path {
    let path = path.strip_prefix("/").unwrap_or(path);
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

fn c_number(number: u64) -> std::ffi::CString {
    std::ffi::CString::new(number.to_string()).unwrap_or_default()
}
