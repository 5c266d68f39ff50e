//! The list of all runs on record, and which of their records cannot be read: a newest run that is left out in silence would make another
//! one the latest.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use policy::RunId;

use crate::error::Error;
use crate::record::RunRecord;
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
        list.records.sort_by(|a, b| b.started.cmp(&a.started));
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
