//! Opens a file to write that a person named, and that is there already. Somebody else may have put it there, so as to read what it
//! gets, to change it, or to have it written elsewhere.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::stranger::Stranger;

/// Who may read such a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Every user.
    Everybody,
    /// Its owner, and its group if it has the mode.
    NotEverybody,
}

impl Readers {
    /// The mode of a new file, less the umask.
    #[must_use]
    pub fn mode(self) -> u32 {
        match self {
            Self::Everybody => 0o644,
            Self::NotEverybody => 0o600,
        }
    }
}

/// Why a file that is there is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotTaken {
    /// It may lead anywhere.
    #[error("it is a link")]
    Link,
    /// Somebody else may change it.
    #[error(transparent)]
    Stranger(#[from] Stranger),
    /// Its mode, which lets everybody read.
    #[error("everybody may read it (mode {0:04o})")]
    Readers(u32),
}

impl NotTaken {
    /// Returns the reason that is in an error.
    pub(crate) fn in_error(error: &io::Error) -> Option<Self> {
        error.get_ref().and_then(|inner| inner.downcast_ref().copied())
    }
}

/// Opens a file that is there, as `options` say, and waits for no reader of a pipe. What the shell opened is taken as it is.
///
/// # Errors
/// When it cannot be opened, is a link, is another user's than the caller's or root's, or is for everybody to write or, if it must not be,
/// to read.
pub fn open_given(path: &Path, options: &mut OpenOptions, readers: Readers) -> io::Result<File> {
    let follow = if is_descriptor(path) { OFlags::empty() } else { OFlags::NOFOLLOW };
    let opened = options.custom_flags((OFlags::NONBLOCK | follow).bits().cast_signed()).open(path);
    let not_taken = |why: NotTaken| Err(io::Error::other(why));
    let file = match opened {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => return not_taken(NotTaken::Link),
        opened => opened?,
    };
    if is_descriptor(path) {
        return Ok(file);
    }
    let about = file.metadata()?;
    if let Some(stranger) = Stranger::beside_group(&about, rustix::process::geteuid().as_raw()) {
        return not_taken(stranger.into());
    }
    match about.mode() & 0o7777 {
        mode if readers == Readers::NotEverybody && about.is_file() && mode & 0o004 != 0 => {
            not_taken(NotTaken::Readers(mode))
        }
        _ => Ok(file),
    }
}

/// Whether a path names an open file of this process, as a shell's `>(…)` does.
fn is_descriptor(path: &Path) -> bool {
    let own = std::process::id().to_string();
    let processes = ["self", "thread-self", &own].map(|name| Path::new("/proc").join(name).join("fd"));
    ["/dev/stdin", "/dev/stdout", "/dev/stderr"].iter().any(|name| path == Path::new(name))
        || path
            .parent()
            .is_some_and(|folder| folder == Path::new("/dev/fd") || processes.iter().any(|it| folder == it))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn what_others_may_have_put_there_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let open = |path: &Path, readers| open_given(path, OpenOptions::new().write(true), readers).map(drop);
        let told = |path: &Path| {
            [Readers::Everybody, Readers::NotEverybody]
                .map(|readers| open(path, readers).err().map(|it| it.to_string()))
        };
        std::fs::write(at("file"), "").unwrap();
        for (mode, everybody, private) in [
            (0o600, None, None),
            (0o660, None, None),
            (0o644, None, Some("everybody may read it (mode 0644)")),
            (0o666, Some("others may write to it (mode 0666)"), Some("others may write to it (mode 0666)")),
            (0o602, Some("others may write to it (mode 0602)"), Some("others may write to it (mode 0602)")),
        ] {
            std::fs::set_permissions(at("file"), Permissions::from_mode(mode)).unwrap();
            assert_eq!(told(&at("file")), [everybody, private].map(|it| it.map(str::to_owned)), "{mode:o}");
        }
        symlink(at("file"), at("link")).unwrap();
        symlink(at("none"), at("dangling")).unwrap();
        for link in ["link", "dangling"] {
            assert_eq!(told(&at(link)), [(); 2].map(|()| Some("it is a link".into())), "{link}");
        }
        // The mode is 0602 still.
        let shell = OpenOptions::new().write(true).open(at("file")).unwrap();
        let numbered = format!("/proc/{}/fd", std::process::id());
        for names in ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd", &numbered] {
            assert_eq!(told(&Path::new(names).join(shell.as_raw_fd().to_string())), [None, None], "{names}");
        }
        assert_eq!(told(Path::new("/dev/null")), [None, None]);
        if rustix::process::geteuid().is_root() {
            std::fs::set_permissions(at("file"), Permissions::from_mode(0o600)).unwrap();
            chown(at("file"), Some(4999), None).unwrap();
            let refused = "it belongs to user 4999, and neither to you nor to root";
            assert_eq!(told(&at("file")), [(); 2].map(|()| Some(refused.into())));
        }
    }
}
