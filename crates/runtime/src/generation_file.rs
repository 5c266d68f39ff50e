//! Reads the generation of a vault: eight octets of an open file, which differ after every change of a credential.

use std::fs::File;
use std::os::unix::fs::FileExt;

use egress::RemovalWatch;

/// Stands in the file for a generation that cannot be known, where another process passes it on.
pub(crate) const UNKNOWN: u64 = u64::MAX;

/// The open file of a vault's generation. It is read and not mapped: of a file that was cut short, a mapping ends the process.
#[derive(Debug)]
pub(crate) struct GenerationFile {
    file: File,
    removal: RemovalWatch,
}

impl GenerationFile {
    pub(crate) fn new(file: File) -> Self {
        Self { removal: RemovalWatch::over(&file), file }
    }

    /// Returns the generation; `None` where it cannot be known, because the file was cut short, cannot be read, or is no longer the
    /// vault's: a vault that was put back from a backup has another, and of this one no change is ever seen.
    pub(crate) fn now(&self) -> Option<u64> {
        if self.removal.is_removed(&self.file) {
            return None;
        }
        let mut octets = [0; 8];
        self.file.read_exact_at(&mut octets, 0).ok()?;
        Some(u64::from_be_bytes(octets)).filter(|generation| *generation != UNKNOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_writes_is_read() {
        let file: File =
            rustix::fs::memfd_create("generation", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into();
        let generation = GenerationFile::new(file.try_clone().unwrap());
        assert_eq!(generation.now(), None, "it is empty");
        for number in [7, 1 << 40] {
            file.write_all_at(&u64::to_be_bytes(number), 0).unwrap();
            assert_eq!(generation.now(), Some(number));
        }
        file.write_all_at(&UNKNOWN.to_be_bytes(), 0).unwrap();
        assert_eq!(generation.now(), None);
    }

    #[test]
    fn of_a_file_that_was_cut_short_nothing_is_known_until_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("generation");
        std::fs::write(&path, 7_u64.to_be_bytes()).unwrap();
        let generation = GenerationFile::new(File::open(&path).unwrap());
        assert_eq!(generation.now(), Some(7));
        std::fs::write(&path, "").unwrap();
        assert_eq!(generation.now(), None);
        std::fs::write(&path, 8_u64.to_be_bytes()).unwrap();
        assert_eq!(generation.now(), Some(8));
    }

    #[test]
    fn of_a_file_that_was_replaced_nothing_is_known_any_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("generation");
        std::fs::write(&path, 7_u64.to_be_bytes()).unwrap();
        let generation = GenerationFile::new(File::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, 7_u64.to_be_bytes()).unwrap();
        assert_eq!(generation.now(), None);
    }
}
