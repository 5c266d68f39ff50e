//! Opens regular files and directories for reading. Whatever else has their name is refused: a pipe is not waited for, a device has no
//! end. Nothing here writes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Why something is not opened that has the name of a file.
pub(crate) const IRREGULAR: &str = "it is no regular file";

/// Opens a regular file, or what a link leads to if that is one.
///
/// # Errors
/// When it is not there, is no regular file, or may not be read.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_as(path, OFlags::empty())
}

/// Opens a regular file as [`open_regular`], and with these flags.
pub(crate) fn open_as(path: &Path, flags: OFlags) -> io::Result<File> {
    let file = open(path, flags | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, IRREGULAR)),
    }
}

/// Reads a regular file of at most this length.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut octets = Vec::new();
    open_regular(path)?.take(most + 1).read_to_end(&mut octets)?;
    match octets.len() as u64 > most {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has more than {most} octets"))),
        false => Ok(octets),
    }
}

/// Opens a directory.
pub(crate) fn open_directory(path: &Path) -> io::Result<File> {
    open(path, OFlags::DIRECTORY)
}

fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    #[test]
    fn nothing_but_a_file_or_a_directory_is_opened_and_none_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "text").unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink("/dev/zero", at("endless")).unwrap();
        rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        for good in ["file", "link"] {
            assert_eq!(read(&at(good), 4).unwrap(), b"text", "{good}");
        }
        assert!(read(&at("file"), 3).unwrap_err().to_string().contains("more than 3 octets"));
        for bad in ["pipe", "endless", "."] {
            let error = open_regular(&at(bad)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bad}: {error}");
        }
        assert_eq!(open_regular(&at("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(open_directory(folder.path()).is_ok() && open_directory(&at("pipe")).is_err());
    }
}
