//! Reads a file of an image as its layers show it together, before they are mounted.
//!
//! Every step of a path is looked up in the layers from the top, and a link is resolved by its text, as if the image were the root:
//! nothing outside the layers is ever opened.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::unpack;

/// How many links may lead to a file, as at an engine.
const MOST_LINKS: usize = 8;
/// How many names are looked up in all: every one may take a look at each directory of its path in each layer.
const MOST_NAMES: usize = 64;

/// The trees of an image's layers, bottom first.
pub(super) struct Merged(pub(super) Vec<PathBuf>);

/// What the layers have at a path.
struct Found<'a> {
    tree: &'a Path,
    metadata: Metadata,
}

impl Merged {
    /// Reads the beginning of a file; `None` if there is none.
    pub(super) fn read(&self, path: &str, most: u64) -> Option<Vec<u8>> {
        let (tree, path) = self.resolve(path)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(tree, flags, Mode::empty()).ok()?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let file = File::from(unpack::open_beneath(root.as_fd(), &path, flags, resolve).ok()?);
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut octets = Vec::new();
        file.take(most).read_to_end(&mut octets).ok()?;
        Some(octets)
    }

    /// Returns the path of a file without links, and the layer that has it.
    fn resolve(&self, path: &str) -> Option<(&Path, PathBuf)> {
        let mut at = PathBuf::new();
        // The names that are left, the next one last.
        let mut left = names(OsStr::new(path));
        let mut links = 0;
        for _ in 0..MOST_NAMES {
            let name = left.pop()?;
            if name == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&name);
            let Found { tree, metadata } = self.find(&next)?;
            if metadata.is_symlink() {
                links += 1;
                let target = std::fs::read_link(tree.join(&next)).ok().filter(|_| links <= MOST_LINKS)?;
                if target.is_absolute() {
                    at = PathBuf::new();
                }
                left.extend(names(target.as_os_str()));
            } else if left.is_empty() {
                return Some((tree, next));
            } else {
                at = next;
            }
        }
        None
    }

    /// Finds a path, all of whose directories the layers have together and whose last name may be anything.
    fn find(&self, path: &Path) -> Option<Found<'_>> {
        for tree in self.0.iter().rev() {
            let mut hides = unpack::is_opaque(tree);
            let mut at = tree.clone();
            let mut parts = path.components().peekable();
            while let Some(part) = parts.next() {
                at.push(part);
                let Ok(metadata) = std::fs::symlink_metadata(&at) else { break };
                let whiteout = metadata.file_type().is_char_device() && metadata.rdev() == 0;
                match parts.peek() {
                    None if whiteout => return None,
                    None => return Some(Found { tree, metadata }),
                    // A file, or a whiteout, in place of a directory.
                    Some(_) if !metadata.is_dir() => return None,
                    Some(_) => hides |= unpack::is_opaque(&at),
                }
            }
            if hides {
                return None;
            }
        }
        None
    }
}

/// Splits a path into its names, the first one last.
fn names(path: &OsStr) -> Vec<OsString> {
    let parts = Path::new(path).components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    parts.collect()
}
