//! Probes of kernel features: each is tried in a short-lived child.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode};

use crate::mount::{self, Flags};
use crate::privilege::{self, IdMap};
use crate::process::{self, Child, Exit, Forked, Namespaces};
use crate::{descriptor, network, nftables};

/// A kernel feature that a sandbox needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// A user and a pid namespace, with the ids of a run mapped.
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
    let ids = Ids::of_a_run()?;
    let child = process::clone(Namespaces::USER_AND_PID, None, |forked| {
        match ids.take(forked).and_then(|()| attempt(feature)) {
            Ok(()) => 0,
            Err(error) => error.raw_os_error().unwrap_or(libc::EIO).clamp(1, 255),
        }
    })?;
    if let Err(error) = ids.give(&child) {
        drop(ids);
        child.wait()?;
        return Err(error);
    }
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

/// An id of no user, for the private ids of an attempt.
const PRIVATE: u32 = 0x7000_0000;

/// How an attempt comes by its ids. As a run does: to map one's own root inside takes `CAP_SETFCAP`, and to map others from outside does
/// not, user_namespaces(7).
enum Ids {
    /// The caller's own, which the attempt maps itself.
    Own(u32, u32),
    /// Private ones, which root maps from outside. The attempt waits at the second end until that is done.
    Private(OwnedFd, OwnedFd),
}

impl Ids {
    fn of_a_run() -> io::Result<Self> {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        if uid.is_root() && privilege::lacking_for_own_ids().is_empty() {
            return descriptor::message_pair().map(|(outside, inside)| Self::Private(outside, inside));
        }
        Ok(Self::Own(uid.as_raw(), gid.as_raw()))
    }

    /// The parent's part.
    fn give(&self, child: &Child) -> io::Result<()> {
        let Self::Private(outside, _) = self else { return Ok(()) };
        let map = [IdMap::one(0, PRIVATE)];
        privilege::write_foreign_id_maps(&format!("/proc/{}", child.pid().as_raw_nonzero()), &map, &map)?;
        descriptor::send(outside, b"mapped", &[])
    }

    /// The child's part.
    fn take(&self, forked: Forked) -> io::Result<()> {
        match self {
            Self::Own(uid, gid) => {
                privilege::write_id_maps("/proc/self", IdMap::one(*uid, *uid), IdMap::one(*gid, *gid))
            }
            Self::Private(_, inside) => {
                // Without the parent's end, so that it sees the parent's.
                forked.close_all_but(&[inside.as_fd()])?;
                match descriptor::receive(inside, &mut [0; 8])?.0 {
                    [] => Err(io::ErrorKind::UnexpectedEof.into()),
                    _ => privilege::become_user(0, 0),
                }
            }
        }
    }
}

/// Whether tmpfs files can have user extended attributes, which overlayfs needs above an image. Linux 6.6 and later.
#[must_use]
pub fn memory_has_attributes() -> bool {
    let file = rustix::fs::memfd_create(c"lockgate", rustix::fs::MemfdFlags::CLOEXEC);
    file.is_ok_and(|file| {
        rustix::fs::fsetxattr(&file, c"user.lockgate", b"y", rustix::fs::XattrFlags::empty()).is_ok()
    })
}

fn attempt(feature: Feature) -> io::Result<()> {
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
    mount::attach_root_to_be(memory.as_fd())?;
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
