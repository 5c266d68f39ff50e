//! Checks from inside the container, before the command begins, that an overlay the engine mounted is the one it was asked for: its
//! upper directory is the one the run prepared, its lower directory the one the shim's parent opened.
//!
//! The lower directory is also mounted by itself, and its identity is proven; the overlay must show the same entries. A directory that
//! somebody put in its place for the moment of the mount has others, since only the kernel sets change times.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::plan::ids::MappedId;

/// How many entries of a directory are compared, and how many attempts a directory that keeps changing gets.
const MOST: usize = 1024;
const ATTEMPTS: usize = 3;

/// An overlay that an engine was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OverlayRequest {
    pub(super) place: PathBuf,
    pub(super) below: PathBuf,
    /// Relative paths at which other mounts cover it.
    pub(super) covered: Vec<PathBuf>,
    /// The identity of the upper directory, which the overlay's root shares.
    pub(super) above: FileIdentity,
}

impl OverlayRequest {
    /// Refuses an overlay whose upper directory is not the run's and the command's own, or whose lower directory is not `below`.
    pub(super) fn must_hold(&self) -> Result<(), String> {
        let at = |error: io::Error| format!("{}: {error}", self.place.display());
        let found = FileIdentity::of(&self.place).map_err(at)?;
        let own = rustix::process::geteuid().as_raw();
        if found.as_ref().is_some_and(|found| found.owner.0 != own) {
            let why = "what is written would be somebody else's, as where an engine maps users";
            return Err(format!("{}: {why}", self.place.display()));
        }
        if found.as_ref() != Some(&self.above) {
            return Err(format!("{} is not kept where it should be", self.place.display()));
        }
        // The directory may be in use on the host: a change between two reads is a reason to try again.
        for _ in 0..ATTEMPTS {
            if self.is_same(Path::new("")).map_err(at)? {
                return Ok(());
            }
        }
        Err(format!(
            "{} is not what was declared: it was exchanged while the run began",
            self.place.display()
        ))
    }

    /// Whether both show the same entries in a directory, except covered ones. A directory that this user may not read is an error,
    /// so this discloses nothing new.
    fn is_same(&self, folder: &Path) -> io::Result<bool> {
        let is_covered = |path: &PathBuf| self.covered.contains(path);
        let entries = |of: &Path| match std::fs::read_dir(of.join(folder)) {
            // It may exist only as the way to a covered path.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
            Ok(list) => {
                let named =
                    |entry: io::Result<std::fs::DirEntry>| entry.map(|entry| folder.join(entry.file_name()));
                list.take(MOST).map(named).collect::<io::Result<Vec<_>>>()
            }
        };
        let (here, there) = (entries(&self.place)?, entries(&self.below)?);
        if here.iter().all(is_covered) && !there.iter().all(is_covered) {
            return Ok(false);
        }
        for path in here.iter().filter(|path| !is_covered(path)) {
            let is_way = self.covered.iter().any(|covered| covered.starts_with(path));
            let is_same = match is_way {
                true => self.is_same(path)?,
                false => {
                    FileIdentity::of(&self.place.join(path))? == FileIdentity::of(&self.below.join(path))?
                }
            };
            if !is_same {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The attributes of a file that an overlay passes through. Not the inode number: a directory's differs if the layers are on two
/// file systems.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileIdentity {
    changed: (i64, i64),
    modified: (i64, i64),
    size: u64,
    owner: (u32, u32),
    mode: u32,
}

impl FileIdentity {
    /// Returns the identity of a file, or `None` if it does not exist.
    pub(super) fn of(path: &Path) -> io::Result<Option<Self>> {
        match std::fs::symlink_metadata(path) {
            Ok(it) => Ok(Some(Self {
                changed: (it.ctime(), it.ctime_nsec()),
                modified: (it.mtime(), it.mtime_nsec()),
                size: it.size(),
                owner: (it.uid(), it.gid()),
                mode: it.mode(),
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Translates the owner to the ids inside.
    pub(super) fn seen_by(self, uid: MappedId, gid: MappedId) -> Self {
        let inside = |id, map: MappedId| if id == map.outside { map.inside } else { id };
        Self { owner: (inside(self.owner.0, uid), inside(self.owner.1, gid)), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the request for an overlay at `place` over `below`.
    fn asked(folder: &Path, place: &str) -> OverlayRequest {
        let (place, below) = (folder.join(place), folder.join("below"));
        OverlayRequest {
            above: FileIdentity::of(&place).unwrap().unwrap(),
            place,
            below,
            covered: Vec::new(),
        }
    }

    #[test]
    fn what_is_not_the_folder_is_told_from_it() {
        let folder = tempfile::tempdir().unwrap();
        for place in ["below", "like", "empty"] {
            std::fs::create_dir(folder.path().join(place)).unwrap();
        }
        // Hard links share all compared attributes: a directory of them counts as the same.
        std::fs::write(folder.path().join("below/file"), "one").unwrap();
        std::fs::hard_link(folder.path().join("below/file"), folder.path().join("like/file")).unwrap();
        assert_eq!(asked(folder.path(), "like").must_hold(), Ok(()));
        // The same name, size, mode, owner and time of change to the content: the kernel's own time is another.
        std::fs::create_dir(folder.path().join("forged")).unwrap();
        let (file, forged) = (folder.path().join("below/file"), folder.path().join("forged/file"));
        std::fs::copy(&file, &forged).unwrap();
        let modified = std::fs::metadata(&file).unwrap().modified().unwrap();
        std::fs::File::options().write(true).open(&forged).unwrap().set_modified(modified).unwrap();
        for other in ["forged", "empty"] {
            assert!(asked(folder.path(), other).must_hold().is_err(), "{other}");
        }
        std::fs::write(folder.path().join("like/more"), "").unwrap();
        assert!(asked(folder.path(), "like").must_hold().is_err(), "there is more than in the folder");
        let over = |path: &str| OverlayRequest { covered: vec![path.into()], ..asked(folder.path(), "like") };
        assert_eq!(over("more").must_hold(), Ok(()), "it is the place of something else");
        std::fs::remove_file(folder.path().join("like/more")).unwrap();
        std::fs::create_dir_all(folder.path().join("like/way/to")).unwrap();
        assert_eq!(over("way/to").must_hold(), Ok(()));
        std::fs::write(folder.path().join("like/way/beside"), "").unwrap();
        assert!(over("way/to").must_hold().is_err(), "there is more on the way to it");
        std::fs::remove_dir_all(folder.path().join("like/way")).unwrap();
        let elsewhere =
            OverlayRequest { above: asked(folder.path(), "forged").above, ..asked(folder.path(), "like") };
        assert!(elsewhere.must_hold().is_err());
    }

    #[test]
    fn a_folder_is_the_same_where_its_owner_has_another_number() {
        let folder = tempfile::tempdir().unwrap();
        let here = FileIdentity::of(folder.path()).unwrap().unwrap();
        let (uid, gid) = here.owner;
        let root = |outside| MappedId { inside: 0, outside };
        let seen = here.clone().seen_by(root(uid), root(gid));
        assert_eq!(seen, FileIdentity { owner: (0, 0), ..here.clone() });
        let others = here.clone().seen_by(root(uid + 1), root(gid + 1));
        assert_eq!(others, here, "whoever is meant by no pair is not taken for one");
    }
}
