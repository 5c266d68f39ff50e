//! What changed in the workspace after a run began, and was not changed by taking something of it over. To replace or remove one name of
//! a file that has several is a change of the file for all of them: what is known of those is kept beside what was written, for whoever
//! takes the rest over later.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::Stat;

/// The file whose time says when the run began.
const BEGAN: &str = "since";
/// The file with a line for each time one of ours changed a file of several names.
const OURS: &str = "ours";
/// What is read of it at most: a line has less than a hundred octets.
const MOST: u64 = 64 << 20;

/// Seconds and nanoseconds of a clock.
type Time = (i64, i64);

/// A file of several names, and what it was when it was looked at.
pub(super) struct Linked {
    pub(super) file: OwnedFd,
    pub(super) before: Stat,
}

/// Since when a change is somebody else's.
#[derive(Debug)]
pub(super) struct Since {
    began: Time,
    /// When a file was changed by us last, by its device and number.
    ours: RefCell<HashMap<(u64, u64), Time>>,
    log: PathBuf,
}

impl Since {
    /// From now on.
    pub(super) fn begin(directory: &Path) -> io::Result<()> {
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(directory.join(BEGAN))?.sync_all()
    }

    pub(super) fn read(directory: &Path) -> io::Result<Self> {
        let began = std::fs::metadata(directory.join(BEGAN))?;
        let log = directory.join(OURS);
        let mut text = String::new();
        match File::open(&log) {
            Ok(file) => _ = file.take(MOST).read_to_string(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let ours = RefCell::new(text.lines().filter_map(entry).collect());
        Ok(Self { began: (began.mtime(), began.mtime_nsec()), ours, log })
    }

    /// Whether a file, as it is now, was changed by somebody else.
    pub(super) fn is_past(&self, now: &Stat) -> bool {
        let changed = changed_at(now);
        changed > self.began && self.ours.borrow().get(&id(now)) != Some(&changed)
    }

    /// Remembers that what a file of several names is by now was made of it by us, unless somebody wrote it since it was looked at. What
    /// cannot be remembered is somebody's change to whoever looks next.
    pub(super) fn note_own(&self, Linked { file, before }: Linked) {
        let _ = rustix::fs::fstat(file).map_err(io::Error::from).and_then(|now| {
            let written = |stat: &Stat| (stat.st_mtime, stat.st_mtime_nsec, stat.st_size, stat.st_mode);
            if written(&now) == written(&before) { self.note(&now) } else { Ok(()) }
        });
    }

    fn note(&self, now: &Stat) -> io::Result<()> {
        let ((device, number), (seconds, nanoseconds)) = (id(now), changed_at(now));
        self.ours.borrow_mut().insert((device, number), (seconds, nanoseconds));
        let mut log = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.log)?;
        log.write_all(format!("{device} {number} {seconds} {nanoseconds}\n").as_bytes())
    }

    /// Everything was there before.
    #[cfg(test)]
    pub(super) fn never(mut self) -> Self {
        self.began = (i64::MAX, 0);
        self
    }
}

/// A line of the log; one that was cut off says nothing.
fn entry(line: &str) -> Option<((u64, u64), Time)> {
    let mut words = line.split(' ');
    let id = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some((id, (words.next()?.parse().ok()?, words.next()?.parse().ok()?)))
}

fn id(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn changed_at(stat: &Stat) -> Time {
    (stat.st_ctime, i64::try_from(stat.st_ctime_nsec).unwrap_or_default())
}
