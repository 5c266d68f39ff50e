//! Where the lines of a chain go. While a sidecar serves, those that are added in one turn of its loop are written together, at the
//! end of the turn and before it waits for anything; what must not wait is written at once.

use std::fs::File;
use std::io::{self, Write};
use std::rc::Rc;

use tokio::sync::Notify;

/// How much may wait for the end of a turn.
const MOST_WAITING: usize = 64 << 10;
/// How much may wait for room on the disk.
const MOST_KEPT: usize = 4 << 20;

/// A file that takes lines.
#[derive(Debug)]
pub(super) struct Sheet {
    file: File,
    /// What is not written yet; at its end, the line that is being made.
    waiting: Vec<u8>,
    /// Who writes at the end of a turn, where there is one.
    writer: Option<Rc<Notify>>,
    /// Whether what was written last may be half a line.
    is_cut: bool,
    /// That there was no room for what waits. It goes on with the octet at which that was found, so that no line is lost.
    full: Option<io::Error>,
}

impl Sheet {
    pub(super) fn of(file: File) -> Self {
        Self { file, waiting: Vec::new(), writer: None, is_cut: false, full: None }
    }

    /// Has lines wait for whoever is notified.
    pub(super) fn wait_for(&mut self, writer: Rc<Notify>) {
        self.writer = Some(writer);
    }

    /// The lines that wait, to which another may be added.
    pub(super) fn lines(&mut self) -> &mut Vec<u8> {
        &mut self.waiting
    }

    /// A line is whole, and is written in its turn.
    pub(super) fn add(&mut self) -> io::Result<()> {
        match &self.writer {
            Some(writer) if self.waiting.len() < MOST_WAITING => {
                writer.notify_one();
                Ok(())
            }
            _ => self.write(),
        }
    }

    /// Whether lines wait for room.
    pub(super) fn is_full(&self) -> bool {
        self.full.is_some()
    }

    /// Gives up what waits for room, and says why it does.
    pub(super) fn give_up(&mut self) -> Option<io::Error> {
        let why = self.full.take()?;
        self.waiting.clear();
        Some(why)
    }

    /// Writes what waits. Where there is no room it goes on waiting, which is no error; what an error loses is lost for good.
    pub(super) fn write(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        // What was cut off must not be read together with what comes after it.
        let ended = if self.is_cut { self.file.write_all(b"\n") } else { Ok(()) };
        let mut done = 0;
        let written = ended.and_then(|()| self.write_from(&mut done));
        self.is_cut = false;
        self.full = None;
        if let Err(error) = written {
            self.waiting.drain(..done);
            if is_about_room(&error) && self.waiting.len() <= MOST_KEPT {
                self.full = Some(error);
                return Ok(());
            }
            self.is_cut = true;
            self.waiting.clear();
            return Err(error);
        }
        self.waiting.clear();
        Ok(())
    }

    fn write_from(&mut self, done: &mut usize) -> io::Result<()> {
        while *done < self.waiting.len() {
            match self.file.write(&self.waiting[*done..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => *done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Goes on in another file.
    #[cfg(test)]
    pub(super) fn turn_to(&mut self, file: File) {
        self.file = file;
    }
}

/// Whether there may be room later.
fn is_about_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl Drop for Sheet {
    fn drop(&mut self) {
        let _ = self.write();
    }
}
