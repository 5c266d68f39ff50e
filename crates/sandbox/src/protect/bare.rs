//! Whether a workspace is a bare repository.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use super::held::Held;
use crate::error::Error;

/// Whether git takes a folder for a bare repository.
pub(super) fn is_bare(root: BorrowedFd<'_>, held: Held<'_>) -> Result<bool, Error> {
    // Git follows links here, except that `HEAD` itself may be one.
    let is = |name: &str, kinds: &[FileType], links: AtFlags| {
        let name = Path::new(name);
        match rustix::fs::statat(root, name, links) {
            Ok(stat) if kinds.contains(&FileType::from_raw_mode(stat.st_mode)) => Ok(!held.is(root, name)?),
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
            Err(errno) => Err(unseen(root, name, errno)),
        }
    };
    let is_folder = |name: &str| is(name, &[FileType::Directory], AtFlags::empty());
    let has_head = is("HEAD", &[FileType::RegularFile, FileType::Symlink], AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(has_head && is_folder("refs")? && is_folder("objects")?)
}

/// The error for a part of what may be a bare repository that cannot be looked at.
fn unseen(root: BorrowedFd<'_>, name: &Path, errno: Errno) -> Error {
    let workspace = std::fs::read_link(format!("/proc/self/fd/{}", root.as_raw_fd())).unwrap_or_default();
    let why = std::io::Error::from(errno);
    Error::Refused {
        what: format!(
            "whether the workspace is a bare repository cannot be told: `{}` cannot be looked at: {why}",
            workspace.join(name).display()
        ),
        remedy: Some(
            "use --workspace-mode overlay or ro, or leave it to the command as it is: --open .git".into(),
        ),
    }
}
