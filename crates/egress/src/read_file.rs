//! A file of which the content and what tells it from a later one are known. A confined sidecar opens none (Landlock), but it may still
//! look whether the one at a path is another by now.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::OFlags;

/// The content of a file as it was read, and what tells it from a later one.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadFile {
    path: PathBuf,
    pub(crate) content: Vec<u8>,
    /// `None` if there was no such file, or it could not be looked at.
    stamp: Option<Stamp>,
    /// When it was first found to be gone, if it counts on.
    gone: Option<Instant>,
}

/// How long a file without content may be about to be written.
const HALF_WRITTEN: Duration = Duration::from_secs(5);

/// What tells a file from the one that is at its path later.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    size: u64,
    changed: Option<SystemTime>,
}

impl ReadFile {
    /// Reads a file. One that cannot be read is as one without content.
    pub(crate) fn open(path: &Path) -> Self {
        // Looked at before: a change meanwhile must be seen later.
        let stamp = std::fs::metadata(path).ok().map(|file| Stamp::of(&file));
        Self { stamp, ..Self::of(path, open_regular(path).ok()) }
    }

    /// Reads the file that another process has opened at this path, or found none.
    pub(crate) fn of(path: &Path, file: Option<File>) -> Self {
        let stamp = file.as_ref().and_then(|file| file.metadata().ok()).map(|file| Stamp::of(&file));
        let mut content = Vec::new();
        if let Some(mut file) = file
            && file.read_to_end(&mut content).is_err()
        {
            content.clear();
        }
        Self { path: path.into(), content, stamp, gone: None }
    }

    /// Returns the file that another process has opened in this one's place. One without content may be about to be written: for a moment
    /// this one counts on then, and still says that it has changed.
    pub(crate) fn followed_by(&self, file: Option<File>) -> Self {
        let next = Self::of(&self.path, file);
        if !next.content.is_empty() || self.content.is_empty() {
            return next;
        }
        let gone = if next.stamp.is_some() { None } else { self.gone.or_else(|| Some(Instant::now())) };
        let is_new = match &next.stamp {
            Some(stamp) => stamp.is_new(),
            None => gone.is_some_and(|gone| gone.elapsed() < HALF_WRITTEN),
        };
        if is_new { Self { gone, ..self.clone() } } else { next }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file was written or replaced since. Of one that this process may not look at, nothing is claimed.
    pub(crate) fn has_changed(&self) -> bool {
        match std::fs::metadata(&self.path) {
            Ok(now) => self.stamp.as_ref() != Some(&Stamp::of(&now)),
            Err(error) => error.kind() == io::ErrorKind::NotFound && self.stamp.is_some(),
        }
    }
}

impl Stamp {
    fn of(file: &Metadata) -> Self {
        Self { inode: (file.dev(), file.ino()), size: file.size(), changed: file.modified().ok() }
    }

    /// Whether the file was written just now. A clock may have been set back since: a little later than now is just now too.
    fn is_new(&self) -> bool {
        self.changed.is_some_and(|changed| {
            let age = changed.elapsed().unwrap_or_else(|ahead| ahead.duration());
            age < HALF_WRITTEN
        })
    }
}

/// Opens a file that is to be read now. A pipe in its place would be waited for.
///
/// # Errors
/// When it cannot be opened, or is no regular file.
pub(crate) fn open_regular(path: impl AsRef<Path>) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    match file.metadata()?.file_type() {
        kind if kind.is_file() => Ok(file),
        kind if kind.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        _ => Err(io::Error::other("it is no regular file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_another_is_told_from_the_one_that_was_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("resolv.conf");
        let missing = ReadFile::open(&path);
        assert!(missing.content.is_empty() && !missing.has_changed());
        std::fs::write(&path, "one").unwrap();
        assert!(missing.has_changed(), "it came");

        let folder_in_its_place = ReadFile::open(folder.path());
        assert!(folder_in_its_place.content.is_empty() && !folder_in_its_place.has_changed(), "unreadable");

        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        assert!(ReadFile::open(&pipe).content.is_empty(), "nobody is waited for");

        let first = ReadFile::open(&path);
        assert!(first.content == b"one" && !first.has_changed());
        let other = folder.path().join("other");
        std::fs::write(&other, "two").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert!(first.has_changed(), "it was replaced");

        let second = ReadFile::open(&path);
        std::fs::write(&path, "three").unwrap();
        assert!(second.has_changed(), "it was written");

        let third = ReadFile::open(&path);
        std::fs::remove_file(&path).unwrap();
        assert!(third.has_changed(), "it is gone");
    }

    #[test]
    fn what_another_process_has_opened_is_as_what_was_opened_here() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        let missing = ReadFile::of(&path, None);
        assert!(missing.content.is_empty() && !missing.has_changed());
        std::fs::write(&path, "one").unwrap();
        let handed = ReadFile::of(&path, Some(File::open(&path).unwrap()));
        assert!(handed.content == b"one" && !handed.has_changed() && missing.has_changed());
        let stale = File::open(&path).unwrap();
        let other = folder.path().join("other");
        std::fs::write(&other, "two").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert!(handed.has_changed() && ReadFile::of(&path, Some(stale)).has_changed(), "one from before");
        std::fs::write(&path, "").unwrap();
        for half_written in [Some(File::open(&path).unwrap()), None] {
            let kept = handed.followed_by(half_written);
            assert!(kept.content == b"one" && kept.has_changed());
        }
        // What stays empty, or gone, is so. A file's time may be a little ahead of the clock.
        let now = SystemTime::now();
        for (changed, is_empty) in
            [(now - 2 * HALF_WRITTEN, true), (now + HALF_WRITTEN / 2, false), (now + 3 * HALF_WRITTEN, true)]
        {
            let emptied = File::options().write(true).open(&path).unwrap();
            emptied.set_modified(changed).unwrap();
            assert_eq!(handed.followed_by(Some(emptied)).content.is_empty(), is_empty, "{changed:?}");
        }
        let long_ago = Instant::now().checked_sub(2 * HALF_WRITTEN);
        let gone = ReadFile { gone: long_ago, ..handed.followed_by(None) };
        assert!(gone.followed_by(None).content.is_empty());
        let directory = ReadFile::of(folder.path(), Some(File::open(folder.path()).unwrap()));
        assert!(directory.content.is_empty() && !directory.has_changed());
    }
}
