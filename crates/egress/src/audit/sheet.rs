//! Where the lines of a chain go. While a sidecar serves, those that are added in one turn of its loop are written together, at the
//! end of the turn and before it waits for anything; what must not wait is written at once.

use std::fs::File;
use std::io::{self, Write};
use std::rc::Rc;

use tokio::sync::Notify;

/// How much may wait for the end of a turn.
const MOST_WAITING: usize = 64 << 10;

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
}

impl Sheet {
    pub(super) fn of(file: File) -> Self {
        Self { file, waiting: Vec::new(), writer: None, is_cut: false }
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

    /// Writes what waits.
    pub(super) fn write(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        // What was cut off must not be read together with what comes after it.
        let ended = if self.is_cut { self.file.write_all(b"\n") } else { Ok(()) };
        let written = ended.and_then(|()| self.file.write_all(&self.waiting));
        self.is_cut = written.is_err();
        self.waiting.clear();
        written
    }
}

impl Drop for Sheet {
    fn drop(&mut self) {
        let _ = self.write();
    }
}
