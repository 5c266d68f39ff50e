//! Compares the content of files, piece by piece. Never holds a whole file.

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
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

/// Returns a number that regular files of the same size and content share, and others hardly ever: nobody can choose them so without the
/// keys.
pub(super) fn fingerprint(file: &File, keys: &RandomState) -> io::Result<u64> {
    let (mut hasher, mut piece, mut at) = (keys.build_hasher(), vec![0; BUFFER], 0);
    while let Some(next) = next_data(file, at)? {
        // The same pieces wherever the holes are. One of zeros counts for as much as a hole.
        let start = next - next % BUFFER as u64;
        let read = fill(file, &mut piece, start)?;
        if read == 0 {
            break;
        }
        if piece[..read].iter().any(|octet| *octet != 0) {
            hasher.write_u64(start);
            hasher.write(&piece[..read]);
        }
        at = start + BUFFER as u64;
    }
    Ok(hasher.finish())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_content_has_the_same_fingerprint_wherever_its_holes_are() {
        let folder = tempfile::tempdir().unwrap();
        let keys = RandomState::new();
        let size = 5 * BUFFER as u64 + 100;
        let of = |pieces: &[(u64, &[u8])]| {
            let file = File::create_new(folder.path().join("file")).unwrap();
            std::fs::remove_file(folder.path().join("file")).unwrap();
            file.set_len(size).unwrap();
            pieces.iter().for_each(|(at, piece)| file.write_all_at(piece, *at).unwrap());
            file
        };
        let file = |pieces: &[(u64, &[u8])]| {
            let file = of(pieces);
            let reopened = File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
            reopened.unwrap()
        };
        let (zeros, middle) = (vec![0; 5 * BUFFER + 100], 2 * BUFFER as u64 + 5000);
        let (sparse, whole) = (file(&[(middle, b"x")]), file(&[(0, &zeros), (middle, b"x")]));
        let print = |file: &File| fingerprint(file, &keys).unwrap();
        assert!(is_same_content(&sparse, &whole).unwrap());
        assert_eq!(print(&sparse), print(&whole));
        assert_eq!(print(&file(&[])), print(&file(&[(0, &zeros)])));
        for other in [&[(middle, &b"y"[..])][..], &[(middle + BUFFER as u64, b"x")], &[(size - 1, b"x")], &[]]
        {
            assert_ne!(print(&sparse), print(&file(other)), "{other:?}");
        }
    }
}
