//! The kernel's list of mounts, proc_pid_mountinfo(5).

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, CWD, StatxFlags};

/// Returns the first mount below a folder, which may itself be a mount point.
pub(crate) fn first_below(folder: &Path) -> io::Result<Option<PathBuf>> {
    Ok(Mounts::read()?.first_below(folder))
}

/// Returns which of the folders that are shown contains one of the others, or is in one, by another name of its place, such as that of a
/// bind mount. All are resolved.
///
/// # Errors
/// When the kernel's list of mounts cannot be read.
pub fn first_by_another_name(
    mounts: &MountsOnceRead,
    others: &[PathBuf],
    shown: &[PathBuf],
) -> io::Result<Option<usize>> {
    let read = mounts.get()?;
    // What is not there yet will be made where its folder is.
    let mount_of_any = |other: &PathBuf| other.ancestors().find_map(|above| read.mount_at(above));
    let others: Vec<_> = others.iter().filter_map(|other| Some((mount_of_any(other)?, other))).collect();
    let shown: Vec<_> = shown.iter().map(|path| read.mount_at(path).map(|mount| (mount, path))).collect();
    let known = others.iter().chain(shown.iter().flatten()).map(|(mount, _)| *mount);
    let read = mounts.with(known)?;
    Ok(shown.iter().position(|path| {
        path.is_some_and(|(mount, path)| {
            // Within one mount their paths tell.
            others.iter().filter(|(its_mount, _)| *its_mount != mount).any(|(its_mount, other)| {
                match (read.place(mount, path), read.place(*its_mount, other)) {
                    (Some(shown), Some(other)) => shown.is_in(&other) || other.is_in(&shown),
                    _ => false,
                }
            })
        })
    }))
}

/// The size of most lists, in octets.
const USUAL_SIZE: usize = 16 * 1024;

/// The mounts of this mount namespace.
#[derive(Debug)]
pub struct Mounts(Vec<Mount>);

/// The mounts of this mount namespace, read once something is asked of them.
#[derive(Debug, Default)]
pub struct MountsOnceRead(RefCell<Option<Rc<Mounts>>>);

impl MountsOnceRead {
    /// Returns the mounts.
    ///
    /// # Errors
    /// When the kernel's list cannot be read.
    pub fn get(&self) -> io::Result<Rc<Mounts>> {
        let known = self.0.borrow().clone();
        known.map_or_else(|| self.read(), Ok)
    }

    /// The same, read anew if one of some mounts is not known: what is mounted as it is looked at is in no older list.
    pub(crate) fn with(&self, mut mounts: impl Iterator<Item = u64>) -> io::Result<Rc<Mounts>> {
        let known = self.get()?;
        if mounts.all(|mount| known.0.iter().any(|it| it.id == mount)) { Ok(known) } else { self.read() }
    }

    fn read(&self) -> io::Result<Rc<Mounts>> {
        let read = Rc::new(Mounts::read()?);
        *self.0.borrow_mut() = Some(Rc::clone(&read));
        Ok(read)
    }

    /// Returns the mounts of a list as the kernel writes it.
    #[must_use]
    pub fn of(list: &str) -> Self {
        Self(RefCell::new(Some(Rc::new(Mounts::parse(list.as_bytes())))))
    }
}

/// One mount of the list.
#[derive(Debug)]
pub struct Mount {
    pub(crate) id: u64,
    /// Its mount point.
    pub at: PathBuf,
    /// Whether nothing can be written by way of it.
    pub is_read_only: bool,
    /// Whether the kernel leaves it out of a tree that is cloned.
    is_unbindable: bool,
    is_of_mergerfs: bool,
    /// What of its file system is mounted, if the file system tells.
    pub root: Option<Place>,
}

/// A place in a file system, wherever that is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file system, as the list writes its device.
    pub device: String,
    /// The path in it.
    pub path: PathBuf,
}

impl Mounts {
    pub(crate) fn read() -> io::Result<Self> {
        // The file tells no size. Without room from the beginning it would be read in many small parts.
        let mut list = Vec::with_capacity(USUAL_SIZE);
        File::open("/proc/self/mountinfo")?.read_to_end(&mut list)?;
        Ok(Self::parse(&list))
    }

    pub(crate) fn parse(list: &[u8]) -> Self {
        Self(list.split(|octet| *octet == b'\n').filter_map(Mount::parse).collect())
    }

    /// Returns the mounts below a folder, but none at the folder itself.
    pub(crate) fn below(&self, folder: &Path) -> impl Iterator<Item = &Mount> {
        self.0.iter().filter(move |mount| mount.at.starts_with(folder) && mount.at != folder)
    }

    /// Returns those of them that no other mount lies over.
    pub fn seen_below(&self, folder: &Path) -> impl Iterator<Item = &Mount> {
        self.below(folder).filter(|mount| !mount.is_hidden())
    }

    /// Returns the first of all of them, whatever the folder is called.
    pub(crate) fn first_below(&self, folder: &Path) -> Option<PathBuf> {
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
        self.below(&folder).next().map(|mount| mount.at.clone())
    }

    /// Returns the mount points of the writable mounts below a folder.
    pub(crate) fn writable_below(&self, folder: &Path) -> impl Iterator<Item = &Path> {
        self.below(folder).filter(|mount| !mount.is_read_only).map(|mount| mount.at.as_path())
    }

    /// Whether one of them, wherever it is, is of mergerfs.
    pub(crate) fn have_mergerfs(&self) -> bool {
        self.0.iter().any(|mount| mount.is_of_mergerfs)
    }

    /// Returns the mount points of mergerfs at and below a folder.
    pub(crate) fn of_mergerfs_in(&self, folder: &Path) -> impl Iterator<Item = &Path> {
        let is_one = move |mount: &&Mount| mount.is_of_mergerfs && mount.at.starts_with(folder);
        self.0.iter().filter(is_one).map(|mount| mount.at.as_path())
    }

    /// Returns the first mount below a folder that shows a place.
    pub(crate) fn first_that_shows(&self, place: &Place, folder: &Path) -> Option<&Path> {
        let shows = |mount: &&Mount| mount.root.as_ref().is_some_and(|root| place.is_in(root));
        self.below(folder).find(shows).map(|mount| mount.at.as_path())
    }

    /// Whether one of them, wherever it is, is unbindable.
    pub(crate) fn have_unbindable(&self) -> bool {
        self.0.iter().any(|mount| mount.is_unbindable)
    }

    /// Returns the mount point of the unbindable mount that a path leads into, or of the first below it.
    pub(crate) fn first_unbindable(&self, path: &Path) -> Option<&Path> {
        let own = self.mount_at(path).and_then(|id| self.0.iter().find(|mount| mount.id == id));
        let all = own.into_iter().chain(self.seen_below(path));
        all.filter(|mount| mount.is_unbindable).map(|mount| mount.at.as_path()).next()
    }

    /// Returns the place of what a path leads to.
    #[must_use]
    pub fn place_of(&self, path: &Path) -> Option<Place> {
        self.place(mount_of(path)?, path)
    }

    /// Returns the mount that a path leads into. Of a mount point that cannot be looked at, the list tells.
    fn mount_at(&self, path: &Path) -> Option<u64> {
        let listed = || self.0.iter().rev().find(|mount| mount.at == path).map(|mount| mount.id);
        mount_of(path).or_else(listed)
    }

    /// Returns the place of a path that leads into a mount.
    pub(crate) fn place(&self, mount: u64, path: &Path) -> Option<Place> {
        let mount = self.0.iter().find(|it| it.id == mount)?;
        let root = mount.root.as_ref()?;
        let within = path.strip_prefix(&mount.at).ok()?;
        let path = root.path.components().chain(within.components()).collect();
        Some(Place { device: root.device.clone(), path })
    }
}

impl Place {
    /// Whether it is another place, or in it.
    #[must_use]
    pub fn is_in(&self, other: &Self) -> bool {
        self.device == other.device && self.path.starts_with(&other.path)
    }
}

/// Returns the mount that a path leads into, if the kernel tells. Nothing is mounted for the question.
pub(crate) fn mount_of(path: &Path) -> Option<u64> {
    let found = rustix::fs::statx(CWD, path, AtFlags::NO_AUTOMOUNT, StatxFlags::MNT_ID).ok()?;
    (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
}

impl Mount {
    /// Whether another mount lies over it.
    fn is_hidden(&self) -> bool {
        mount_of(&self.at).is_some_and(|found| found != self.id)
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let text = |field: &[u8]| std::str::from_utf8(field).ok().map(str::to_owned);
        let mut fields = line.split(|octet| *octet == b' ');
        let id = text(fields.next()?)?.parse().ok()?;
        let device = text(fields.nth(1)?)?;
        let path = unescaped(fields.next()?);
        let at = unescaped(fields.next()?);
        let is_read_only = fields.next()?.split(|octet| *octet == b',').any(|option| option == b"ro");
        let mut is_unbindable = false;
        let optional = |field: &&[u8]| {
            is_unbindable |= *field == b"unbindable";
            *field != b"-"
        };
        let kind = fields.skip_while(optional).nth(1)?;
        // NFS writes `/` for whatever is mounted.
        let root = (!kind.starts_with(b"nfs")).then_some(Place { device, path });
        let is_of_mergerfs = kind == b"fuse.mergerfs";
        Some(Self { id, at, is_read_only, is_unbindable, is_of_mergerfs, root })
    }
}

/// Decodes a path of the list, in which the kernel writes blanks, line ends and backslashes as three octal digits.
fn unescaped(place: &[u8]) -> PathBuf {
    let mut octets = Vec::with_capacity(place.len());
    let mut rest = place;
    while let Some((octet, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *octet == b'\\');
        let number = digits.and_then(|it| u8::from_str_radix(std::str::from_utf8(it).ok()?, 8).ok());
        octets.push(number.unwrap_or(*octet));
        rest = if number.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(octets).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_found_where_it_or_a_folder_around_it_is_mounted() {
        let list = b"22 1 0:21 / / rw - ext4 /dev/x rw\n\
            23 22 0:25 / /run rw - tmpfs none rw\n\
            24 22 0:25 /docker.sock /srv/a/x/sock rw - tmpfs none rw\n\
            25 22 0:25 / /srv/b/run rw - tmpfs none rw\n\
            26 22 0:25 /other /srv/c/run rw - tmpfs none rw\n\
            27 22 0:26 / /srv/d/run rw - tmpfs none rw\n";
        let mounts = Mounts::parse(list);
        let socket = Place { device: "0:25".into(), path: "/docker.sock".into() };
        for (folder, found) in [
            ("/srv/a", Some("/srv/a/x/sock")),
            ("/srv/b", Some("/srv/b/run")),
            ("/srv/c", None),
            ("/srv/d", None),
            ("/srv/b/run", None),
        ] {
            assert_eq!(mounts.first_that_shows(&socket, Path::new(folder)), found.map(Path::new), "{folder}");
        }
    }

    #[test]
    fn what_lies_below_is_found_and_nothing_else() {
        let list = b"22 1 0:21 / / rw - ext4 /dev/x rw\n\
            23 22 0:22 / /srv/work rw - tmpfs none rw\n\
            24 22 0:23 / /srv/work-2/a rw - tmpfs none rw\n\
            25 23 0:24 / /srv/work/a\\040b\\134 rw - tmpfs none rw\n";
        let find = |folder: &str| Mounts::parse(list).below(Path::new(folder)).next().map(|it| it.at.clone());
        assert_eq!(find("/srv/work"), Some("/srv/work/a b\\".into()));
        assert_eq!(find("/srv/work/a b\\"), None);
        assert_eq!(find("/srv/wor"), None);
        assert!(find("/srv").is_some());
        // This machine's own mounts.
        assert!(first_below(Path::new("/")).unwrap().is_some_and(|place| place != Path::new("/")));
    }
}
