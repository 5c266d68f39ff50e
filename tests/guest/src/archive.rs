//! An archive that the kernel unpacks into its first root: cpio in the format `newc`
//! (Documentation/driver-api/early-userspace/buffer-format.rst of the kernel).

/// The kinds of entry, as in `st_mode`, inode(7).
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;
/// The name that ends an archive.
const TRAILER: &str = "TRAILER!!!";

/// An archive that grows entry by entry. A folder must precede its contents.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    octets: Vec<u8>,
    entries: usize,
}

impl Archive {
    /// Adds an empty folder.
    pub(crate) fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY, [0, 0], &[]);
    }

    /// Adds a file that every user may read and execute.
    pub(crate) fn file(&mut self, name: &str, octets: &[u8]) {
        self.entry(name, PROGRAM, [0, 0], octets);
    }

    /// Adds a character device.
    pub(crate) fn device(&mut self, name: &str, number: [usize; 2]) {
        self.entry(name, CHARACTER_DEVICE, number, &[]);
    }

    /// Returns the finished archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, [0, 0], &[]);
        self.octets
    }

    fn entry(&mut self, name: &str, mode: u32, [major, minor]: [usize; 2], octets: &[u8]) {
        self.entries += 1;
        // The magic, then: inode, mode, owner, group, links, time, size, device, device number, length of the name with its
        // zero, checksum.
        let mode = usize::try_from(mode).unwrap_or_default();
        let fields = [self.entries, mode, 0, 0, 1, 0, octets.len(), 0, 0, major, minor, name.len() + 1, 0];
        self.octets.extend(b"070701");
        for field in fields {
            self.octets.extend(format!("{field:08X}").bytes());
        }
        self.octets.extend(name.bytes().chain([0]));
        self.pad();
        self.octets.extend(octets);
        self.pad();
    }

    /// Headers and contents begin at a multiple of four.
    fn pad(&mut self) {
        self.octets.resize(self.octets.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_its_header_its_name_and_its_contents() {
        let mut archive = Archive::default();
        archive.file("init", b"hello");
        let text = String::from_utf8(archive.finish()).unwrap();
        let header = "070701000000010000 81ED".replace(' ', "");
        assert!(text.starts_with(&header), "{text}");
        // 110 octets of header, the name with its zero, one more to a multiple of four.
        assert_eq!(&text[110..124], "init\0\0hello\0\0\0");
        assert!(text[124..].starts_with("070701") && text.contains(TRAILER));
        assert_eq!(text.len() % 4, 0);
    }
}
