//! What this kernel lets this process do, found by doing it in a child that is thrown away.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::mount::{self, Flags};
use crate::process::{self, Exit, Namespaces};
use crate::{network, nftables, privilege};

/// A feature a sandbox is built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// A user and a pid namespace, with the caller's own id mapped.
    UserNamespace,
    /// Mount, network, IPC, UTS and cgroup namespaces inside it.
    OtherNamespaces,
    /// A `/proc` of its own.
    Proc,
    /// Every address local, and an nftables redirect.
    Redirect,
    /// An overlay on files in memory, that can hide what is below it: what an image is run on.
    Overlay,
}

impl Feature {
    /// All of them, in the order in which each needs those before it.
    pub const ALL: [Self; 5] =
        [Self::UserNamespace, Self::OtherNamespaces, Self::Proc, Self::Redirect, Self::Overlay];
}

/// Whether a feature works here: tried for real, in a child.
///
/// # Errors
/// The error the kernel gave.
pub fn try_feature(feature: Feature) -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let child = process::clone(Namespaces::USER_AND_PID, None, || match attempt(feature, uid, gid) {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO).clamp(1, 255),
    })?;
    match child.wait()? {
        Exit::Code(0) => Ok(()),
        Exit::Code(errno) => Err(io::Error::from_raw_os_error(errno)),
        Exit::Signal(signal) => Err(io::Error::other(format!("the attempt was ended by signal {signal}"))),
    }
}

/// Whether files in memory can have attributes of a user's, which overlayfs needs above an image. Linux 6.6 and later.
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
    mount::make_all_private()?;
    match feature {
        Feature::UserNamespace | Feature::OtherNamespaces => Ok(()),
        Feature::Proc => mount::make(c"proc", &[], Flags::NO_SUID).map(drop),
        Feature::Redirect => {
            network::every_address_local().send()?;
            nftables::lead_all_to(9999)
        }
        Feature::Overlay => overlay(),
    }
}

/// A directory below is replaced by one of the same name: that takes the attributes that older kernels lack in memory.
fn overlay() -> io::Result<()> {
    let plain = Flags::NO_SUID.and(Flags::NO_DEV);
    let memory = mount::make(c"tmpfs", &[], plain)?;
    let base = rustix::fs::open("/tmp", OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
    mount::attach(memory.as_fd(), base.as_fd(), c"")?;
    rustix::process::fchdir(&memory)?;
    for name in ["lower", "lower/directory", "upper", "work"] {
        rustix::fs::mkdir(name, Mode::RWXU)?;
    }
    let options =
        [(c"lowerdir", c"lower"), (c"upperdir", c"upper"), (c"workdir", c"work"), (c"userxattr", c"")];
    let whole = mount::make(c"overlay", &options, plain)?;
    rustix::fs::unlinkat(&whole, "directory", AtFlags::REMOVEDIR)?;
    Ok(rustix::fs::mkdirat(&whole, "directory", Mode::RWXU)?)
}
