//! Probes of kernel features: each is tried in a short-lived child.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Mode};

use crate::mount::{self, Flags};
use crate::process::{self, Exit, Namespaces};
use crate::{network, nftables, privilege};

/// A kernel feature that a sandbox needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// A user and a pid namespace, with the caller's own id mapped.
    UserNamespace,
    /// Mount, network, IPC, UTS and cgroup namespaces inside it.
    OtherNamespaces,
    /// Mounts of its own, whose flags can be set, and of which one can be the root. Linux 5.12 and later.
    Mounts,
    /// A `/proc` of its own.
    Proc,
    /// Routes that make every address local, and an nftables redirect.
    Redirect,
    /// An overlay on a tmpfs, which can replace directories where files in memory [have attributes](memory_has_attributes).
    Overlay,
}

impl Feature {
    /// All features. Each needs those before it that are [basic](Self::is_basic).
    pub const ALL: [Self; 6] =
        [Self::UserNamespace, Self::OtherNamespaces, Self::Mounts, Self::Proc, Self::Redirect, Self::Overlay];

    /// Whether the features after it cannot be had without it.
    #[must_use]
    pub fn is_basic(self) -> bool {
        matches!(self, Self::UserNamespace | Self::OtherNamespaces | Self::Mounts)
    }
}

/// Tries a feature in a child.
///
/// # Errors
/// The kernel's error if the feature does not work.
pub fn try_feature(feature: Feature) -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let child = process::clone(Namespaces::USER_AND_PID, None, |_| match attempt(feature, uid, gid) {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO).clamp(1, 255),
    })?;
    match child.wait()? {
        Exit::Code(0) => Ok(()),
        Exit::Code(errno) => Err(io::Error::from_raw_os_error(errno)),
        // A filter of system calls answers with that where it does not with an error.
        Exit::Signal(libc::SIGSYS) => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
        Exit::Signal(signal) => Err(io::Error::other(format!("the attempt was ended by signal {signal}"))),
    }
}

/// Tries to start a plain child.
///
/// # Errors
/// The kernel's error if none can be started.
pub fn try_child() -> io::Result<()> {
    process::clone(Namespaces::NONE, None, |_| 0)?.wait().map(drop)
}

/// Whether tmpfs files can have user extended attributes, which overlayfs needs above an image. Linux 6.6 and later.
#[must_use]
pub fn memory_has_attributes() -> bool {
    let file = rustix::fs::memfd_create(c"lockgate", rustix::fs::MemfdFlags::CLOEXEC);
    file.is_ok_and(|file| {
        rustix::fs::fsetxattr(&file, c"user.lockgate", b"y", rustix::fs::XattrFlags::empty()).is_ok()
    })
}

fn attempt(feature: Feature, uid: u32, gid: u32) -> io::Result<()> {
    let same = |id| privilege::IdMap::one(id, id);
    privilege::write_id_maps("/proc/self", same(uid), same(gid))?;
    if feature == Feature::UserNamespace {
        return Ok(());
    }
    process::unshare(Namespaces::REST)?;
    process::unshare(Namespaces::CGROUP)?;
    if feature == Feature::OtherNamespaces {
        return Ok(());
    }
    mount::make_all_private()?;
    match feature {
        Feature::UserNamespace | Feature::OtherNamespaces => Ok(()),
        Feature::Mounts => {
            stand_in_memory()?;
            mount::pivot_to_current_directory()
        }
        Feature::Proc => mount::make(c"proc", &[], Flags::NO_SUID).map(drop),
        Feature::Redirect => {
            network::every_address_local().iter().try_for_each(network::Messages::send)?;
            nftables::lead_all_to(9999)
        }
        Feature::Overlay => overlay(),
    }
}

/// Mounts files in memory, and makes their root the current directory.
fn stand_in_memory() -> io::Result<()> {
    let memory = mount::make(c"tmpfs", &[], Flags::NO_DEV)?;
    mount::set_flags(memory.as_fd(), Flags::NO_SUID)?;
    mount::attach_over_root(memory.as_fd())?;
    Ok(rustix::process::fchdir(&memory)?)
}

/// Mounts an overlay, and replaces a directory of the lower layer by one of the same name. That takes extended attributes: without them in
/// memory the upper layer is on disk, and the mount alone is tried.
fn overlay() -> io::Result<()> {
    stand_in_memory()?;
    for name in ["lower", "lower/directory", "upper", "work"] {
        rustix::fs::mkdir(name, Mode::RWXU)?;
    }
    let options =
        [(c"lowerdir", c"lower"), (c"upperdir", c"upper"), (c"workdir", c"work"), (c"userxattr", c"")];
    let whole = mount::make(c"overlay", &options, Flags::NO_SUID.and(Flags::NO_DEV))?;
    if !memory_has_attributes() {
        return Ok(());
    }
    rustix::fs::unlinkat(&whole, "directory", AtFlags::REMOVEDIR)?;
    Ok(rustix::fs::mkdirat(&whole, "directory", Mode::RWXU)?)
}
