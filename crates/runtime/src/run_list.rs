//! The list of all runs on record, and which of their records cannot be read: a newest run that is left out in silence would make another
//! one the latest.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use policy::RunId;

use crate::error::Error;
use crate::record::{RunRecord, now};
use crate::state::{RECORD, StateDirectory, state_error};

/// Every run on record.
#[derive(Debug, Default)]
pub struct RunList {
    /// The records that can be read, the latest first.
    pub records: Vec<RunRecord>,
    /// Those that cannot.
    pub unreadable: Vec<UnreadableRecord>,
    /// When the file of the latest record was written last.
    latest_written: Option<SystemTime>,
}

/// A record that cannot be read.
#[derive(Debug)]
pub struct UnreadableRecord {
    /// The run.
    pub run: RunId,
    /// Its file.
    pub path: PathBuf,
    /// Why it cannot be read.
    pub error: Error,
    /// When its file was written last.
    written: Option<SystemTime>,
}

impl RunList {
    /// Reads every record.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn read(directory: &StateDirectory) -> Result<Self, Error> {
        let mut list = Self::default();
        let at = |source| state_error(&directory.runs(), source);
        let entries = match std::fs::read_dir(directory.runs()) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(list),
            Err(source) => return Err(at(source)),
        };
        for entry in entries {
            let name = entry.map_err(at)?.file_name();
            let run = name.to_str().and_then(|name| name.strip_suffix(RECORD)?.parse::<RunId>().ok());
            let Some(run) = run else { continue };
            match RunRecord::read(directory, &run) {
                Ok(record) => list.records.push(record),
                // It was removed meanwhile, or is a moment old.
                Err(Error::NoRun { .. }) => {}
                Err(Error::Record { .. }) if RunRecord::is_unwritten(directory, &run) => {}
                Err(error) => {
                    let path = directory.record(&run);
                    let written = written(&path);
                    list.unreadable.push(UnreadableRecord { run, path, error, written });
                }
            }
        }
        sort(&mut list.records);
        let latest = list.records.first().and_then(|record| record.id.parse().ok());
        list.latest_written = latest.and_then(|run| written(&directory.record(&run)));
        Ok(list)
    }

    /// Returns the first record that cannot be read and may be of a later run than the latest that can.
    #[must_use]
    pub fn maybe_later(&self) -> Option<&UnreadableRecord> {
        let may_be_later = |record: &&UnreadableRecord| match (record.written, self.latest_written) {
            (Some(written), Some(latest)) => written >= latest,
            _ => true,
        };
        self.unreadable.iter().find(may_be_later)
    }
}

/// Sorts records, the latest first. One that is dated later than a later run of its boot counts as begun when that run did: the clock was
/// set back between them.
fn sort(records: &mut [RunRecord]) {
    let begun = |record: &RunRecord| record.process.and_then(|it| Some((it.boot()?, it.ticks())));
    let mut of_boots: Vec<_> =
        records.iter().filter_map(|it| Some((begun(it)?, it.started.clone()))).collect();
    of_boots.sort_by_key(|(begun, _)| Reverse(*begun));
    let mut counts: BTreeMap<(u32, u64), String> = BTreeMap::new();
    let mut next: Option<(u32, String)> = None;
    for ((boot, ticks), started) in of_boots {
        let earlier = match next {
            Some((of, later)) if of == boot => later.min(started),
            _ => started,
        };
        counts.insert((boot, ticks), earlier.clone());
        next = Some((boot, earlier));
    }
    records.sort_by_cached_key(|record| {
        let begun = begun(record);
        let counted = begun.and_then(|begun| counts.get(&begun)).unwrap_or(&record.started);
        Reverse((counted.clone(), begun.map(|(_, ticks)| ticks)))
    });
}

fn written(path: &Path) -> Option<SystemTime> {
    std::fs::symlink_metadata(path).and_then(|about| about.modified()).ok()
}

impl RunRecord {
    /// Returns every run on record whose record can be read, the latest first.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn list(directory: &StateDirectory) -> Result<Vec<Self>, Error> {
        Ok(RunList::read(directory)?.records)
    }

    /// Whether it is of a later moment than now: the clock was set back since.
    #[must_use]
    pub fn begins_in_the_future(&self) -> bool {
        self.started > now()
    }

    /// Whether nothing tells which of two runs is the later one: the clock was set back between them, and they are not known to be of one
    /// boot.
    #[must_use]
    pub fn may_be_on_either_side_of(&self, other: &Self) -> bool {
        let [own, others] = [self, other].map(|it| it.process.and_then(sandbox::ProcessStamp::boot));
        let are_of_one_boot = own.is_some() && own == others;
        !are_of_one_boot && (self.begins_in_the_future() || other.begins_in_the_future())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_back_makes_no_older_run_the_latest() {
        let record = |id: &str, started: &str, process: Option<&str>| RunRecord {
            started: started.into(),
            process: process.map(|process| serde_json::from_str(process).unwrap()),
            ..RunRecord::for_test(id)
        };
        let (one, two) = (Some(r#"{"pid":9,"at":100,"boot":1}"#), Some(r#"{"pid":8,"at":200,"boot":1}"#));
        let before = record("before", "2999-01-01T19:00:00.000Z", one);
        let after = record("after", "2026-01-01T15:00:00.000Z", two);
        let other = record("other", "2026-01-01T17:00:00.000Z", Some(r#"{"pid":7,"at":9,"boot":2}"#));
        let untold = record("untold", "2026-01-01T14:00:00.000Z", None);
        let all = [&untold, &before, &other, &after];
        for first in 0..all.len() {
            let mut records: Vec<RunRecord> =
                all.iter().cycle().skip(first).take(4).copied().cloned().collect();
            sort(&mut records);
            let ids: Vec<&str> = records.iter().map(|it| it.id.as_str()).collect();
            assert_eq!(ids, ["other", "after", "before", "untold"]);
        }
        assert!(!after.may_be_on_either_side_of(&before) && !after.may_be_on_either_side_of(&other));
        assert!(before.may_be_on_either_side_of(&other) && untold.may_be_on_either_side_of(&before));
    }

    #[test]
    fn a_record_that_cannot_be_read_is_listed_as_such() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::for_test(folder.path());
        let run: RunId = "abcdefghjkmn".parse().unwrap();
        assert!(RunList::read(&directory).unwrap().maybe_later().is_none());
        RunRecord::for_test(run.as_str()).write(&directory, &run).unwrap();
        // One that has just begun has its lock and no record yet, and is not listed.
        let begun: RunId = "bcdefghjkmna".parse().unwrap();
        std::fs::write(directory.record(&begun), "").unwrap();
        std::fs::create_dir_all(directory.live()).unwrap();
        let lock = std::fs::File::create(directory.live().join(begun.as_str())).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let list = RunList::read(&directory).unwrap();
        assert_eq!((list.records.len(), list.unreadable.len()), (1, 0));
        drop(lock);
        let list = RunList::read(&directory).unwrap();
        assert_eq!((list.records.len(), list.unreadable.len()), (1, 1));
        assert_eq!(list.maybe_later().unwrap().run, begun);
    }
}
