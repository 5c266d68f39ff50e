//! The record of a run's begin: when it was, by which clock, and in which workspace. All of it is in the content of one file, because the
//! times of a file do not survive a copy. Where it cannot be relied on, every change counts as a later one.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};

use crate::file_id::FileId;

/// Seconds and nanoseconds.
pub(super) type Time = (i64, i64);

const NAME: &str = "since";
/// The most octets of it that are read: it has less than two hundred.
const MOST: u64 = 4096;
/// The last word, without which the rest is not complete.
const END: &str = "began";
/// How far the wall clock may have been set back, in nanoseconds: the two clocks are not read at once.
const STEP: i128 = 100_000_000;
const SECOND: i128 = 1_000_000_000;

/// Why all that is in the workspace counts as changed since.
const DAMAGED: &str = "the record of when the run began is damaged, so this may have changed meanwhile";
const SET_BACK: &str = "the clock was set back since the run began, so this may have changed meanwhile";

/// A run's begin.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Begin {
    pub(super) at: Time,
    pub(super) workspace: FileId,
    clock: Clock,
}

/// By how much the wall clock is ahead of the time since the machine was started, and which start that was.
#[derive(Debug, PartialEq, Eq)]
struct Clock {
    boot: String,
    ahead: i128,
}

impl Begin {
    /// Records the current time, that of the file system, and the workspace.
    pub(super) fn write(directory: &Path, workspace: FileId) -> io::Result<()> {
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(directory.join(NAME))?;
        let made = file.metadata()?;
        let begin = Self { at: (made.mtime(), made.mtime_nsec()), workspace, clock: Clock::now() };
        file.write_all(begin.written().as_bytes())?;
        file.sync_all()
    }

    /// Reads the record, or says why it cannot be relied on.
    pub(super) fn read(directory: &Path) -> io::Result<Result<Self, &'static str>> {
        let mut content = Vec::new();
        File::open(directory.join(NAME))?.take(MOST).read_to_end(&mut content)?;
        let Some(begin) = std::str::from_utf8(&content).ok().and_then(Self::parse) else {
            return Ok(Err(DAMAGED));
        };
        let begin = begin.by_the_clock_of(&Clock::now());
        let wall = clock_gettime(ClockId::Realtime);
        Ok(if begin.at > (wall.tv_sec, wall.tv_nsec) { Err(SET_BACK) } else { Ok(begin) })
    }

    /// Moves the time to where a clock that was set back has it. What was changed in as much time before it counts as later, since nobody
    /// knows by which of the two clocks that was.
    fn by_the_clock_of(mut self, now: &Clock) -> Self {
        if let Some(back) = now.behind(&self.clock) {
            let at = nanoseconds(self.at) - back - STEP;
            let seconds = i64::try_from(at.div_euclid(SECOND)).unwrap_or(i64::MIN);
            self.at = (seconds, i64::try_from(at.rem_euclid(SECOND)).unwrap_or(0));
        }
        self
    }

    /// For tests: a run that began at a time, in no folder that is known.
    #[cfg(test)]
    pub(super) fn at(at: Time) -> Self {
        let workspace = FileId::read("0:0:0:0:0").expect("an identity");
        Self { at, workspace, clock: Clock { boot: String::new(), ahead: 0 } }
    }

    fn written(&self) -> String {
        let Self { at: (seconds, nanoseconds), workspace, clock: Clock { boot, ahead } } = self;
        format!("{} {seconds} {nanoseconds} {boot} {ahead} {END}\n", workspace.written())
    }

    fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.strip_suffix('\n')?.split(' ').collect();
        let &[workspace, seconds, nanoseconds, boot, ahead, END] = &*words else { return None };
        let clock = Clock { boot: boot.into(), ahead: ahead.parse().ok()? };
        let at = (seconds.parse().ok()?, nanoseconds.parse().ok()?);
        Some(Self { at, workspace: FileId::read(workspace)?, clock })
    }
}

impl Clock {
    fn now() -> Self {
        let read = |clock| {
            let time = clock_gettime(clock);
            nanoseconds((time.tv_sec, time.tv_nsec))
        };
        let ahead = read(ClockId::Realtime) - read(ClockId::Boottime);
        // Without `/proc`, only a begin that is to come is noticed.
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self { boot: boot.trim().into(), ahead }
    }

    /// Returns by how much it was set back since an earlier look, if it was and both are of one start of the machine.
    fn behind(&self, earlier: &Self) -> Option<i128> {
        let is_one_start = !self.boot.is_empty() && self.boot == earlier.boot;
        let back = earlier.ahead.saturating_sub(self.ahead);
        (is_one_start && back > STEP).then_some(back)
    }
}

fn nanoseconds((seconds, nanoseconds): Time) -> i128 {
    i128::from(seconds) * SECOND + i128::from(nanoseconds)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn folder() -> (tempfile::TempDir, FileId) {
        let folder = tempfile::tempdir().unwrap();
        let id = FileId::of(File::open(folder.path()).unwrap().as_fd()).unwrap();
        Begin::write(folder.path(), id).unwrap();
        (folder, id)
    }

    fn change(folder: &Path, change: impl FnOnce(&mut Begin)) {
        let mut begin = Begin::read(folder).unwrap().unwrap();
        change(&mut begin);
        std::fs::write(folder.join(NAME), begin.written()).unwrap();
    }

    #[test]
    fn it_is_read_as_it_was_written_whatever_the_files_time() {
        let (folder, id) = folder();
        let begin = Begin::read(folder.path()).unwrap().unwrap();
        let copy = tempfile::tempdir().unwrap();
        std::fs::write(copy.path().join(NAME), std::fs::read(folder.path().join(NAME)).unwrap()).unwrap();
        let hour = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
        File::options().write(true).open(copy.path().join(NAME)).unwrap().set_modified(hour).unwrap();
        assert_eq!(Begin::read(copy.path()).unwrap().unwrap(), begin);
        assert_eq!(begin.workspace, id);
    }

    #[test]
    fn one_that_was_cut_says_nothing() {
        let (folder, _) = folder();
        let whole = std::fs::read(folder.path().join(NAME)).unwrap();
        for length in 0..whole.len() {
            std::fs::write(folder.path().join(NAME), &whole[..length]).unwrap();
            assert_eq!(Begin::read(folder.path()).unwrap(), Err(DAMAGED), "{length}");
        }
    }

    #[test]
    fn a_clock_that_was_set_back_is_noticed() {
        let (folder, _) = folder();
        let begin = Begin::read(folder.path()).unwrap().unwrap();
        change(folder.path(), |begin| begin.clock.ahead += 3600 * SECOND);
        let moved = Begin::read(folder.path()).unwrap().unwrap().at;
        let back = nanoseconds(begin.at) - nanoseconds(moved);
        assert!(
            (back - 3600 * SECOND - STEP).abs() < STEP && (0..1_000_000_000).contains(&moved.1),
            "{moved:?}"
        );
        let (folder, _) = self::folder();
        change(folder.path(), |begin| begin.at.0 += 3600);
        assert_eq!(Begin::read(folder.path()).unwrap(), Err(SET_BACK));
        // Since another start of the machine, nobody knows.
        let (folder, _) = self::folder();
        change(folder.path(), |begin| begin.clock = Clock { boot: "another".into(), ahead: i128::MAX / 2 });
        assert!(Begin::read(folder.path()).unwrap().unwrap().at >= begin.at);
        let clock = |boot: &str, ahead| Clock { boot: boot.into(), ahead };
        assert_eq!(clock("", 0).behind(&clock("", SECOND)), None);
        assert_eq!(clock("a", 0).behind(&clock("b", SECOND)), None);
        assert_eq!(clock("a", 0).behind(&clock("a", SECOND)), Some(SECOND));
        assert_eq!(clock("a", 0).behind(&clock("a", i128::MIN)), None);
    }
}
