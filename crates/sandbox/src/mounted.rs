//! Finds mounts below a folder in the kernel's list, proc_pid_mountinfo(5).

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Returns the first mount below a folder, which may itself be a mount point.
pub(crate) fn first_below(folder: &Path) -> io::Result<Option<PathBuf>> {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
    Ok(find(&std::fs::read("/proc/self/mountinfo")?, &folder))
}

fn find(list: &[u8], folder: &Path) -> Option<PathBuf> {
    let places =
        list.split(|octet| *octet == b'\n').filter_map(|line| line.split(|octet| *octet == b' ').nth(4));
    places.map(unescaped).find(|place| place.starts_with(folder) && place != folder)
}

/// Decodes a path of the list, in which the kernel writes blanks, line ends and backslashes as three octal digits.
fn unescaped(place: &[u8]) -> PathBuf {
    let mut octets = Vec::with_capacity(place.len());
    let mut rest = place;
    while let Some((octet, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *octet == b'\\');
        let number = digits.and_then(|it| u8::from_str_radix(std::str::from_utf8(it).ok()?, 8).ok());
        octets.push(number.unwrap_or(*octet));
        rest = if number.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(octets).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_below_is_found_and_nothing_else() {
        let list = b"22 1 0:21 / / rw - ext4 /dev/x rw\n\
            23 22 0:22 / /srv/work rw - tmpfs none rw\n\
            24 22 0:23 / /srv/work-2/a rw - tmpfs none rw\n\
            25 23 0:24 / /srv/work/a\\040b\\134 rw - tmpfs none rw\n";
        assert_eq!(find(list, Path::new("/srv/work")), Some("/srv/work/a b\\".into()));
        assert_eq!(find(list, Path::new("/srv/work/a b\\")), None);
        assert_eq!(find(list, Path::new("/srv/wor")), None);
        assert!(find(list, Path::new("/srv")).is_some());
        // This machine's own mounts.
        assert!(first_below(Path::new("/")).unwrap().is_some_and(|place| place != Path::new("/")));
    }
}
