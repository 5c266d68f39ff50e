//! Opens the caller's own files for reading: through no symbolic link, and regular files only. A missing file is no error; a file of
//! another kind is.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType, Mode, OFlags};

use crate::error::Error;
use crate::source::{self, reopen};

/// The limits of a search through a folder: depth, and number of files.
const DEEPEST: usize = 6;
const MOST: usize = 1024;

/// Opens a regular file if it exists. No component of its path may be a link.
///
/// # Errors
/// When a component is a link, it is no regular file, or it may not be read.
pub fn open_without_links(path: &Path) -> Result<Option<File>, Error> {
    let Some(found) = found(path)? else { return Ok(None) };
    match kind(&found, path)? {
        FileType::RegularFile => {
            let file = reopen(found.as_fd()).map_err(|errno| refused(path, &errno.into()))?;
            Ok(Some(File::from(file)))
        }
        _ => Err(Error::Source { path: path.into(), why: "it is no regular file".into() }),
    }
}

/// Whether a path exists.
///
/// # Errors
/// When a component is a link.
pub fn is_there(path: &Path) -> Result<bool, Error> {
    Ok(found(path)?.is_some())
}

/// Whether a folder exists at a path.
///
/// # Errors
/// When a component is a link, or something else exists there.
pub fn is_folder(path: &Path) -> Result<bool, Error> {
    let Some(found) = found(path)? else { return Ok(false) };
    match kind(&found, path)? {
        FileType::Directory => Ok(true),
        _ => Err(Error::Source { path: path.into(), why: "it is no folder".into() }),
    }
}

/// What is below a folder, by paths relative to it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FilesBelow {
    /// The regular files.
    pub files: Vec<PathBuf>,
    /// What is no regular file, and folders too deep to be looked into; of very many, as many as there may be files.
    pub skipped: Vec<PathBuf>,
}

/// Returns the regular files below a folder, and what else is there.
///
/// # Errors
/// When a component is a link, it is no folder, or it holds more files than a configuration would.
pub fn regular_below(folder: &Path) -> Result<FilesBelow, Error> {
    let mut below = FilesBelow::default();
    let Some(found) = found(folder)? else { return Ok(below) };
    if kind(&found, folder)? != FileType::Directory {
        return Err(Error::Source { path: folder.into(), why: "it is no folder".into() });
    }
    look(&found, folder, Path::new(""), &mut below)?;
    below.files.sort();
    below.skipped.sort();
    Ok(below)
}

fn look(at: &OwnedFd, folder: &Path, place: &Path, below: &mut FilesBelow) -> Result<(), Error> {
    let fail = |errno: rustix::io::Errno| refused(&folder.join(place), &errno.into());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::openat(at, c".", flags, Mode::empty()).map_err(fail)?;
    for entry in Dir::read_from(&open).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let path = place.join(std::ffi::OsStr::from_bytes(name));
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(child) = rustix::fs::openat(&open, entry.file_name(), flags, Mode::empty()) else { continue };
        match kind(&child, &path)? {
            FileType::RegularFile => below.files.push(path),
            FileType::Directory if path.iter().count() < DEEPEST => look(&child, folder, &path, below)?,
            _ if below.skipped.len() < MOST => below.skipped.push(path),
            _ => {}
        }
        if below.files.len() > MOST {
            let why = format!("it holds more than {MOST} files");
            return Err(Error::Source { path: folder.into(), why });
        }
    }
    Ok(())
}

fn found(path: &Path) -> Result<Option<OwnedFd>, Error> {
    source::open_if_there(path)
}

fn kind(found: &OwnedFd, path: &Path) -> Result<FileType, Error> {
    let stat = rustix::fs::fstat(found).map_err(|errno| refused(path, &errno.into()))?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

fn refused(path: &Path, error: &std::io::Error) -> Error {
    Error::Source { path: path.into(), why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{CWD, RenameFlags};

    use super::*;

    const TRIES: u32 = 100_000;

    fn text(file: File) -> String {
        let mut text = String::new();
        let mut file = file;
        file.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn only_regular_files_are_read_and_no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "x").unwrap();
        std::fs::create_dir(at("real")).unwrap();
        std::fs::write(at("real/file"), "y").unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink(at("real"), at("way")).unwrap();
        rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert_eq!(text(open_without_links(&at("file")).unwrap().unwrap()), "x");
        assert!(open_without_links(&at("none")).unwrap().is_none());
        assert!(open_without_links(&at("file/none")).unwrap().is_none());
        for bad in ["link", "way/file", "pipe", "real"] {
            assert!(open_without_links(&at(bad)).is_err(), "{bad}");
        }
        assert!(is_folder(&at("real")).unwrap() && !is_folder(&at("none")).unwrap());
        assert!(is_folder(&at("file")).is_err() && is_folder(&at("way")).is_err());
        assert!(is_there(&at("link")).is_err() && !is_there(&at("none")).unwrap());
        symlink(at("file"), at("real/link")).unwrap();
        let deep = at("real").join(["d"; DEEPEST].join("/"));
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("file"), "z").unwrap();
        let [files, skipped] = [vec!["file".into()], vec!["d/d/d/d/d/d".into(), "link".into()]];
        assert_eq!(regular_below(&at("real")).unwrap(), FilesBelow { files, skipped });
        assert!(regular_below(&at("way")).is_err() && regular_below(&at("file")).is_err());
        assert_eq!(regular_below(&at("none")).unwrap(), FilesBelow::default());
    }

    #[test]
    fn a_file_that_flips_is_never_followed_out() {
        // S3.12: a hundred thousand times, the file itself and the folder it lies in.
        for (flips, read) in [("below/file", "below/file"), ("below", "below/file")] {
            let folder = tempfile::tempdir().unwrap();
            let (inside, outside) = (folder.path().join("inside"), folder.path().join("outside"));
            for (place, content) in [(&inside, "inside"), (&outside, "outside")] {
                std::fs::create_dir_all(place.join("below")).unwrap();
                std::fs::write(place.join("below/file"), content).unwrap();
            }
            let (real, link) = (inside.join(flips), folder.path().join("link"));
            symlink(outside.join(flips), &link).unwrap();
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        rustix::fs::renameat_with(CWD, &real, CWD, &link, RenameFlags::EXCHANGE).unwrap();
                    }
                });
                let (mut opened, mut refused) = (0, 0);
                for _ in 0..TRIES / 2 {
                    match open_without_links(&inside.join(read)) {
                        Ok(Some(file)) => {
                            assert_eq!(text(file), "inside");
                            opened += 1;
                        }
                        Ok(None) => {}
                        Err(_) => refused += 1,
                    }
                }
                over.store(true, Ordering::Relaxed);
                assert!(opened > 0 && refused > 0, "nothing flipped: {opened} opened, {refused} refused");
            });
        }
    }
}
