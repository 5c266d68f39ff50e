//! Reads the small text files in which the kernel tells something: those of `/proc`, of `/sys` and of control groups.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Longer than all of them but one that names very deep groups, which is read in more pieces.
const USUAL: usize = 4096;
/// The most octets that are read.
const LARGEST: u64 = 1 << 20;

/// Reads a whole file, most of them with one `read(2)`: the kernel gives their size as 0, and std would ask for it and then begin with
/// pieces of 32 octets.
///
/// # Errors
/// When it cannot be read, or is not UTF-8.
pub fn read(path: impl AsRef<Path>) -> io::Result<String> {
    let mut text = String::with_capacity(USUAL);
    File::open(path)?.take(LARGEST).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_file_is_read_as_std_reads_it() {
        for path in ["/proc/self/cgroup", "/proc/self/mountinfo", "/sys/devices/system/cpu/possible"] {
            assert_eq!(super::read(path).unwrap(), std::fs::read_to_string(path).unwrap(), "{path}");
        }
        assert!(super::read("/proc/self/absent").is_err());
    }
}
