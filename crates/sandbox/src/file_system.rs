//! The kinds of file systems: on some, files are changed and dated by this machine's kernel alone. On the others a server or another machine
//! does it too, by its own clock, and the kernel here may not hear of it.

use std::ffi::CStr;
use std::os::fd::AsFd;

use rustix::io::Errno;

/// The kinds that are this machine's alone, by their numbers in `linux/magic.h`: ext4, XFS, Btrfs, tmpfs, overlayfs, F2FS, ZFS, bcachefs,
/// ramfs, FAT, exFAT, NTFS, JFS, NILFS, SquashFS, EROFS.
const OF_THIS_MACHINE: [u32; 16] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0x794c_7630,
    0xf2f5_2010,
    0x2fc1_2fc1,
    0xca45_1a4e,
    0x8584_58f6,
    0x4d44,
    0x2011_bab0,
    0x7366_746e,
    0x3153_464a,
    0x3434,
    0x7371_7368,
    0xe0f5_e1e2,
];

/// The kinds that find a file by a shortened name as well, which they do not list: FAT and NTFS.
const WITH_SHORT_NAMES: [u32; 2] = [0x4d44, 0x7366_746e];

/// `FUSE_SUPER_MAGIC`, statfs(2).
const FUSE: u32 = 0x6573_5546;

/// An attribute of every file where the server is NTFS-3G, which has short names too and is of FUSE's kind.
const OF_NTFS_3G: &CStr = c"system.ntfs_attrib";

/// `PROC_SUPER_MAGIC`, statfs(2).
const PROC: u32 = 0x9fa0;

/// Whether an open file is the kernel's, about processes and itself.
///
/// # Errors
/// When its file system does not tell.
pub(crate) fn is_proc(opened: impl AsFd) -> rustix::io::Result<bool> {
    Ok(i64::from(PROC) == rustix::fs::fstatfs(opened)?.f_type)
}

/// Whether a folder lists every name by which something is found in it.
pub(crate) fn lists_what_is_found(folder: impl AsFd) -> bool {
    rustix::fs::fstatfs(folder).is_ok_and(|about| is_listed(about.f_type) && !is_short(about.f_type))
}

/// Whether what is in a folder may have shortened names. NTFS-3G lets programs choose them: `system.ntfs_dos_name`.
pub(crate) fn has_short_names(folder: impl AsFd) -> bool {
    let answers = || rustix::fs::fgetxattr(&folder, OF_NTFS_3G, &mut [0_u8; 8][..]);
    rustix::fs::fstatfs(&folder).is_ok_and(|about| {
        is_short(about.f_type)
            || i64::from(FUSE) == about.f_type && matches!(answers(), Ok(_) | Err(Errno::RANGE))
    })
}

/// Whether an open file is on a file system that is this machine's alone. One that is not known, as FUSE or NFS, may not be.
pub(crate) fn is_of_this_machine(opened: impl AsFd) -> bool {
    rustix::fs::fstatfs(opened).is_ok_and(|about| is_listed(about.f_type))
}

fn is_short(kind: i64) -> bool {
    WITH_SHORT_NAMES.iter().any(|short| i64::from(*short) == kind)
}

fn is_listed(kind: i64) -> bool {
    OF_THIS_MACHINE.iter().any(|listed| i64::from(*listed) == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_change_what_is_on_its_own() {
        // FUSE (virtiofs too), NFS, CIFS, SMB2, 9P, AFS, Ceph.
        for kind in [0x6573_5546, 0x6969, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997, 0x5346_414f, 0x00c3_6400] {
            assert!(!is_listed(kind), "{kind:#x}");
        }
        assert!(is_of_this_machine(std::fs::File::open(std::env::temp_dir()).unwrap()));
    }
}
