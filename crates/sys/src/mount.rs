//! Mounts by descriptor: a tree is opened, gets its flags, and is attached only then. Adds to `rustix` what the newer system
//! calls need.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};

/// Where a root-to-be is mounted: at the first of these that is there. Nothing is shown of them afterwards by its path; an engine's container
/// has the last one.
const BASES: [&CStr; 3] = [c"/tmp", c"/mnt", c"/sys"];

/// `struct mount_attr` of `mount_setattr(2)`.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Flags for all mounts of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(u64);

impl Flags {
    /// Read only.
    pub const READ_ONLY: Self = Self(libc::MOUNT_ATTR_RDONLY);
    /// No set-id programs.
    pub const NO_SUID: Self = Self(libc::MOUNT_ATTR_NOSUID);
    /// No device nodes.
    pub const NO_DEV: Self = Self(libc::MOUNT_ATTR_NODEV);
    /// No programs at all.
    pub const NO_EXEC: Self = Self(libc::MOUNT_ATTR_NOEXEC);

    /// Returns the union of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// How much of a tree to clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// One mount.
    One,
    /// The mount and all below it.
    Recursive,
}

/// Clones the mount that holds `path` (empty: `dir` itself) into a detached tree. Links are not followed. The tree of a shared mount shares
/// mount events with it: for one that leaves this namespace, see [`clone_private_tree`].
///
/// # Errors
/// When `open_tree(2)` fails.
pub fn clone_tree(dir: BorrowedFd<'_>, path: &CStr, depth: Depth) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW
        | OpenTreeFlags::AT_NO_AUTOMOUNT;
    if path.is_empty() {
        flags |= OpenTreeFlags::AT_EMPTY_PATH;
    }
    if depth == Depth::Recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    Ok(rustix::mount::open_tree(dir, path, flags)?)
}

/// Like [`clone_tree`], for a tree that is attached in another namespace: it is private. systemd makes a machine's mounts shared, and what
/// is mounted on a clone of a shared mount appears on the machine as well, and the other way round: mount_namespaces(7).
///
/// # Errors
/// When `open_tree(2)` or `mount_setattr(2)` fails.
pub fn clone_private_tree(dir: BorrowedFd<'_>, path: &CStr, depth: Depth) -> io::Result<OwnedFd> {
    let tree = clone_tree(dir, path, depth)?;
    let attr = MountAttr { propagation: libc::MS_PRIVATE, ..MountAttr::default() };
    set_attr(tree.as_fd(), attr, libc::AT_RECURSIVE)?;
    Ok(tree)
}

/// Sets flags on every mount of a tree.
///
/// # Errors
/// When `mount_setattr(2)` fails.
pub fn set_flags(tree: BorrowedFd<'_>, flags: Flags) -> io::Result<()> {
    set_attr(tree, MountAttr { attr_set: flags.0, ..MountAttr::default() }, libc::AT_RECURSIVE)
}

/// Maps the file owners of a detached mount through a user namespace.
///
/// # Errors
/// When `mount_setattr(2)` fails: with `EINVAL` if the file system does not support id-mapped mounts.
pub fn map_owners(tree: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    let attr = MountAttr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        userns_fd: user_namespace.as_raw_fd() as u64,
        ..MountAttr::default()
    };
    set_attr(tree, attr, libc::AT_RECURSIVE)
}

fn set_attr(tree: BorrowedFd<'_>, attr: MountAttr, extra: libc::c_int) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | extra;
    // SAFETY: the structure is the kernel's first version, its size is passed, and the path is an empty string.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Attaches a detached tree at `path` below `dir`. A link at the end of `path` is not followed.
///
/// # Errors
/// When `move_mount(2)` fails.
pub fn attach(tree: BorrowedFd<'_>, dir: BorrowedFd<'_>, path: &CStr) -> io::Result<()> {
    let mut flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    if path.is_empty() {
        flags |= MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    }
    Ok(rustix::mount::move_mount(tree, c"", dir, path, flags)?)
}

/// Attaches a detached tree that is to be the root where it covers one of the host's directories, and not the root itself: what is stacked
/// there stays above another mount that becomes the root.
///
/// # Errors
/// When none of the directories can be opened, or `move_mount(2)` fails.
pub fn attach_root_to_be(tree: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |base: &CStr| rustix::fs::open(base, flags, Mode::empty());
    let [first, others @ ..] = BASES;
    let base = others.into_iter().fold(open(first), |opened, base| opened.or_else(|_| open(base)))?;
    attach(tree, base.as_fd(), c"")
}

/// Makes a detached mount of a file system with the given options.
///
/// # Errors
/// When `fsopen(2)`, `fsconfig(2)` or `fsmount(2)` fails.
pub fn make(kind: &CStr, options: &[(&CStr, &CStr)], flags: Flags) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        if value.is_empty() {
            rustix::mount::fsconfig_set_flag(context.as_fd(), *key)?;
        } else {
            rustix::mount::fsconfig_set_string(context.as_fd(), *key, *value)?;
        }
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::from_bits_truncate(u32::try_from(flags.0).unwrap_or(u32::MAX));
    Ok(rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Makes a detached mount of a file system whose options are one text: mount(2) takes a page of them, and fsconfig(2) 255 octets of
/// one. `place` is an empty directory, which is covered for a moment.
///
/// # Errors
/// When `mount(2)`, `open_tree(2)`, `umount2(2)` or `mount_setattr(2)` fails.
pub fn make_at(place: &CStr, kind: &CStr, options: &CStr, flags: Flags) -> io::Result<OwnedFd> {
    rustix::mount::mount(kind, place, kind, MountFlags::empty(), options)?;
    let tree = clone_tree(CWD, place, Depth::One);
    rustix::mount::unmount(place, UnmountFlags::DETACH)?;
    let tree = tree?;
    set_flags(tree.as_fd(), flags)?;
    Ok(tree)
}

/// Makes every mount of this namespace private, so that mount events propagate neither in nor out.
///
/// # Errors
/// When `mount(2)` fails.
pub fn make_all_private() -> io::Result<()> {
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    Ok(rustix::mount::mount_change(c"/", flags)?)
}

/// Makes the current directory the root and detaches the old one.
///
/// # Errors
/// When `pivot_root(2)`, `umount2(2)`, `chdir(2)` or `statx(2)` fails, and when something is still mounted over the root.
pub fn pivot_to_current_directory() -> io::Result<()> {
    rustix::process::pivot_root(c".", c".")?;
    // The old root is now mounted on top of the new one, so unmounting it uncovers the new one.
    rustix::mount::unmount(c".", UnmountFlags::DETACH)?;
    rustix::process::chdir(c"/")?;
    // What is stacked over the root is no path's own, but `/..` leads to it.
    match mounted_at(c"/..")? == mounted_at(c"/")? {
        true => Ok(()),
        false => Err(io::Error::other("something is still mounted over the root")),
    }
}

/// Returns the mount and the file of a path.
fn mounted_at(path: &CStr) -> io::Result<(u64, u32, u32, u64)> {
    let found = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
    Ok((found.stx_mnt_id, found.stx_dev_major, found.stx_dev_minor, found.stx_ino))
}
