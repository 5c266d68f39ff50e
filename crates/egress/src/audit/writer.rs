//! Writes the lines of a chain to a file. While a sidecar serves, the lines of one iteration of its event loop are written together, at
//! the end of the iteration. Lines that must not wait are written at once.

use std::fs::File;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::removal::RemovalWatch;

/// The most octets that are batched.
const MOST_WAITING: usize = 64 << 10;
/// The most octets that are kept while the disk is full.
const MOST_KEPT: usize = 4 << 20;

/// A file of records, and the lines that are not written yet.
#[derive(Debug)]
pub(super) struct RecordWriter {
    file: Arc<File>,
    removal: RemovalWatch,
    /// The octets that are not written yet. They end with the line that is being built.
    waiting: Vec<u8>,
    /// Notified when lines are batched; without it each line is written at once.
    batched: Option<Rc<Notify>>,
    /// Whether the file may end in a partial line.
    is_cut: bool,
    /// Why the last write failed for lack of space. The next one continues at the octet where it failed, so no line is lost.
    full: Option<io::Error>,
    /// How many lines an error has lost.
    lost: u64,
}

impl RecordWriter {
    pub(super) fn new(file: Arc<File>) -> Self {
        let removal = RemovalWatch::over(&file);
        Self { file, removal, waiting: Vec::new(), batched: None, is_cut: false, full: None, lost: 0 }
    }

    /// Batches lines from now on, and notifies `batched` when there are some to write.
    pub(super) fn batch(&mut self, batched: Rc<Notify>) {
        self.batched = Some(batched);
    }

    /// The waiting lines, for the next one to be appended.
    pub(super) fn lines(&mut self) -> &mut Vec<u8> {
        &mut self.waiting
    }

    /// Accepts the appended line: batches it, or writes it if there is no batching or the batch is full.
    pub(super) fn add(&mut self) -> io::Result<()> {
        match &self.batched {
            Some(batched) if self.waiting.len() < MOST_WAITING => {
                batched.notify_one();
                Ok(())
            }
            _ => self.write(),
        }
    }

    /// Whether lines wait for space on the disk.
    pub(super) fn is_full(&self) -> bool {
        self.full.is_some()
    }

    /// Whether the file was removed, with all that is in it, as of at most a second ago.
    pub(super) fn is_removed(&self) -> bool {
        self.removal.is_removed(&self.file)
    }

    /// Whether it was removed by now.
    pub(super) fn is_removed_now(&self) -> bool {
        self.removal.is_removed_now(&self.file)
    }

    /// Discards the lines that wait for space, and returns the error that made them wait.
    pub(super) fn give_up(&mut self) -> Option<io::Error> {
        let why = self.full.take()?;
        self.lose_what_waits();
        Some(why)
    }

    /// How many lines are not in the file, and never will be.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Of a line that is cut, the end is still there: it counts as well.
    fn lose_what_waits(&mut self) {
        let lines = self.waiting.iter().filter(|octet| **octet == b'\n').count();
        self.lost += u64::try_from(lines).unwrap_or(u64::MAX);
        self.waiting.clear();
    }

    /// Writes the waiting lines. If the disk is full they go on waiting, which is no error. Any other error loses them.
    pub(super) fn write(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let mut done = 0;
        let written = self.end_cut_line().and_then(|()| self.write_from(&mut done));
        self.full = None;
        if let Err(error) = written {
            self.waiting.drain(..done);
            if is_about_room(&error) && self.waiting.len() <= MOST_KEPT {
                self.full = Some(error);
                return Ok(());
            }
            self.is_cut = true;
            self.lose_what_waits();
            return Err(error);
        }
        self.waiting.clear();
        Ok(())
    }

    /// Keeps a partial line apart from the next one by a newline.
    fn end_cut_line(&mut self) -> io::Result<()> {
        if self.is_cut {
            (&*self.file).write_all(b"\n")?;
            self.is_cut = false;
        }
        Ok(())
    }

    fn write_from(&mut self, done: &mut usize) -> io::Result<()> {
        while *done < self.waiting.len() {
            match (&*self.file).write(&self.waiting[*done..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => *done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Continues in another file.
    #[cfg(test)]
    pub(super) fn redirect(&mut self, file: File) {
        self.file = Arc::new(file);
    }
}

/// Whether a later write may succeed.
fn is_about_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl Drop for RecordWriter {
    fn drop(&mut self) {
        let _ = self.write();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::records_in;

    #[test]
    fn a_cut_line_is_ended_once_there_is_room_for_it() {
        let mut file = tempfile::tempfile().unwrap();
        let full = || File::options().write(true).open("/dev/full").unwrap();
        let mut writer = RecordWriter::new(Arc::new(file.try_clone().unwrap()));
        writer.lines().extend_from_slice(b"cut");
        writer.write().unwrap();
        // More waits for room than is kept.
        writer.redirect(full());
        writer.lines().resize(MOST_KEPT + 1, b'x');
        assert!(writer.write().is_err());
        // There is none for the newline either.
        writer.lines().extend_from_slice(b"next\n");
        writer.write().unwrap();
        assert!(writer.is_full());
        writer.redirect(file.try_clone().unwrap());
        writer.write().unwrap();
        writer.lines().extend_from_slice(b"last\n");
        writer.write().unwrap();
        let text = records_in(&mut file);
        assert_eq!(text, "cut\nnext\nlast\n");
    }
}
