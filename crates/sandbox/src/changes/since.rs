//! Tells whether somebody else changed a file of the workspace after a run began. Applying a change to one name of a file with several
//! names changes the file at all of them, and applying one in a directory changes the directory, so such changes of our own are recorded
//! beside the upper layer for later applies. So is which folder the workspace was: files of another one may be older than the run.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::Stat;

use crate::file_id::FileId;

/// The file whose modification time is the run's begin, and whose content is the identity of the workspace.
const BEGAN: &str = "since";
/// The log of our own changes to files with several names, and to directories.
const OURS: &str = "ours";
/// The most octets of it that are read. A line has less than a hundred.
const MOST: u64 = 64 << 20;

/// Seconds and nanoseconds.
type Time = (i64, i64);

/// A file with several names, and its status when it was read.
pub(super) struct Linked {
    pub(super) file: OwnedFd,
    pub(super) before: Stat,
}

/// The time since which a change is somebody else's.
#[derive(Debug)]
pub(super) struct Since {
    began: Time,
    /// None where an older version began the run.
    workspace: Option<FileId>,
    /// The time of our own last change of a file, by its device and inode number.
    ours: RefCell<HashMap<(u64, u64), Time>>,
    log: PathBuf,
}

impl Since {
    /// Records the current time as the run's begin, and its workspace.
    pub(super) fn begin(directory: &Path, workspace: FileId) -> io::Result<()> {
        let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(directory.join(BEGAN));
        let mut began = new?;
        began.write_all(workspace.written().as_bytes())?;
        began.sync_all()
    }

    pub(super) fn read(directory: &Path) -> io::Result<Self> {
        let began = File::open(directory.join(BEGAN))?;
        let mut workspace = String::new();
        (&began).take(MOST).read_to_string(&mut workspace)?;
        let began = began.metadata()?;
        let log = directory.join(OURS);
        let mut text = String::new();
        match File::open(&log) {
            Ok(file) => _ = file.take(MOST).read_to_string(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let ours = RefCell::new(text.lines().filter_map(entry).collect());
        let began = (began.mtime(), began.mtime_nsec());
        Ok(Self { began, workspace: FileId::read(&workspace), ours, log })
    }

    /// Whether a folder is the workspace with which the run began, as far as that is known. A share that is mounted anew has another device.
    pub(super) fn is_of(&self, workspace: FileId) -> bool {
        self.workspace.is_none_or(|noted| workspace.may_still_be(noted))
    }

    /// Whether somebody else changed a file since the run began.
    pub(super) fn is_past(&self, now: &Stat) -> bool {
        let changed = changed_at(now);
        changed > self.began && self.ours.borrow().get(&id(now)) != Some(&changed)
    }

    /// Records our own change to a file with several names, unless somebody wrote it since it was read. If it cannot be recorded, the next
    /// apply takes it for somebody else's.
    pub(super) fn note_own(&self, Linked { file, before }: Linked) {
        let _ = rustix::fs::fstat(file).map_err(io::Error::from).and_then(|now| {
            let written = |stat: &Stat| (stat.st_mtime, stat.st_mtime_nsec, stat.st_size, stat.st_mode);
            if written(&now) == written(&before) { self.note(&now) } else { Ok(()) }
        });
    }

    /// Records our own change in a directory, unless somebody had changed it `before`.
    pub(super) fn note_own_in(&self, directory: &OwnedFd, before: &Stat) {
        if !self.is_past(before) {
            let _ = rustix::fs::fstat(directory).map_err(io::Error::from).and_then(|now| self.note(&now));
        }
    }

    /// Records our own making of a directory.
    pub(super) fn note_made(&self, directory: &OwnedFd) {
        let _ = rustix::fs::fstat(directory).map_err(io::Error::from).and_then(|now| self.note(&now));
    }

    fn note(&self, now: &Stat) -> io::Result<()> {
        let ((device, number), (seconds, nanoseconds)) = (id(now), changed_at(now));
        if self.ours.borrow_mut().insert((device, number), (seconds, nanoseconds))
            == Some((seconds, nanoseconds))
        {
            return Ok(());
        }
        let mut log = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.log)?;
        log.write_all(format!("{device} {number} {seconds} {nanoseconds}\n").as_bytes())
    }

    /// For tests: no change is later than the run's begin.
    #[cfg(test)]
    pub(super) fn never(mut self) -> Self {
        self.began = (i64::MAX, 0);
        self
    }
}

/// Parses a line of the log. Returns `None` for a truncated one.
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
