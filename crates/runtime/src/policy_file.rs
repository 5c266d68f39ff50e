//! Reading a policy file: a regular file, or a link to one, of a bounded length. A repository says what lies at the name of
//! its file, so neither a device without an end nor a pipe that nobody writes to may be waited for. It never writes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::Error;

/// The largest policy file.
const LARGEST: u64 = 1 << 20;

/// Reads a policy file that must be there.
///
/// # Errors
/// When it is not there, is no regular file, is larger than a policy may be, is not UTF-8, or may not be read.
pub fn read_policy(path: &Path) -> Result<String, Error> {
    read(path).map_err(|source| Error::ReadSettings { path: path.into(), source })
}

/// Reads one that nobody named and that may be absent; a directory of its name is a placeholder that a run holds.
///
/// # Errors
/// As [`read_policy`], but for its absence.
pub fn read_policy_if_there(path: &Path) -> Result<Option<String>, Error> {
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => Ok(None),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        _ => read_policy(path).map(Some),
    }
}

fn read(path: &Path) -> io::Result<String> {
    // Opening some devices does something already, so it is looked at before; what takes its place meanwhile is seen after.
    refuse_irregular(&std::fs::metadata(path)?)?;
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file: File = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    refuse_irregular(&file.metadata()?)?;
    let mut octets = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut octets)?;
    if octets.len() as u64 > LARGEST {
        return Err(io::Error::other("it is larger than 1 MiB, which no policy is"));
    }
    String::from_utf8(octets).map_err(|_| io::Error::other("it is not UTF-8"))
}

fn refuse_irregular(meta: &std::fs::Metadata) -> io::Result<()> {
    if meta.is_file() { Ok(()) } else { Err(io::Error::other("it is no regular file")) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    #[test]
    fn only_regular_files_of_a_bounded_length_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "timeout = \"1m\"\n").unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink("/dev/zero", at("endless")).unwrap();
        symlink(at("none"), at("dangling")).unwrap();
        rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        std::fs::write(at("largest"), vec![b'#'; 1 << 20]).unwrap();
        std::fs::write(at("large"), vec![b'#'; (1 << 20) + 1]).unwrap();
        std::fs::write(at("octets"), b"\xff").unwrap();
        for good in ["file", "link"] {
            assert_eq!(read_policy_if_there(&at(good)).unwrap().unwrap(), "timeout = \"1m\"\n", "{good}");
        }
        assert!(read_policy(&at("largest")).is_ok());
        for absent in ["none", "file/none", "dangling", "folder"] {
            assert!(read_policy_if_there(&at(absent)).unwrap().is_none(), "{absent}");
            assert!(read_policy(&at(absent)).is_err(), "{absent}");
        }
        for (bad, why) in [
            ("endless", "no regular file"),
            ("pipe", "no regular file"),
            ("large", "larger than 1 MiB"),
            ("octets", "not UTF-8"),
        ] {
            let error = read_policy_if_there(&at(bad)).unwrap_err();
            assert!(error.remedy().is_some(), "{error}");
            let error = error.to_string();
            assert!(error.contains(why) && error.contains(bad), "{error}");
        }
    }
}
