//! Whether an overlay that an engine mounted is the one it was asked for, seen from inside, before the command begins: above what
//! the run prepared, below the folder that was opened on the other side.
//!
//! The folder is shown once more by itself, and proven to be that one; entry by entry the overlay must show the same. A folder that
//! somebody put in its place for the moment of the mount shows others: the kernel sets change times, and nobody else.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::plan::ids::MappedId;

/// How many entries of a folder are compared, and how often before one that goes on changing is refused.
const MOST: usize = 1024;
const LOOKS: usize = 3;

/// An overlay that an engine was asked for, as it must turn out to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Asked {
    pub(super) place: PathBuf,
    pub(super) below: PathBuf,
    /// Where other things are shown over it, from there.
    pub(super) covered: Vec<PathBuf>,
    /// What the directory above is, once the engine has mounted it: the overlay's own is the same.
    pub(super) above: Identity,
}

impl Asked {
    /// Looks whether it is: above what the run prepared, and the command's own; below what `below` has been proven to be.
    pub(super) fn must_hold(&self) -> Result<(), String> {
        let at = |error: io::Error| format!("{}: {error}", self.place.display());
        let found = Identity::of(&self.place).map_err(at)?;
        let own = rustix::process::geteuid().as_raw();
        if found.as_ref().is_some_and(|found| found.owner.0 != own) {
            let why = "what is written would be somebody else's, as where an engine maps users";
            return Err(format!("{}: {why}", self.place.display()));
        }
        if found.as_ref() != Some(&self.above) {
            return Err(format!("{} is not kept where it should be", self.place.display()));
        }
        // The folder may be worked in here meanwhile: what changes between two looks is looked at again.
        for _ in 0..LOOKS {
            if self.is_same(Path::new("")).map_err(at)? {
                return Ok(());
            }
        }
        Err(format!(
            "{} is not what was declared: it was exchanged while the run began",
            self.place.display()
        ))
    }

    /// Whether both show the same in a folder, but for what is covered. Who may not look into the folder itself is not shown it in
    /// this way either.
    fn is_same(&self, folder: &Path) -> io::Result<bool> {
        let is_covered = |path: &PathBuf| self.covered.contains(path);
        let entries = |of: &Path| match std::fs::read_dir(of.join(folder)) {
            // It may be on the way to what is shown, and there for that alone.
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
                false => Identity::of(&self.place.join(path))? == Identity::of(&self.below.join(path))?,
            };
            if !is_same {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// What an overlay passes on of a file. No inode's number: where the layers are on two file systems, that of a folder is another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    changed: (i64, i64),
    modified: (i64, i64),
    size: u64,
    owner: (u32, u32),
    mode: u32,
}

impl Identity {
    /// Nothing where nothing is.
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

    /// The same where ids are others: each pair is one inside, and what that is here.
    pub(super) fn seen_by(self, uid: MappedId, gid: MappedId) -> Self {
        let inside = |id, map: MappedId| if id == map.outside { map.inside } else { id };
        Self { owner: (inside(self.owner.0, uid), inside(self.owner.1, gid)), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two names of one folder, as an overlay and the folder below it are.
    fn asked(folder: &Path, place: &str) -> Asked {
        let (place, below) = (folder.join(place), folder.join("below"));
        Asked { above: Identity::of(&place).unwrap().unwrap(), place, below, covered: Vec::new() }
    }

    #[test]
    fn what_is_not_the_folder_is_told_from_it() {
        let folder = tempfile::tempdir().unwrap();
        for place in ["below", "like", "empty"] {
            std::fs::create_dir(folder.path().join(place)).unwrap();
        }
        // What hard links share is all that is compared: a folder of them is as good as the same one.
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
        let over = |path: &str| Asked { covered: vec![path.into()], ..asked(folder.path(), "like") };
        assert_eq!(over("more").must_hold(), Ok(()), "it is the place of something else");
        std::fs::remove_file(folder.path().join("like/more")).unwrap();
        std::fs::create_dir_all(folder.path().join("like/way/to")).unwrap();
        assert_eq!(over("way/to").must_hold(), Ok(()));
        std::fs::write(folder.path().join("like/way/beside"), "").unwrap();
        assert!(over("way/to").must_hold().is_err(), "there is more on the way to it");
        std::fs::remove_dir_all(folder.path().join("like/way")).unwrap();
        let elsewhere = Asked { above: asked(folder.path(), "forged").above, ..asked(folder.path(), "like") };
        assert!(elsewhere.must_hold().is_err());
    }

    #[test]
    fn a_folder_is_the_same_where_its_owner_has_another_number() {
        let folder = tempfile::tempdir().unwrap();
        let here = Identity::of(folder.path()).unwrap().unwrap();
        let (uid, gid) = here.owner;
        let root = |outside| MappedId { inside: 0, outside };
        let seen = here.clone().seen_by(root(uid), root(gid));
        assert_eq!(seen, Identity { owner: (0, 0), ..here.clone() });
        let others = here.clone().seen_by(root(uid + 1), root(gid + 1));
        assert_eq!(others, here, "whoever is meant by no pair is not taken for one");
    }
}
