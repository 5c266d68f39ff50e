//! Compares the content of files, piece by piece. Never holds a whole file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// The size of the pieces in which files are compared.
const BUFFER: usize = 64 << 10;

/// Whether two regular files of the same size have the same content.
pub(super) fn is_same_content(one: &File, two: &File) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0; BUFFER], vec![0; BUFFER]);
    let mut at = 0;
    // Skip places at which both have holes, which read as zeros: most of a sparse file may be holes.
    while let Some(next) = [next_data(one, at)?, next_data(two, at)?].into_iter().flatten().min() {
        let (read, other) = (fill(one, &mut left, next)?, fill(two, &mut right, next)?);
        if left[..read] != right[..other] {
            return Ok(false);
        }
        if read == 0 {
            break;
        }
        at = next + read as u64;
    }
    Ok(true)
}

/// Returns the offset of a file's next data. On a file system without that information everything is data.
fn next_data(file: &File, at: u64) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(next) => Ok(Some(next)),
        Err(Errno::NXIO) => Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(at)),
        Err(errno) => Err(errno.into()),
    }
}

fn fill(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}
