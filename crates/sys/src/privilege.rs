//! Dropping privileges: identities, capabilities, core dumps. Also the id maps of user namespaces.

use std::io;

use rustix::fs::{Mode, OFlags};
use rustix::process::DumpableBehavior;

/// One more than the highest capability number that a kernel can know. The kernel refuses an unknown one, which ends the loop.
const CAPABILITIES: libc::c_ulong = 64;

/// Header and data of `capset(2)`, version 3.
#[repr(C)]
struct CapHeader {
    version: u32,
    pid: libc::c_int,
}

/// `_LINUX_CAPABILITY_VERSION_3`, linux/capability.h.
const CAP_VERSION_3: u32 = 0x2008_0522;

/// Drops every capability from every set, so that no exec regains one; from the bounding set if it has the right to.
///
/// # Errors
/// When `prctl(2)` or `capset(2)` fails.
pub fn drop_capabilities() -> io::Result<()> {
    match drop_bounding_set() {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {} // has none to drop
        dropped => dropped?,
    }
    // SAFETY: `prctl` with these arguments only clears this thread's ambient set.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    let header = CapHeader { version: CAP_VERSION_3, pid: 0 };
    let none = [0u32; 6];
    // SAFETY: version 3 reads a header and two triples of u32, which these are.
    match unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Drops every capability from the bounding set alone: those in use stay. A root that becomes another user does it before, since it loses
/// the right to with its other capabilities.
///
/// # Errors
/// When `prctl(2)` fails, as without `CAP_SETPCAP`.
pub fn drop_bounding_set() -> io::Result<()> {
    for capability in 0..CAPABILITIES {
        // SAFETY: `prctl` with these arguments only clears one bit of this thread's bounding set.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } != 0 {
            let error = io::Error::last_os_error();
            let is_past_the_last = error.raw_os_error() == Some(libc::EINVAL);
            return if is_past_the_last { Ok(()) } else { Err(error) };
        }
    }
    Ok(())
}

/// Whether this process may change links, routes and packet filters of its network namespace.
#[must_use]
pub fn may_configure_network() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN))
}

/// Returns the capabilities that this process lacks to give a sandbox private ids: to write foreign ids into id maps, and to map owners
/// on mounts. Root in a container may lack them. user_namespaces(7), mount_setattr(2)
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

/// Sets `no_new_privs`: no later exec can gain privileges.
///
/// # Errors
/// When `prctl(2)` fails.
pub fn no_new_privileges() -> io::Result<()> {
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// Makes this process undumpable: no core dump, no ptrace by processes of the same identity, and `/proc/self` belongs to root.
///
/// # Errors
/// When `prctl(2)` fails.
pub fn undumpable() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Makes this process dumpable: writing the id maps of one takes access to its `/proc/PID`, which one that is not does not give, proc(5).
///
/// # Errors
/// When `prctl(2)` fails.
pub fn dumpable() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?)
}

/// Changes to an unprivileged identity for good, without supplementary groups. For a process that root started.
///
/// # Errors
/// When `setgroups(2)`, `setresgid(2)` or `setresuid(2)` fails.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: the kernel reads no memory for an empty list; the identities are plain numbers.
    let results = unsafe {
        [libc::setgroups(0, std::ptr::null()), libc::setresgid(gid, gid, gid), libc::setresuid(uid, uid, uid)]
    };
    if results.iter().all(|r| *r == 0) { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets the supplementary groups of this thread. The kernel refuses an id that the user namespace does not map, so no group of the host's
/// comes in by its number.
///
/// # Errors
/// When `setgroups(2)` fails.
pub fn set_groups(groups: &[u32]) -> io::Result<()> {
    let groups: Vec<_> = groups.iter().map(|gid| rustix::fs::Gid::from_raw(*gid)).collect();
    Ok(rustix::thread::set_thread_groups(&groups)?)
}

/// One line of an id map: consecutive ids of a user namespace, and the ids that they are outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdMap {
    /// The first id inside.
    pub inside: u32,
    /// The first id outside.
    pub outside: u32,
    /// The number of ids.
    pub count: u32,
}

impl IdMap {
    /// The map of a single id.
    #[must_use]
    pub const fn one(inside: u32, outside: u32) -> Self {
        Self { inside, outside, count: 1 }
    }

    fn line(self) -> String {
        format!("{} {} {}\n", self.inside, self.outside, self.count)
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
    write_foreign_id_maps(proc_dir, &[uid], &[gid])
}

/// Writes the id maps of a user namespace from outside, with the privilege to map any id.
///
/// # Errors
/// Whatever opening or writing the two files gives.
pub fn write_foreign_id_maps(proc_dir: &str, uids: &[IdMap], gids: &[IdMap]) -> io::Result<()> {
    let lines = |maps: &[IdMap]| maps.iter().map(|map| map.line()).collect::<String>();
    write(&format!("{proc_dir}/gid_map"), &lines(gids))?;
    write(&format!("{proc_dir}/uid_map"), &lines(uids))
}

/// Writes to an existing file by one `write(2)`: the kernel's files take a value whole or not at all.
fn write(path: &str, value: &str) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::retry_on_intr(|| rustix::io::write(&file, value.as_bytes()))?;
    Ok(())
}
