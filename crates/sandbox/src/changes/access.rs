//! Who may read and write a file beside its owner: its group and its access control list, acl(5).

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{Gid, XattrFlags};
use rustix::io::Errno;

/// The attribute of an access control list.
const ACL: &std::ffi::CStr = c"system.posix_acl_access";
/// The longest that is copied: the most that the kernel takes.
const LONGEST: usize = 64 << 10;

/// Gives `new` the group and the list of `old`. Returns whether the group bits of the old mode may be given as well: otherwise they would
/// be another group's, or, where there was a list, no group's but the most that it grants.
pub(super) fn keep(old: &File, new: &File) -> bool {
    let group = |file: &File| file.metadata().map(|it| it.gid());
    let (Ok(was), Ok(is)) = (group(old), group(new)) else { return false };
    let has_group = was == is || rustix::fs::fchown(new, None, Some(Gid::from_raw(was))).is_ok();
    let mut list = vec![0; LONGEST];
    let has_list = match rustix::fs::fgetxattr(old, ACL, &mut list) {
        Ok(length) => rustix::fs::fsetxattr(new, ACL, &list[..length], XattrFlags::empty()).is_ok(),
        // There is none, or the file system has none.
        Err(Errno::NODATA | Errno::OPNOTSUPP) => true,
        Err(_) => false,
    };
    has_group && has_list
}
