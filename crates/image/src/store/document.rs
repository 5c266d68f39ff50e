//! Opens and reads the store's own small files. Each is a regular file of bounded length: a pipe or a device in its place is an error, and
//! is not waited for.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// The largest file that is read: a record holds what a configuration of 4 MiB says, set out in lines.
const LARGEST: u64 = 16 << 20;

/// Opens a file to read it or to lock it.
pub(super) fn open(path: &Path) -> io::Result<File> {
    opened(OpenOptions::new().read(true), path)
}

/// Opens whatever is there to lock it: a directory, too.
pub(super) fn open_entry(path: &Path) -> io::Result<File> {
    unwaiting(OpenOptions::new().read(true)).open(path)
}

/// Opens a file that is made if it is not there, and keeps what is in it.
pub(crate) fn open_or_make(path: &Path) -> io::Result<File> {
    opened(OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600), path)
}

/// Reads a file.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut octets = Vec::new();
    open(path)?.take(LARGEST + 1).read_to_end(&mut octets)?;
    if octets.len() as u64 > LARGEST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 16 MiB"));
    }
    Ok(octets)
}

fn opened(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = unwaiting(options).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}

/// Neither waits for the other end of a pipe, nor makes a terminal this process's own.
fn unwaiting(options: &mut OpenOptions) -> &mut OpenOptions {
    options.custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
}
