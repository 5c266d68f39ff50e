//! Giving privileges up: identities, capabilities, core dumps. Nothing here gives one back.

use std::io;

use rustix::fs::{Mode, OFlags};
use rustix::process::DumpableBehavior;

/// The highest capability number a kernel may know; unknown ones are refused by the kernel and end the loop.
const CAPABILITIES: libc::c_ulong = 64;

/// Header and data of `capset(2)`, version 3.
#[repr(C)]
struct CapHeader {
    version: u32,
    pid: libc::c_int,
}

/// `_LINUX_CAPABILITY_VERSION_3`, linux/capability.h.
const CAP_VERSION_3: u32 = 0x2008_0522;

/// Drops every capability from every set, bounding set included, so that no exec brings one back.
///
/// # Errors
/// Whatever `prctl(2)` or `capset(2)` gives.
pub fn drop_capabilities() -> io::Result<()> {
    for capability in 0..CAPABILITIES {
        // SAFETY: `prctl` with these arguments only clears one bit of this thread's bounding set.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } != 0 {
            match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EINVAL) => break, // past the last one
                error if error.raw_os_error() == Some(libc::EPERM) => break,  // has none to drop
                error => return Err(error),
            }
        }
    }
    // SAFETY: as above; it clears the ambient set.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    let header = CapHeader { version: CAP_VERSION_3, pid: 0 };
    let none = [0u32; 6];
    // SAFETY: version 3 reads a header and two triples of u32, which these are.
    match unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether this process may change links, routes and packet filters of the network it is in.
#[must_use]
pub fn may_configure_network() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN))
}

/// What root itself may lack here of the rights to give a sandbox ids of its own, and files to those: write foreign ids into maps, and map
/// owners on mounts. user_namespaces(7), mount_setattr(2)
#[must_use]
pub fn lacking_for_own_ids() -> Vec<&'static str> {
    use rustix::thread::{CapabilitySet, capabilities};
    let has = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let needs = [
        ("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN),
        ("CAP_SETUID", CapabilitySet::SETUID),
        ("CAP_SETGID", CapabilitySet::SETGID),
    ];
    needs.into_iter().filter(|(_, right)| !has.contains(*right)).map(|(name, _)| name).collect()
}

/// No exec from here on can raise privileges.
///
/// # Errors
/// Whatever `prctl(2)` gives.
pub fn no_new_privileges() -> io::Result<()> {
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// No core dump, no ptrace by processes of the same identity, and `/proc/self` belongs to root.
///
/// # Errors
/// Whatever `prctl(2)` gives.
pub fn undumpable() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// The opposite, for the moment in which somebody else writes the id maps of this process: who may not look into it may not.
///
/// # Errors
/// Whatever `prctl(2)` gives.
pub fn dumpable() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?)
}

/// Takes on an unprivileged identity for good, with no supplementary groups. For a process that root started.
///
/// # Errors
/// Whatever `setgroups(2)`, `setresgid(2)` or `setresuid(2)` gives.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: an empty list is read from no memory; the identities are plain numbers.
    let results = unsafe {
        [libc::setgroups(0, std::ptr::null()), libc::setresgid(gid, gid, gid), libc::setresuid(uid, uid, uid)]
    };
    if results.iter().all(|r| *r == 0) { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// One line of an id map: the first id inside a user namespace, the one it is outside, and how many follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdMap {
    /// Inside.
    pub inside: u32,
    /// Outside.
    pub outside: u32,
    /// How many.
    pub count: u32,
}

impl IdMap {
    /// A single id.
    #[must_use]
    pub const fn one(inside: u32, outside: u32) -> Self {
        Self { inside, outside, count: 1 }
    }

    fn line(self) -> String {
        format!("{} {} {}", self.inside, self.outside, self.count)
    }
}

/// Writes the id maps of a user namespace through the `/proc` directory of a process in it.
///
/// An unprivileged writer can map its own ids only, and must give up `setgroups(2)` first.
///
/// # Errors
/// Whatever opening or writing the three files gives.
pub fn write_id_maps(proc_dir: &str, uid: IdMap, gid: IdMap) -> io::Result<()> {
    write(&format!("{proc_dir}/setgroups"), "deny")?;
    write_foreign_id_maps(proc_dir, uid, gid)
}

/// Writes the id maps of a user namespace from outside, with the privilege to map any id.
///
/// # Errors
/// Whatever opening or writing the two files gives.
pub fn write_foreign_id_maps(proc_dir: &str, uid: IdMap, gid: IdMap) -> io::Result<()> {
    write(&format!("{proc_dir}/gid_map"), &gid.line())?;
    write(&format!("{proc_dir}/uid_map"), &uid.line())
}

/// One `write(2)` to an existing file: the kernel's own files take a value whole or not at all.
fn write(path: &str, value: &str) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, value.as_bytes())?;
    Ok(())
}
