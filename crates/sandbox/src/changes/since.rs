//! Tells whether somebody else changed a file of the workspace after a run began. Applying a change to one name of a file with several
//! names changes the file at all of them, and applying one in a directory changes the directory, so such changes of our own are recorded
//! beside the upper layer for later applies: what is about to change before it does, since an apply may be killed, and when it was
//! changed afterwards. So is which folder the workspace was: files of another one may be older than the run.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::Stat;

use super::begin::{Begin, Time};
use super::mode::is_directory;
use crate::file_id::Likeness;
use crate::file_system::is_of_this_machine;

/// The log of our own changes to files with several names, and to directories, and of staged files.
const OURS: &str = "ours";
/// The most octets of it that are read. A line has less than a hundred.
const MOST: u64 = 64 << 20;

/// The device and inode number of a file.
pub(super) type Number = (u64, u64);
/// Why a change in another folder than the run's is a conflict.
const ANOTHER: &str = "the workspace is another folder than that of the run";
/// Why one on overlayfs is, where the folder has another number.
const PERHAPS_ANOTHER: &str =
    "the workspace may be another folder than that of the run: overlayfs gave it another number";
/// Why a change on a file system with a clock of its own is a conflict.
const OTHER_CLOCK: &str =
    "its file system may go by another machine's clock, so this may have changed meanwhile";

/// What a line of the log says of a file, whose device and inode number precede it. It ends in a word: a truncated one says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ours {
    /// `SECONDS NANOSECONDS at`: our own last change of it.
    At(Time),
    /// `begun`: an apply changes what is in this directory, or was killed while it did.
    Begun,
    /// `SECONDS NANOSECONDS SIZE MODE was`: an apply is about to take away one of its names. It is as it was while this is what it was.
    Unwritten(Time, i64, u32),
}

/// A file with several names, and its status when it was read.
pub(super) struct Linked {
    pub(super) file: OwnedFd,
    pub(super) before: Stat,
}

/// A staged file, in the log `NAME DEVICE NUMBER staged`. Only the file of this number is it, whatever is at its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Staged {
    pub(super) name: String,
    pub(super) number: Number,
}

/// The time since which a change is somebody else's.
#[derive(Debug)]
pub(super) struct Since {
    /// When the run began and where, or why that is not known.
    begin: Result<Begin, &'static str>,
    /// Our own changes of files, by their device and inode numbers.
    ours: RefCell<HashMap<Number, Ours>>,
    /// The directories in which this apply changes something, and nobody else has, and when it last did.
    changing: RefCell<HashMap<Number, Time>>,
    /// The last staged file that an earlier apply made.
    staged: Option<Staged>,
    log: PathBuf,
}

impl Since {
    pub(super) fn read(directory: &Path) -> io::Result<Self> {
        let begin = Begin::read(directory)?;
        let log = directory.join(OURS);
        let mut text = String::new();
        match File::open(&log) {
            Ok(file) => _ = file.take(MOST).read_to_string(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let ours = RefCell::new(text.lines().filter_map(entry).collect());
        let staged = text.lines().filter_map(staged).next_back();
        Ok(Self { begin, ours, changing: RefCell::default(), staged, log })
    }

    /// Returns why nothing in a folder can be told from what it was when the run began: it is another one, or has times of another clock, or
    /// the begin is not known. A share that is mounted anew has another device.
    pub(super) fn doubt(&self, folder: BorrowedFd<'_>) -> io::Result<Option<&'static str>> {
        let begin = match &self.begin {
            Err(why) => return Ok(Some(why)),
            Ok(begin) => begin,
        };
        Ok(match begin.workspace.likeness(folder)? {
            Likeness::Another => Some(ANOTHER),
            Likeness::Perhaps => Some(PERHAPS_ANOTHER),
            Likeness::Same => (!is_of_this_machine(folder)).then_some(OTHER_CLOCK),
        })
    }

    /// Whether somebody else changed a file since the run began.
    pub(super) fn is_past(&self, now: &Stat) -> bool {
        let changed = changed_at(now);
        let Ok(Begin { at: began, .. }) = self.begin else { return true };
        // Where the file system keeps whole seconds, in which one the run began.
        let is_whole = changed.1 == 0 && changed.0 == began.0;
        (changed > began || is_whole)
            && !self.ours.borrow().get(&id(now)).is_some_and(|ours| match *ours {
                Ours::At(time) => time == changed,
                Ours::Begun => is_directory(now.st_mode),
                Ours::Unwritten(..) => *ours == unwritten(now),
            })
    }

    /// Makes one change in a directory. It is our own one, unless somebody else has changed the directory before. What cannot be recorded,
    /// the next apply takes for somebody else's.
    pub(super) fn change_in<T>(&self, directory: &OwnedFd, change: impl FnOnce() -> T) -> T {
        if let Ok(before) = rustix::fs::fstat(directory) {
            self.begin_in(&before);
        }
        let changed = change();
        if let Ok(after) = rustix::fs::fstat(directory)
            && let Some(last) = self.changing.borrow_mut().get_mut(&id(&after))
        {
            *last = changed_at(&after);
        }
        changed
    }

    fn begin_in(&self, directory: &Stat) {
        let id = id(directory);
        let last = self.changing.borrow().get(&id).copied();
        match last {
            Some(last) if last == changed_at(directory) => {}
            // Somebody has changed it since, which is a conflict from now on.
            Some(last) => {
                self.changing.borrow_mut().remove(&id);
                self.note(id, Ours::At(last));
            }
            None if self.is_past(directory) => {}
            None => self.note_made(directory),
        }
    }

    /// Records our own making of a directory, in which more is to be made.
    pub(super) fn note_made(&self, directory: &Stat) {
        self.changing.borrow_mut().insert(id(directory), changed_at(directory));
        self.note(id(directory), Ours::Begun);
    }

    /// Goes on in a directory if an apply was killed that changed something in it.
    pub(super) fn resume_in(&self, directory: &OwnedFd) {
        if let Ok(directory) = rustix::fs::fstat(directory)
            && self.ours.borrow().get(&id(&directory)) == Some(&Ours::Begun)
        {
            self.changing.borrow_mut().insert(id(&directory), changed_at(&directory));
        }
    }

    /// Records when we last changed each of the directories in which this apply changed something. In others, a killed one may still be to
    /// be finished.
    pub(super) fn end(&self) {
        for (id, last) in self.changing.take() {
            self.note(id, Ours::At(last));
        }
    }

    /// Records that a file, which nobody else has changed, is about to lose one of its several names.
    pub(super) fn begin_with(&self, linked: &Linked) {
        self.note(id(&linked.before), unwritten(&linked.before));
    }

    /// Records our own change to a file with several names, unless somebody wrote it since it was read.
    pub(super) fn note_own(&self, Linked { file, before }: Linked) {
        if let Ok(now) = rustix::fs::fstat(file)
            && unwritten(&now) == unwritten(&before)
        {
            self.note(id(&now), Ours::At(changed_at(&now)));
        }
    }

    /// Returns the last staged file that an earlier apply made, which is left where that was killed.
    pub(super) fn last_staged(&self) -> Option<&Staged> {
        self.staged.as_ref()
    }

    /// Records a staged file that was made.
    pub(super) fn note_staged(&self, staged: &Staged) {
        let (device, number) = staged.number;
        self.append(&format!("{} {device} {number} staged", staged.name));
    }

    fn note(&self, id: Number, ours: Ours) {
        if self.ours.borrow_mut().insert(id, ours) == Some(ours) {
            return;
        }
        let (device, number) = id;
        self.append(&match ours {
            Ours::At((seconds, nanoseconds)) => format!("{device} {number} {seconds} {nanoseconds} at"),
            Ours::Begun => format!("{device} {number} begun"),
            Ours::Unwritten((seconds, nanoseconds), size, mode) => {
                format!("{device} {number} {seconds} {nanoseconds} {size} {mode} was")
            }
        });
    }

    fn append(&self, line: &str) {
        let append = || {
            let mut log =
                OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&self.log)?;
            let mut last = [b'\n'];
            if let Some(at) = log.metadata()?.len().checked_sub(1) {
                log.read_exact_at(&mut last, at)?;
            }
            // One that was truncated stays on its own.
            let end = if last == *b"\n" { "" } else { "\n" };
            log.write_all(format!("{end}{line}\n").as_bytes())
        };
        let _: io::Result<()> = append();
    }

    /// For tests: a run that began at a time, of which nothing is noted.
    #[cfg(test)]
    pub(super) fn at(began: Time, log: PathBuf) -> Self {
        let begin = Ok(Begin::at(began));
        Self { begin, ours: RefCell::default(), changing: RefCell::default(), staged: None, log }
    }

    /// For tests: no change is later than the run's begin.
    #[cfg(test)]
    pub(super) fn never(mut self) -> Self {
        self.begin = Ok(Begin::at((i64::MAX, 0)));
        self
    }
}

/// Parses a line of the log that tells of a change. Returns `None` for a truncated one.
fn entry(line: &str) -> Option<(Number, Ours)> {
    let words: Vec<&str> = line.split(' ').collect();
    let time = |seconds: &str, nanoseconds: &str| Some((seconds.parse().ok()?, nanoseconds.parse().ok()?));
    let &[device, inode, ref said @ ..] = &*words else { return None };
    let ours = match *said {
        ["begun"] => Ours::Begun,
        [seconds, nanoseconds, "at"] => Ours::At(time(seconds, nanoseconds)?),
        [seconds, nanoseconds, size, mode, "was"] => {
            Ours::Unwritten(time(seconds, nanoseconds)?, size.parse().ok()?, mode.parse().ok()?)
        }
        _ => return None,
    };
    Some((number(device, inode)?, ours))
}

/// Parses a line of the log that tells of a staged file. Returns `None` for a truncated one.
fn staged(line: &str) -> Option<Staged> {
    let words: Vec<&str> = line.split(' ').collect();
    let &[name, device, inode, "staged"] = &*words else { return None };
    let number = number(device, inode)?;
    Some(Staged { name: name.into(), number })
}

fn number(device: &str, inode: &str) -> Option<Number> {
    Some((device.parse().ok()?, inode.parse().ok()?))
}

pub(super) fn id(stat: &Stat) -> Number {
    (stat.st_dev, stat.st_ino)
}

fn changed_at(stat: &Stat) -> Time {
    (stat.st_ctime, i64::try_from(stat.st_ctime_nsec).unwrap_or_default())
}

/// What of a file changes when it is written, and not when it loses a name.
fn unwritten(stat: &Stat) -> Ours {
    let nanoseconds = i64::try_from(stat.st_mtime_nsec).unwrap_or_default();
    Ours::Unwritten((stat.st_mtime, nanoseconds), stat.st_size, stat.st_mode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_id::FileId;

    #[test]
    fn where_seconds_are_whole_the_one_of_the_begin_counts() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::open(folder.path()).unwrap();
        let since = Since::at((100, 7), folder.path().join(OURS));
        let mut now = rustix::fs::fstat(&file).unwrap();
        for (seconds, nanoseconds, is_past) in
            [(99, 0, false), (100, 0, true), (100, 7, false), (100, 8, true), (101, 0, true), (99, 8, false)]
        {
            (now.st_ctime, now.st_ctime_nsec) = (seconds, nanoseconds);
            assert_eq!(since.is_past(&now), is_past, "{seconds}.{nanoseconds}");
        }
    }

    #[test]
    fn what_was_begun_is_ours_until_it_ends() {
        let state = tempfile::tempdir().unwrap();
        let workspace = File::open(state.path()).unwrap();
        Begin::write(state.path(), FileId::of(std::os::fd::AsFd::as_fd(&workspace)).unwrap()).unwrap();
        let read = || Since { begin: Ok(Begin::at((0, 0))), ..Since::read(state.path()).unwrap() };
        let (file, folder) = (state.path().join("file"), state.path().join("folder"));
        std::fs::write(&file, "it").unwrap();
        std::fs::hard_link(&file, state.path().join("other")).unwrap();
        std::fs::create_dir(&folder).unwrap();
        let stat = |path: &Path| rustix::fs::stat(path).unwrap();
        let linked = || Linked { file: File::open(&file).unwrap().into(), before: stat(&file) };
        read().note_made(&stat(&folder));
        read().begin_with(&linked());
        std::fs::write(folder.join("in it"), "").unwrap();
        std::fs::remove_file(state.path().join("other")).unwrap();
        assert!(!read().is_past(&stat(&folder)) && !read().is_past(&stat(&file)));
        // A file that has the number of a folder that is gone is not ours.
        let mut other = stat(&folder);
        other.st_mode = stat(&file).st_mode;
        assert!(read().is_past(&other));
        // Nor is it ended by an apply that does not come there.
        read().end();
        assert!(!read().is_past(&stat(&folder)));
        let opened = File::open(&folder).unwrap().into();
        let next = read();
        next.resume_in(&opened);
        next.change_in(&opened, || std::fs::write(folder.join("more"), "")).unwrap();
        next.end();
        assert!(!read().is_past(&stat(&folder)));
        let mut later = stat(&folder);
        later.st_ctime += 1;
        assert!(read().is_past(&later));
        std::fs::write(&file, "theirs").unwrap();
        assert!(read().is_past(&stat(&file)));
    }

    #[test]
    fn a_truncated_line_says_nothing() {
        let state = tempfile::tempdir().unwrap();
        let log = state.path().join(OURS);
        let since = Since::at((0, 0), log.clone());
        let workspace = File::open(state.path()).unwrap();
        Begin::write(state.path(), FileId::of(std::os::fd::AsFd::as_fd(&workspace)).unwrap()).unwrap();
        let it = (1, 2);
        let name = ".lockgate-apply-0123456789abcdef".to_owned();
        let staged = Staged { name, number: (3, 4) };
        for ours in [Ours::At((5, 6)), Ours::Begun, Ours::Unwritten((5, 6), 7, 8)] {
            since.note(it, ours);
            since.note_staged(&staged);
            let whole = std::fs::read_to_string(&log).unwrap();
            let read = Since::read(state.path()).unwrap();
            assert_eq!(read.ours.take(), HashMap::from([(it, ours)]));
            assert_eq!(read.last_staged(), Some(&staged));
            for line in whole.lines() {
                for length in 0..line.len() {
                    std::fs::write(&log, &line[..length]).unwrap();
                    let read = Since::read(state.path()).unwrap();
                    assert!(
                        read.ours.borrow().is_empty() && read.last_staged().is_none(),
                        "{line}: {length}"
                    );
                    // Nor does the next one become a part of it.
                    read.note((9, 9), Ours::Begun);
                    let read = Since::read(state.path()).unwrap();
                    assert_eq!(read.ours.take(), HashMap::from([((9, 9), Ours::Begun)]), "{line}: {length}");
                }
            }
            std::fs::remove_file(&log).unwrap();
        }
    }
}
