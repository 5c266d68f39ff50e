//! Writes records as a hash chain.
//!
//! A line is the record's JSON object, followed by the field `hash` and, if the record is signed, the field `sig`. `hash` is the SHA-256
//! of the object without these two; `sig` signs the hash.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use policy::{Hostname, Plane, Provider, RunId};
use tokio::sync::Notify;

use super::clock::Clock;
use super::companion::CompanionChain;
use super::draft::{RecordDraft, RecordLine};
use super::entry::{Digest, digest};
use super::key::SigningKey;
use super::word::{GateAction, Outcome};
use super::writer::RecordWriter;
use crate::notice::Summary;

/// The longest time, and the most records, without a signature.
const SIGN_EVERY: Duration = Duration::from_secs(1);
const SIGN_EVERY_RECORDS: u64 = 256;

/// The most octets of records that one run may write to the host's disk. Beyond it nothing more is granted, and only exchanges
/// granted before are still recorded, of which there are no more than connections and streams at once.
const MOST_WRITTEN: u64 = 256 << 20;

/// Records that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{records} record{} could not be written: {source}", if *records == 1 { "" } else { "s" })]
pub(crate) struct UnwrittenRecords {
    records: u64,
    source: io::Error,
}

impl UnwrittenRecords {
    /// How many there are, and why the first of them was lost.
    pub(crate) fn into_parts(self) -> (u64, io::Error) {
        (self.records, self.source)
    }
}

/// The audit of one run, as it is written.
#[derive(Debug)]
pub(crate) struct Audit {
    sink: Option<(RecordWriter, SigningKey)>,
    clock: Clock,
    run: String,
    next: u64,
    prev: Digest,
    signed_at: Instant,
    unsigned: u64,
    summary: Summary,
    written: u64,
    /// Records of exchanges that were not granted, beyond [`MOST_WRITTEN`].
    omitted: u64,
    /// Why the first record was lost. From then on nothing is allowed, see [`Audit::is_broken`].
    broken: Option<io::Error>,
}

impl Audit {
    /// Begins a chain with a signed record, which names the companion whose chain it is, if it is not the command's. Without a sink,
    /// records are counted and not written.
    pub(crate) fn begin(
        sink: Option<(Arc<File>, SigningKey)>,
        run: &RunId,
        companion: Option<&Hostname>,
    ) -> io::Result<Self> {
        let mut audit = Self {
            sink: sink.map(|(file, key)| (RecordWriter::new(file), key)),
            clock: Clock::default(),
            run: run.to_string(),
            next: 0,
            prev: "0".repeat(64),
            signed_at: Instant::now(),
            unsigned: SIGN_EVERY_RECORDS,
            summary: Summary::default(),
            written: 0,
            omitted: 0,
            broken: None,
        };
        let open = audit.of_gate(GateAction::Open, companion.map(ToString::to_string).unwrap_or_default());
        audit.append(&open);
        let full = audit.sink.as_mut().and_then(|(writer, _)| writer.give_up());
        match audit.broken.take().or(full) {
            Some(error) => Err(error),
            None => Ok(audit),
        }
    }

    /// Returns the draft of an exchange that begins now.
    pub(crate) fn of_exchange(&mut self, plane: Plane, action: &str, target: String) -> RecordDraft {
        RecordDraft::of_exchange(self.clock.now(), plane, action, target)
    }

    /// Returns the draft of a record of the run itself, as of now.
    fn of_gate(&mut self, action: GateAction, target: String) -> RecordDraft {
        RecordDraft::of_gate(self.clock.now(), action, target)
    }

    /// Batches records from now on: `added` is notified when there are some to [`Audit::write`].
    pub(super) fn batch(&mut self, added: &Rc<Notify>) {
        if let Some((writer, _)) = &mut self.sink {
            writer.batch(Rc::clone(added));
        }
    }

    /// Writes the batched records.
    pub(super) fn write(&mut self) {
        if let Some((writer, _)) = &mut self.sink
            && let Err(error) = writer.write()
        {
            self.broken.get_or_insert(error);
        }
    }

    /// Whether records were lost, the run has reached its limit, or the disk is still full. A sidecar that cannot record allows nothing.
    pub(crate) fn is_broken(&mut self) -> bool {
        if self.sink.as_ref().is_some_and(|(writer, _)| writer.is_removed()) {
            self.broken.get_or_insert_with(removed);
        }
        let is_full = |audit: &Self| audit.sink.as_ref().is_some_and(|(writer, _)| writer.is_full());
        if is_full(self) {
            self.write();
        }
        self.broken.is_some() || self.written > MOST_WRITTEN || is_full(self)
    }

    /// Returns the counts of the exchanges so far.
    pub(crate) fn summary(&self) -> Summary {
        Summary { omitted: self.omitted, ..self.summary.clone() }
    }

    /// Adds a record to the chain.
    pub(crate) fn append(&mut self, draft: &RecordDraft) {
        if draft.is_request() {
            match draft.outcome {
                Outcome::Allowed => self.summary.allowed += 1,
                Outcome::Denied => self.summary.denied += 1,
                Outcome::Failed => self.summary.failed += 1,
            }
        }
        if self.written > MOST_WRITTEN && draft.is_request() && !draft.is_granted() {
            self.omitted += 1;
            return;
        }
        let Some((writer, key)) = &mut self.sink else {
            self.next += 1;
            return;
        };
        let lines = writer.lines();
        let start = lines.len();
        let line = RecordLine::of(draft, self.next, &self.run, &self.prev);
        if let Err(error) = serde_json::to_writer(&mut *lines, &line) {
            lines.truncate(start);
            self.broken.get_or_insert(error.into());
            return;
        }
        let hash = digest(&lines[start..]);
        lines.pop(); // the closing brace
        lines.extend_from_slice(b",\"hash\":\"");
        lines.extend_from_slice(hash.as_bytes());
        self.unsigned += 1;
        if self.unsigned >= SIGN_EVERY_RECORDS || self.signed_at.elapsed() >= SIGN_EVERY {
            lines.extend_from_slice(b"\",\"sig\":\"");
            lines.extend_from_slice(key.sign(hash.as_bytes()).as_bytes());
            self.signed_at = Instant::now();
            self.unsigned = 0;
        }
        lines.extend_from_slice(b"\"}\n");
        self.written += (lines.len() - start) as u64;
        self.next += 1;
        self.prev = hash;
        let waits = draft.is_request() && draft.outcome != Outcome::Denied;
        if let Err(error) = if waits { writer.add() } else { writer.write() } {
            self.broken.get_or_insert(error);
        }
    }

    /// Records a companion of the run, with the first hash of its own chain.
    pub(crate) fn name_companion(&mut self, companion: &CompanionChain) {
        let CompanionChain { name, image, first } = companion.clone();
        let named = self.of_gate(GateAction::Companion, name);
        self.append(&RecordDraft { image: Some(image), chain: Some(first), ..named });
    }

    /// Records the variables in which the command itself holds a provider's credential.
    pub(crate) fn name_exposed(&mut self, provider: &Provider) {
        for name in provider.exposed() {
            let named = self.of_gate(GateAction::Expose, name.clone());
            self.append(&RecordDraft { provider: Some(provider.id().to_string()), ..named });
        }
    }

    /// Says how many records were left out, if any were, and ends the chain with a signed record.
    pub(crate) fn close(&mut self) {
        if self.omitted > 0 {
            let omit = self.of_gate(GateAction::Omit, String::new());
            let reason = format!("the audit of the run has reached {} MiB", MOST_WRITTEN >> 20);
            self.append(&RecordDraft { omitted: Some(self.omitted), reason: Some(reason), ..omit });
        }
        self.unsigned = SIGN_EVERY_RECORDS;
        let close = self.of_gate(GateAction::Close, String::new());
        self.append(&close);
    }

    /// Returns the records that could not be written, once the chain is closed. It waits for room no longer.
    pub(crate) fn unwritten(&mut self) -> Option<UnwrittenRecords> {
        self.write();
        let (writer, _) = self.sink.as_mut()?;
        let full = writer.give_up();
        let (records, gone) = match writer.is_removed_now() {
            true => (self.next, Some(removed())),
            false => (writer.lost(), None),
        };
        let source = self.broken.take().or(gone).or(full)?;
        Some(UnwrittenRecords { records, source })
    }
}

/// Says why what is written goes nowhere.
fn removed() -> io::Error {
    io::Error::other("the audit file was removed")
}

/// Writes the records of each iteration of the event loop together, for ever. The first record of an iteration wakes this task, which
/// then runs after all tasks that were ready with that record's.
pub(crate) async fn write_batches(audit: &RefCell<Audit>) {
    let added = Rc::new(Notify::new());
    audit.borrow_mut().batch(&added);
    loop {
        added.notified().await;
        audit.borrow_mut().write();
    }
}

#[cfg(test)]
mod tests {
    use policy::RunId;

    use super::*;
    use crate::fixture::records_in;

    fn audit() -> (File, RefCell<Audit>) {
        let file = tempfile::tempfile().unwrap();
        let (key, _) = SigningKey::generate().unwrap();
        let run = RunId::from_random([1; 12]);
        let audit = Audit::begin(Some((Arc::new(file.try_clone().unwrap()), key)), &run, None).unwrap();
        (file, RefCell::new(audit))
    }

    fn denial(target: String) -> RecordDraft {
        let asked = RecordDraft::of_exchange(String::new(), policy::Plane::Forward, "GET", target);
        RecordDraft { outcome: Outcome::Denied, ..asked }
    }

    fn lines(file: &mut File) -> usize {
        records_in(file).lines().count()
    }

    #[test]
    fn what_is_written_counts_and_is_signed_in_time() {
        let (mut file, audit) = audit();
        let mut audit = audit.into_inner();
        for _ in 0..3 {
            audit.append(&denial("http://x/".into()));
            assert_eq!(audit.written, records_in(&mut file).len() as u64);
        }
        audit.signed_at = Instant::now() - 2 * SIGN_EVERY;
        audit.append(&denial("http://x/".into()));
        assert!(records_in(&mut file).lines().last().unwrap().contains("\"sig\":"));
        assert_eq!(audit.unsigned, 0);
    }

    #[test]
    fn what_waits_for_room_is_written_when_there_is_some() {
        let (mut file, audit) = audit();
        let mut audit = audit.into_inner();
        let full = || File::options().write(true).open("/dev/full").unwrap();
        let denied = || denial(String::new());
        audit.sink.as_mut().unwrap().0.redirect(full());
        audit.append(&denied());
        audit.append(&denied());
        assert!(audit.is_broken());
        audit.sink.as_mut().unwrap().0.redirect(file.try_clone().unwrap());
        assert!(!audit.is_broken(), "there is room again, and nothing was lost");
        audit.append(&denied());
        audit.close();
        let public = audit.sink.as_ref().unwrap().1.public();
        let text = records_in(&mut file);
        let report = super::super::verify(text.as_bytes(), &public).unwrap();
        assert!(report.records == 5 && report.closed, "{report:?}");
    }

    #[test]
    fn what_waits_for_room_has_an_end() {
        let (_, audit) = audit();
        let mut audit = audit.into_inner();
        audit.sink.as_mut().unwrap().0.redirect(File::options().write(true).open("/dev/full").unwrap());
        for _ in 0..=(5 << 20) / 1000 {
            let target = "x".repeat(1000);
            audit.append(&denial(target));
        }
        audit.sink.as_mut().unwrap().0.redirect(tempfile::tempfile().unwrap());
        assert!(audit.is_broken(), "lines were lost");
    }

    #[test]
    fn a_full_audit_still_takes_what_was_granted_and_says_what_it_left_out() {
        let (mut file, audit) = audit();
        let mut audit = audit.into_inner();
        let exchange = |outcome, rule: Option<&str>| {
            let asked = RecordDraft::of_exchange(String::new(), Plane::Forward, "GET", "http://x/".into());
            RecordDraft { outcome, rule: rule.map(str::to_owned), ..asked }
        };
        audit.written = MOST_WRITTEN + 1;
        assert!(audit.is_broken(), "nothing more is granted");
        audit.append(&exchange(Outcome::Allowed, Some("rule")));
        audit.append(&exchange(Outcome::Failed, Some("rule")));
        // A rule may refuse as well, and what the gateway answers by itself was granted by none.
        audit.append(&exchange(Outcome::Denied, Some("rule")));
        audit.append(&exchange(Outcome::Denied, None));
        audit.append(&exchange(Outcome::Allowed, None));
        let summary = audit.summary();
        assert_eq!((summary.allowed, summary.denied, summary.failed, summary.omitted), (2, 2, 1, 3));
        audit.close();
        let public = audit.sink.as_ref().unwrap().1.public();
        let text = records_in(&mut file);
        let report = super::super::verify(text.as_bytes(), &public).unwrap();
        assert!(report.records == 5 && report.closed && report.omitted == 3, "{report:?}");
        let read = |line: &str| serde_json::from_str::<super::super::Entry>(line).unwrap();
        let omit = text.lines().nth(3).map(read).unwrap();
        assert_eq!((omit.gate_action(), omit.omitted), (Some(GateAction::Omit), Some(3)));
    }

    #[test]
    fn what_could_not_be_written_at_the_end_is_told() {
        let (_, audit) = audit();
        let mut audit = audit.into_inner();
        audit.append(&denial(String::new()));
        assert!(audit.unwritten().is_none());
        audit.sink.as_mut().unwrap().0.redirect(File::options().write(true).open("/dev/full").unwrap());
        audit.append(&denial(String::new()));
        audit.close();
        let unwritten = audit.unwritten().unwrap();
        assert!(unwritten.to_string().starts_with("2 records could not be written: "), "{unwritten}");
        let (records, source) = unwritten.into_parts();
        assert_eq!((records, source.kind()), (2, io::ErrorKind::StorageFull));
    }

    #[test]
    fn what_an_error_lost_is_told_at_the_end_though_more_was_written_after_it() {
        let (file, audit) = audit();
        let mut audit = audit.into_inner();
        // A descriptor that may not be written to.
        audit.sink.as_mut().unwrap().0.redirect(File::open("/dev/null").unwrap());
        audit.append(&denial(String::new()));
        audit.sink.as_mut().unwrap().0.redirect(file);
        audit.close();
        let (records, source) = audit.unwritten().unwrap().into_parts();
        assert_eq!((records, source.raw_os_error()), (1, Some(9)), "EBADF");
    }

    #[test]
    fn nothing_is_allowed_once_the_file_was_removed() {
        let begin = || {
            let file = tempfile::NamedTempFile::new().unwrap();
            let (key, _) = SigningKey::generate().unwrap();
            let opened = Arc::new(file.reopen().unwrap());
            (file, Audit::begin(Some((opened, key)), &RunId::from_random([1; 12]), None).unwrap())
        };
        let (file, mut audit) = begin();
        file.close().unwrap();
        assert!(audit.is_broken());
        // Nobody may have asked for anything since.
        let (file, mut unasked) = begin();
        assert!(!unasked.is_broken());
        file.close().unwrap();
        for audit in [&mut audit, &mut unasked] {
            audit.close();
            let unwritten = audit.unwritten().unwrap().to_string();
            assert_eq!(unwritten, "2 records could not be written: the audit file was removed");
        }
    }

    #[test]
    fn a_chain_that_cannot_begin_leaves_nothing() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let (key, _) = SigningKey::generate().unwrap();
        let run = RunId::from_random([1; 12]);
        let error = Audit::begin(Some((Arc::new(full), key)), &run, None).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(28), "the kernel's own words: {error}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn one_turn_is_one_write_and_a_denial_waits_for_nothing() {
        let (mut file, audit) = audit();
        let added = async {
            tokio::task::yield_now().await; // lets the writer start
            let append = |outcome| {
                let mut audit = audit.borrow_mut();
                let draft = audit.of_exchange(Plane::Forward, "GET", "http://x/".into());
                audit.append(&RecordDraft { outcome, ..draft });
            };
            append(Outcome::Allowed);
            append(Outcome::Failed);
            assert_eq!(lines(&mut file), 1, "only the one that opens the chain");
            tokio::task::yield_now().await;
            assert_eq!(lines(&mut file), 3);
            append(Outcome::Allowed);
            append(Outcome::Denied);
            assert_eq!(lines(&mut file), 5);
            append(Outcome::Allowed);
        };
        tokio::select! {
            biased;
            () = write_batches(&audit) => unreachable!(),
            () = added => {}
        }
        // The batch writer is gone, and closing the chain writes what it left.
        audit.borrow_mut().close();
        assert_eq!(lines(&mut file), 7);
    }
}
