//! The way to a file, as the kernel looks it up. Whoever may write to a folder on it can exchange what is next: another file is there then.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

/// The most links of a path that are followed, as in path_resolution(7).
const MOST_LINKS: usize = 40;

/// What the kernel meets as it looks a path up. Each is told by its real path.
#[derive(Default)]
pub(crate) struct Way {
    /// Outermost first.
    pub(crate) folders: Vec<PathBuf>,
    pub(crate) links: Vec<PathBuf>,
    /// The device and inode number of each folder.
    identities: Vec<(u64, u64)>,
    /// Which of the folders a name is looked up in, or are where the way ends. To go up from a folder takes no name in it.
    looked_in: Vec<usize>,
}

impl Way {
    /// Follows an absolute path to a file, component by component, those of the targets of links included.
    pub(crate) fn along(named: &Path) -> io::Result<Self> {
        let mut way = Self::default();
        way.follow(named)?;
        Ok(way)
    }

    /// The same, as far as there is something.
    pub(crate) fn towards(named: &Path) -> Self {
        let mut way = Self::default();
        let _ = way.follow(named);
        way
    }

    /// Whether it leads through a folder by a name in it, or to the folder, under any name.
    pub(crate) fn leads_through(&self, folder: &Path) -> bool {
        let is_it = |about: Metadata| {
            self.looked_in.iter().any(|folder| self.identities.get(*folder) == Some(&identity(&about)))
        };
        folder.metadata().is_ok_and(is_it)
    }

    fn follow(&mut self, named: &Path) -> io::Result<()> {
        let mut at = PathBuf::from("/");
        let mut left: VecDeque<OsString> = parts(named).collect();
        while let Some(part) = left.pop_front() {
            match Path::new(&part).components().next() {
                Some(Component::RootDir) => at = "/".into(),
                Some(Component::ParentDir) => _ = at.pop(),
                Some(Component::Normal(name)) => {
                    self.looks_in(&at);
                    let place = at.join(name);
                    let about = place.symlink_metadata()?;
                    if about.is_symlink() {
                        let target = place.read_link()?;
                        parts(&target).rev().for_each(|part| left.push_front(part));
                        self.links.push(place);
                        if self.links.len() > MOST_LINKS {
                            return Err(Errno::LOOP.into());
                        }
                        continue;
                    }
                    if about.is_dir() && !self.folders.contains(&place) {
                        self.folders.push(place.clone());
                        self.identities.push(identity(&about));
                    }
                    at = place;
                }
                _ => {}
            }
        }
        self.looks_in(&at);
        Ok(())
    }

    fn looks_in(&mut self, folder: &Path) {
        let number = self.folders.iter().position(|known| known == folder);
        self.looked_in.extend(number.filter(|number| !self.looked_in.contains(number)));
    }
}

fn identity(about: &Metadata) -> (u64, u64) {
    (about.dev(), about.ino())
}

fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().map(|part| part.as_os_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_leads_through_the_folders_of_its_links() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for made in ["versions/v1/state", "dotfiles", "home", "beside"] {
            std::fs::create_dir_all(at(made)).unwrap();
        }
        for (link, target) in [
            ("home/state", "../dotfiles/current/state"),
            ("dotfiles/current", "../versions/v1"),
            ("other-name", "dotfiles"),
            ("nowhere", "dotfiles/none/further"),
        ] {
            std::os::unix::fs::symlink(target, at(link)).unwrap();
        }
        for named in ["home/state", "home/state/lockgate/that/is/not/there"] {
            let way = Way::towards(&at(named));
            for through in
                ["", "home", "dotfiles", "other-name", "versions", "versions/v1", "versions/v1/state"]
            {
                assert!(way.leads_through(&at(through)), "{named}: {through}");
            }
            assert!(!way.leads_through(&at("beside")) && !way.leads_through(&at("none")));
        }
        // From where a name of it was looked up, or not.
        let up = Way::towards(&at("beside/../home/state/../../../dotfiles/../beside/none"));
        assert!(up.leads_through(&at("versions/v1")) && up.leads_through(&at("beside")));
        let up = Way::towards(&at("beside/../dotfiles"));
        assert!(!up.leads_through(&at("beside")) && up.leads_through(&at("dotfiles")));
        assert!(Way::along(&at("home/state/none")).is_err());
        let nowhere = Way::towards(&at("nowhere"));
        assert!(nowhere.leads_through(&at("dotfiles")) && !nowhere.leads_through(&at("versions")));
    }
}
