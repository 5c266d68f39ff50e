//! A file that a sidecar is told to write. It is opened before anything begins, and written once everything that was named has been
//! found right, before the audit begins. It is not removed again.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::unwritten;
use crate::error::Error;
use crate::given_file::{Readers, open_given};

/// A file to write.
#[derive(Debug)]
pub(super) struct Outlet {
    path: PathBuf,
    /// The file that existed already. It may be a pipe that has a name only in the process that was started.
    there: Option<File>,
    readers: Readers,
}

impl Outlet {
    /// Opens the file if it exists, without changing it; otherwise it will be made for these readers.
    pub(super) fn find(path: &Path, readers: Readers) -> Result<Self, Error> {
        let there = match open_given(path, OpenOptions::new().write(true), readers) {
            Ok(file) => Some(file),
            Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
                let why = "it is no regular file, and nobody reads it";
                return Err(unwritten(path, io::Error::other(why)));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(unwritten(path, error)),
        };
        Ok(Self { path: path.into(), there, readers })
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.there.as_ref().map(AsFd::as_fd)
    }

    fn open(&self) -> io::Result<File> {
        match &self.there {
            Some(file) => file.try_clone(),
            None => {
                let mode = self.readers.mode();
                OpenOptions::new().write(true).create_new(true).mode(mode).open(&self.path)
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

    use rustix::fs::{CWD, FileType, Mode, OFlags};

    use super::*;

    #[test]
    fn a_pipe_that_nobody_reads_is_refused_and_one_that_is_read_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let refused = Outlet::find(&path, Readers::NotEverybody).unwrap_err().to_string();
        assert!(refused.contains("nobody reads it") && refused.contains("pipe"), "{refused}");
        let without_waiting = OFlags::NONBLOCK.bits().cast_signed();
        let mut reader = OpenOptions::new().read(true).custom_flags(without_waiting).open(&path).unwrap();
        let outlet = Outlet::find(&path, Readers::NotEverybody).unwrap();
        write_all(&[(&outlet, "A=1\n")]).unwrap();
        drop(outlet);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "A=1\n");
    }
}
