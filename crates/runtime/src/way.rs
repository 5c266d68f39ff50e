//! The way to a file, as the kernel looks it up. Whoever may write to a folder on it can exchange what is next: another file is there then.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

use crate::looks::{Identity, Kind, Looks};

/// The most links of a path that are followed, as in path_resolution(7).
const MOST_LINKS: usize = 40;

/// What the kernel meets as it looks a path up. Each is told by its real path.
#[derive(Clone, Default)]
pub(crate) struct Way {
    /// Outermost first.
    pub(crate) folders: Vec<PathBuf>,
    pub(crate) links: Vec<PathBuf>,
    identities: Vec<Identity>,
    /// Which of the folders a name is looked up in, or are where the way ends. To go up from a folder takes no name in it.
    looked_in: Vec<usize>,
    /// Where it ends, by a path without links; what does not exist is as it was named.
    end: PathBuf,
    /// The last that exists of it, and each folder above that.
    reached: Vec<Identity>,
    /// Why it ends before what was named.
    cut: Option<Errno>,
}

impl Way {
    /// Follows an absolute path to a file, component by component, those of the targets of links included.
    pub(crate) fn along(named: &Path) -> io::Result<Self> {
        let way = Self::towards(named, &Looks::default());
        way.cut.map_or(Ok(way), |errno| Err(errno.into()))
    }

    /// The same, as far as there is something.
    pub(crate) fn towards(named: &Path, looks: &Looks) -> Self {
        let mut way = Self::default();
        let mut at = PathBuf::from("/");
        way.cut = way.follow(named, &mut at, looks).err();
        way.reached = at.ancestors().filter_map(|above| looks.identity(above)).collect();
        if way.cut.is_none() {
            way.end = at;
        }
        way
    }

    /// Whether there is something at its end.
    pub(crate) fn exists(&self) -> bool {
        self.cut.is_none()
    }

    /// Whether there is nothing, for certain.
    pub(crate) fn is_absent(&self) -> bool {
        self.cut == Some(Errno::NOENT)
    }

    /// Where it ends, by a path without links, as far as it exists.
    pub(crate) fn end(&self) -> &Path {
        &self.end
    }

    /// Whether it leads through a folder by a name in it, or to the folder, under any name.
    pub(crate) fn leads_through(&self, folder: &Self) -> bool {
        let is_looked_in =
            |it: &Identity| self.looked_in.iter().any(|number| self.identities.get(*number) == Some(it));
        folder.identity().is_some_and(is_looked_in)
    }

    /// Whether it ends at the end of another, or in the folder there, under any name.
    pub(crate) fn ends_in(&self, other: &Self) -> bool {
        self.end.starts_with(&other.end) || other.identity().is_some_and(|it| self.reached.contains(it))
    }

    /// Returns what is at its end.
    fn identity(&self) -> Option<&Identity> {
        self.reached.first().filter(|_| self.exists())
    }

    /// Follows a path from `at`, and moves that as far as there is something.
    fn follow(&mut self, named: &Path, at: &mut PathBuf, looks: &Looks) -> Result<(), Errno> {
        let mut left: VecDeque<OsString> = parts(named).collect();
        while let Some(part) = left.pop_front() {
            match Path::new(&part).components().next() {
                Some(Component::RootDir) => *at = "/".into(),
                Some(Component::ParentDir) => _ = at.pop(),
                Some(Component::Normal(name)) => {
                    self.looks_in(at);
                    let place = at.join(name);
                    match looks.at(&place) {
                        Ok((Kind::Link(target), _)) => {
                            parts(&target).rev().for_each(|part| left.push_front(part));
                            self.links.push(place);
                            if self.links.len() > MOST_LINKS {
                                self.end = at.join(name);
                                return Err(Errno::LOOP);
                            }
                        }
                        Ok((kind, identity)) => {
                            if kind == Kind::Folder && !self.folders.contains(&place) {
                                self.folders.push(place.clone());
                                self.identities.push(identity);
                            }
                            *at = place;
                        }
                        Err(errno) => {
                            self.end = left.iter().fold(place, |end, part| end.join(part));
                            return Err(errno);
                        }
                    }
                }
                _ => {}
            }
        }
        self.looks_in(at);
        Ok(())
    }

    fn looks_in(&mut self, folder: &Path) {
        let number = self.folders.iter().position(|known| known == folder);
        self.looked_in.extend(number.filter(|number| !self.looked_in.contains(number)));
    }
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
        let looks = Looks::default();
        let towards = |name: &str| Way::towards(&at(name), &looks);
        for named in ["home/state", "home/state/lockgate/that/is/not/there"] {
            let way = towards(named);
            for through in
                ["", "home", "dotfiles", "other-name", "versions", "versions/v1", "versions/v1/state"]
            {
                assert!(way.leads_through(&towards(through)), "{named}: {through}");
            }
            assert!(!way.leads_through(&towards("beside")) && !way.leads_through(&towards("none")));
        }
        // From where a name of it was looked up, or not.
        let up = towards("beside/../home/state/../../../dotfiles/../beside/none");
        assert!(up.leads_through(&towards("versions/v1")) && up.leads_through(&towards("beside")));
        let up = towards("beside/../dotfiles");
        assert!(!up.leads_through(&towards("beside")) && up.leads_through(&towards("dotfiles")));
        assert!(Way::along(&at("home/state/none")).is_err());
        let nowhere = towards("nowhere");
        assert!(nowhere.leads_through(&towards("dotfiles")) && !nowhere.leads_through(&towards("versions")));
    }
}
