//! The three archive formats of package indexes, written by hand: they contain a few lines of text each, and real clients open them.

use crate::forms::gzip;

/// A file to pack: its path and its text.
pub(crate) type File<'a> = (&'a str, &'a [u8]);

/// 1 January 1980, the first day that ZIP can name (APPNOTE 4.4.6, MS-DOS date).
const FIRST_DAY: u16 = 0x0021;

/// A ZIP archive (APPNOTE 4.3) of stored files.
pub(crate) fn zip(files: &[File<'_>]) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in files {
        let offset = size(archive.len());
        let mut common = Vec::new();
        for field in [20, 0, 0, 0, FIRST_DAY] {
            common.extend_from_slice(&u16::to_le_bytes(field));
        }
        for field in [crc32(content), size(content.len()), size(content.len())] {
            common.extend_from_slice(&field.to_le_bytes());
        }
        common.extend_from_slice(&short(name.len()).to_le_bytes());
        common.extend_from_slice(&[0, 0]);

        archive.extend_from_slice(b"PK\x03\x04");
        archive.extend_from_slice(&common);
        archive.extend_from_slice(name.as_bytes());
        archive.extend_from_slice(content);

        directory.extend_from_slice(b"PK\x01\x02");
        // Made on Unix (3), so that clients read the mode below.
        directory.extend_from_slice(&[20, 3]);
        directory.extend_from_slice(&common);
        directory.extend_from_slice(&[0; 6]);
        directory.extend_from_slice(&(0o100_644_u32 << 16).to_le_bytes());
        directory.extend_from_slice(&offset.to_le_bytes());
        directory.extend_from_slice(name.as_bytes());
    }
    let start = size(archive.len());
    archive.extend_from_slice(&directory);
    archive.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    archive.extend_from_slice(&[short(files.len()).to_le_bytes(), short(files.len()).to_le_bytes()].concat());
    archive.extend_from_slice(&size(directory.len()).to_le_bytes());
    archive.extend_from_slice(&start.to_le_bytes());
    archive.extend_from_slice(&[0, 0]);
    archive
}

/// A tar archive (POSIX ustar) in gzip (RFC 1952).
pub(crate) fn tar_gz(files: &[File<'_>]) -> Vec<u8> {
    gzip(&tar(files))
}

fn tar(files: &[File<'_>]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, content) in files {
        let mut header = [0; 512];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, &name.as_bytes()[..name.len().min(100)]);
        put(100, b"0000644\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{:011o}\0", content.len()).as_bytes());
        put(136, b"14000000000\0");
        put(148, b"        ");
        put(156, b"0");
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().copied().map(u32::from).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.extend_from_slice(&header);
        archive.extend_from_slice(content);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

/// CRC-32 of IEEE 802.3, bit by bit: it sums a few kilobytes once.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0xEDB8_8320 * (sum & 1)))
    })
}

/// Converts a length, which is that of our own few files.
fn size(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

fn short(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_known_one() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }
}
