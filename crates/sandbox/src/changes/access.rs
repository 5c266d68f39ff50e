//! What a file keeps when another takes its place: who may read and write it beside its owner, which is its group and its access control
//! list, acl(5); and what programs of the user noted on it, xattr(7).

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{Gid, XattrFlags};
use rustix::io::Errno;

/// The attribute of an access control list.
const ACL: &CStr = c"system.posix_acl_access";
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

/// Gives `new` the attributes that programs of the user set on `old`, as far as its file system takes them: not those of an overlay.
///
/// # Errors
/// When they cannot be set there, as for lack of room.
pub(super) fn keep_attributes(old: &File, new: &File) -> io::Result<()> {
    let (mut names, mut value) = (vec![0; LONGEST], vec![0; LONGEST]);
    let listed = rustix::fs::flistxattr(old, &mut names[..]).unwrap_or_default();
    let of_user = |name: &&[u8]| name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
    for name in names[..listed].split_inclusive(|octet| *octet == 0).filter(of_user) {
        if let Ok(name) = CStr::from_bytes_with_nul(name)
            && let Ok(length) = rustix::fs::fgetxattr(old, name, &mut value[..])
        {
            match rustix::fs::fsetxattr(new, name, &value[..length], XattrFlags::empty()) {
                // The file system takes none, or none from this user.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file system with little room for attributes, which goes away with this value.
    struct Small(tempfile::TempDir);

    impl Small {
        /// Returns `None` where nothing may be mounted.
        fn mount() -> Option<Self> {
            let place = tempfile::tempdir().unwrap();
            let flags = rustix::mount::MountFlags::empty();
            // Attributes take the room of inodes there, tmpfs(5).
            rustix::mount::mount(c"tmpfs", place.path(), c"tmpfs", flags, c"size=64k,nr_inodes=10").ok()?;
            Some(Self(place))
        }

        fn file(&self, name: &str) -> File {
            File::create_new(self.0.path().join(name)).unwrap()
        }
    }

    impl Drop for Small {
        fn drop(&mut self) {
            let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
        }
    }

    #[test]
    fn an_attribute_without_room_is_not_lost_in_silence() {
        let Some(small) = Small::mount() else { return };
        let (old, new) = (small.file("old"), small.file("new"));
        let set = |number: u32| {
            let name = std::ffi::CString::new(format!("user.n{number}")).unwrap();
            rustix::fs::fsetxattr(&old, &*name, &[b'x'; 500], XattrFlags::empty())
        };
        match set(0) {
            // An older kernel's takes none.
            Err(Errno::OPNOTSUPP) => return,
            set => set.unwrap(),
        }
        keep_attributes(&old, &new).unwrap();
        let full = (1..1000).find_map(|number| set(number).err());
        assert_eq!(full, Some(Errno::NOSPC));
        let error = keep_attributes(&old, &new).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
    }
}
