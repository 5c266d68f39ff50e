//! Where the lines of a chain go. While a sidecar serves, those that are added in one turn of its loop are written together, at the
//! end of the turn and before it waits for anything; what must not wait is written at once.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::rc::Rc;

use tokio::sync::Notify;

use super::chain::Audit;

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
}

impl Sheet {
    pub(super) fn of(file: File) -> Self {
        Self { file, waiting: Vec::new(), writer: None }
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
        let written = self.file.write_all(&self.waiting);
        self.waiting.clear();
        written
    }
}

impl Drop for Sheet {
    fn drop(&mut self) {
        let _ = self.write();
    }
}

/// Writes the lines of each turn, for ever. It is woken by the first line of a turn, so it comes after all that were ready with it.
pub(crate) async fn write_in_turns(audit: &RefCell<Audit>) {
    let added = Rc::new(Notify::new());
    audit.borrow_mut().write_later(&added);
    loop {
        added.notified().await;
        audit.borrow_mut().write();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use policy::RunId;

    use super::super::chain::Entry;
    use super::super::key::SigningKey;
    use super::*;

    fn audit() -> (File, RefCell<Audit>) {
        let file = tempfile::tempfile().unwrap();
        let (key, _) = SigningKey::generate().unwrap();
        let run = RunId::from_random([1; 12]);
        let audit = Audit::begin(Some((file.try_clone().unwrap(), key)), &run).unwrap();
        (file, RefCell::new(audit))
    }

    fn lines(file: &mut File) -> usize {
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        text.lines().count()
    }

    #[tokio::test(flavor = "current_thread")]
    async fn one_turn_is_one_write_and_a_denial_waits_for_nothing() {
        let (mut file, audit) = audit();
        let added = async {
            tokio::task::yield_now().await; // the writer is there
            let entry = |outcome: &'static str| Entry {
                outcome: outcome.into(),
                plane: "forward".into(),
                ..Entry::default()
            };
            audit.borrow_mut().append(&mut entry("allowed"));
            audit.borrow_mut().append(&mut entry("failed"));
            assert_eq!(lines(&mut file), 1, "only the one that opens the chain");
            tokio::task::yield_now().await;
            assert_eq!(lines(&mut file), 3);
            audit.borrow_mut().append(&mut entry("allowed"));
            audit.borrow_mut().append(&mut entry("denied"));
            assert_eq!(lines(&mut file), 5);
            audit.borrow_mut().append(&mut entry("allowed"));
        };
        tokio::select! {
            biased;
            () = write_in_turns(&audit) => unreachable!(),
            () = added => {}
        }
        // Nobody writes in turns any more: the end of the chain takes with it what waits.
        audit.borrow_mut().close();
        assert_eq!(lines(&mut file), 7);
    }
}
