//! A file that a sidecar is told to write. It is opened before anything begins, and written once everything that was named has been
//! found right, before the audit begins. It is not removed again.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::unwritten;
use crate::error::Error;

/// open(2) and write(2) fail where they would wait for whoever reads a pipe.
const WITHOUT_WAITING: i32 = OFlags::NONBLOCK.bits().cast_signed();

/// A file to write.
#[derive(Debug)]
pub(super) struct Outlet {
    path: PathBuf,
    /// The file that existed already. It may be a pipe that has a name only in the process that was started.
    there: Option<File>,
    mode: u32,
}

impl Outlet {
    /// Opens the file if it exists, without changing it; otherwise it will be made with `mode`.
    pub(super) fn find(path: &Path, mode: u32) -> Result<Self, Error> {
        let there = match OpenOptions::new().write(true).custom_flags(WITHOUT_WAITING).open(path) {
            Ok(file) => Some(file),
            Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
                let why = "it is no regular file, and nobody reads it";
                return Err(unwritten(path, io::Error::other(why)));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(unwritten(path, error)),
        };
        Ok(Self { path: path.into(), there, mode })
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.there.as_ref().map(AsFd::as_fd)
    }

    fn open(&self) -> io::Result<File> {
        match &self.there {
            Some(file) => file.try_clone(),
            None => {
                let mut options = OpenOptions::new();
                options.write(true).create(true).truncate(false).mode(self.mode);
                options.custom_flags(WITHOUT_WAITING).open(&self.path)
            }
        }
    }
}

/// Writes every file, or none if one of them cannot be opened.
pub(super) fn write_all(texts: &[(&Outlet, &str)]) -> Result<(), Error> {
    let mut opened = Vec::new();
    for (outlet, text) in texts {
        opened.push((outlet, outlet.open().map_err(|error| unwritten(&outlet.path, error))?, text));
    }
    for (outlet, file, text) in opened {
        write(file, text).map_err(|error| unwritten(&outlet.path, error))?;
    }
    Ok(())
}

fn write(mut file: File, text: &str) -> io::Result<()> {
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    #[test]
    fn a_pipe_that_nobody_reads_is_refused_and_one_that_is_read_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let refused = Outlet::find(&path, 0o600).unwrap_err().to_string();
        assert!(refused.contains("nobody reads it") && refused.contains("pipe"), "{refused}");
        let mut reader = OpenOptions::new().read(true).custom_flags(WITHOUT_WAITING).open(&path).unwrap();
        let outlet = Outlet::find(&path, 0o600).unwrap();
        write_all(&[(&outlet, "A=1\n")]).unwrap();
        drop(outlet);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "A=1\n");
    }
}
