//! The namespaces of the world and the capabilities inside them. A caller without `CAP_SYS_ADMIN` gets a user namespace in which it is
//! mapped to itself; a caller with it keeps the machine's ids, so that the product can still choose an unprivileged one for its run. The
//! command of an unprivileged caller must get no capability.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::{getegid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, LinkNameSpaceType, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, move_into_link_name_space, set_capabilities,
};

use crate::error::Error;
use crate::process::unshare;

/// The user namespace of the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Identity {
    /// The machine's: the caller is privileged.
    Machine,
    /// A new one, with the caller mapped to itself.
    Mapped,
}

/// The capabilities that `ip` and the mounts need.
const SET_UP: [CapabilitySet; 2] = [CapabilitySet::NET_ADMIN, CapabilitySet::SYS_ADMIN];

/// Leaves the machine's mount, process (for children) and network namespaces. The new network is the internet's.
pub(crate) fn leave() -> Result<Identity, Error> {
    let refused = |source: rustix::io::Errno| Error::Capabilities { source: source.into() };
    let privileged = capabilities(None).map_err(refused)?.effective.contains(CapabilitySet::SYS_ADMIN);
    let identity = if privileged { Identity::Machine } else { Identity::Mapped };
    let rooms = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWNET;
    match identity {
        Identity::Machine => {
            unshare(rooms).map_err(|source| Error::Unshare { what: "mount, process and network", source })?;
        }
        Identity::Mapped => {
            let (user, group) = (geteuid().as_raw(), getegid().as_raw());
            unshare(libc::CLONE_NEWUSER).map_err(|source| Error::Unshare { what: "user", source })?;
            map("/proc/self/setgroups", "deny".to_owned())?;
            map("/proc/self/uid_map", format!("{user} {user} 1"))?;
            map("/proc/self/gid_map", format!("{group} {group} 1"))?;
            unshare(rooms).map_err(|source| Error::Unshare { what: "mount, process and network", source })?;
        }
    }
    Ok(identity)
}

fn map(path: &'static str, text: String) -> Result<(), Error> {
    fs::write(path, text).map_err(|source| Error::MapIdentity { path, source })
}

/// Lets the programs this process starts set up links: without ambient capabilities, exec by a user other than 0 loses them all.
pub(crate) fn lend_capabilities(identity: Identity) -> Result<(), Error> {
    if identity == Identity::Machine {
        return Ok(());
    }
    let refused = |source: rustix::io::Errno| Error::Capabilities { source: source.into() };
    let mut sets = capabilities(None).map_err(refused)?;
    for capability in SET_UP {
        sets.inheritable |= capability;
    }
    set_capabilities(None, sets).map_err(refused)?;
    for capability in SET_UP {
        configure_capability_in_ambient_set(capability, true).map_err(refused)?;
    }
    Ok(())
}

/// Drops every capability of the user namespace, for this process and its descendants.
pub(crate) fn drop_capabilities(identity: Identity) -> Result<(), Error> {
    if identity == Identity::Machine {
        return Ok(());
    }
    let refused = |source: rustix::io::Errno| Error::Capabilities { source: source.into() };
    clear_ambient_capability_set().map_err(refused)?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .map_err(refused)
}

/// A network namespace that can be entered again.
pub(crate) struct Network {
    pub(crate) name: &'static str,
    pub(crate) descriptor: OwnedFd,
}

impl Network {
    /// Returns the network this process is in now.
    pub(crate) fn current(name: &'static str) -> Result<Self, Error> {
        let path = "/proc/self/ns/net";
        let descriptor = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|source| Error::File { path: path.into(), source: source.into() })?;
        Ok(Self { name, descriptor })
    }

    /// Makes a new and empty network, and enters it.
    pub(crate) fn fresh(name: &'static str) -> Result<Self, Error> {
        unshare(libc::CLONE_NEWNET).map_err(|source| Error::Unshare { what: "network", source })?;
        Self::current(name)
    }

    /// Enters this network again. Sockets opened before stay where they were opened.
    pub(crate) fn enter(&self) -> Result<(), Error> {
        move_into_link_name_space(self.descriptor.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|source| Error::Enter { namespace: self.name, source: source.into() })
    }
}
