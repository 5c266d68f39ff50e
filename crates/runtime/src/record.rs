//! The record of a run: what it was, and how it ended.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use egress::ModelUse;
use policy::{Backend, RunId};
use sandbox::ProcessStamp;
use serde::{Deserialize, Serialize};

use crate::audit_end::AuditEnd;
use crate::error::Error;
use crate::lock_file::{await_release, may_be_held};
use crate::permission::Permission;
use crate::state::{StateDirectory, append_after_a_look, state_error};
use crate::still_there::{Act, StillThere};
use crate::without_waiting;

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// It is going on: somebody holds its lock.
    Running,
    /// The command ran and ended.
    Ended,
    /// The command never ran, or what was around it failed meanwhile.
    Failed,
    /// It is over and did not tell its end: its process was killed, or could not write it down. What it left is taken away.
    Lost,
}

/// How a run ended, as its record says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The exit code of `lockgate run`.
    pub exit_code: i32,
    /// The text of an [`Ending`](crate::Ending), for people only.
    pub summary: String,
    /// The most memory it used, in octets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_peak: Option<u64>,
    /// Its requests, unless the sidecar did not say how it ended.
    #[serde(flatten)]
    pub requests: Option<Requests>,
    /// Its use of models, if it used any. S1.28
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub models: Option<ModelUse>,
}

/// How many requests a run made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Exchanges that were allowed.
    pub allowed: u64,
    /// Exchanges that were denied.
    pub denied: u64,
    /// Exchanges that were allowed and failed.
    pub failed: u64,
}

/// A set-up command that ran, and how it ended. S4.54
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetUpRecord {
    /// The command, on one line and cut if it is long.
    pub command: String,
    /// How it ended, in words: `exited 0`, `timed out`.
    pub status: String,
    /// Whether it succeeded.
    pub succeeded: bool,
    /// How long it took.
    pub milliseconds: u64,
}

/// What could not be taken away at the end of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    /// What it is, and why it could not be taken away then.
    pub why: String,
    /// Whether it was taken away later.
    pub is_gone: bool,
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = if self.is_gone { "it is gone now" } else { "the next run tries again" };
        write!(f, "after its end something of it could not be taken away: {}; {now}", self.why)
    }
}

/// The record of one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Its identifier.
    pub id: String,
    /// Its state.
    pub state: RunState,
    /// The process of this program that owns the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessStamp>,
    /// When it began, as RFC 3339 in UTC.
    pub started: String,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// The command, as it was given.
    pub command: Vec<String>,
    /// The folder it worked in.
    pub workspace: PathBuf,
    /// The folders and files of this machine that the command could write to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writable: Vec<PathBuf>,
    /// The backend that made the sandbox.
    pub backend: Backend,
    /// The organisation whose credentials it used, if not the person's own. S1.27
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<String>,
    /// Labels by which the person finds it again. S3.16
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The variables that gave the command a credential by value. S0.7
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exposed: Vec<String>,
    /// The rules it ran under.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<Permission>,
    /// What was weaker in it than it could have been.
    pub notices: Vec<String>,
    /// The steps by which the sandbox was made.
    pub plan: Vec<String>,
    /// The set-up commands that ran before the command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub setup: Vec<SetUpRecord>,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// What could not be taken away at its end, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leftover: Option<Leftover>,
    /// Why the run failed, if it did: one line that reads on after "failed to".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The audits that a run had begun which failed. Of one that ended, each was begun and closed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audits: Vec<AuditEnd>,
    /// The most memory that a run used which failed after its command, in octets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_peak: Option<u64>,
}

/// The longest failure that is recorded, in characters.
const LONGEST_FAILURE: usize = 1000;

/// Returns an error as one line of bounded length, without control characters: it may hold text that others wrote.
pub(crate) fn failure(error: &Error) -> String {
    let text = error.to_string();
    let mut plain: String = text
        .trim()
        .chars()
        .map(|c| if c == '\n' || c == '\t' { ' ' } else { c })
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .take(LONGEST_FAILURE + 1)
        .collect();
    if let Some((at, _)) = plain.char_indices().nth(LONGEST_FAILURE) {
        plain.truncate(at);
        plain.push('…');
    }
    plain
}

impl RunRecord {
    /// Notes how it stands with what could not be taken away at the end of the run: `why` is the first reason, and `problems` are what
    /// is still there.
    pub(crate) fn note_leftover(&mut self, why: Option<String>, problems: &[String]) {
        let known = self.leftover.as_ref().filter(|left| !left.is_gone).map(|left| left.why.clone());
        let found = (!problems.is_empty()).then(|| problems.join("; "));
        if let Some(why) = why.or(known).or(found) {
            self.leftover = Some(Leftover { why, is_gone: problems.is_empty() });
        }
    }

    /// Appends the record as it is now to the run's file. The last whole line counts: for a reader this is as safe as replacing the
    /// file, and the disk makes no new file.
    pub(crate) fn write(&self, directory: &StateDirectory, run: &RunId) -> Result<(), Error> {
        let path = directory.record(run);
        // Serialised before the file is made: an empty record would be a run that nothing can find again.
        let mut line = serde_json::to_vec(self).map_err(|error| state_error(&path, error.into()))?;
        line.push(b'\n');
        let mut file = append_after_a_look(&path)?;
        let written = ends_in_half_a_line(&file).and_then(|half| {
            if half {
                line.insert(0, b'\n');
            }
            file.write_all(&line)
        });
        written.map_err(|source| state_error(&path, source))
    }

    /// Reads the record of a run. One that says that it goes on is believed while somebody holds the lock of the run.
    ///
    /// # Errors
    /// When there is none, it is damaged, or it cannot be read.
    pub fn read(directory: &StateDirectory, run: &RunId) -> Result<Self, Error> {
        let record = Self::read_as_written(directory, run)?;
        if record.state != RunState::Running || may_be_held(&directory.live().join(run.as_str())) {
            return Ok(record);
        }
        // A run takes its lock before it writes its record, and gives it back after the last one: it may have ended since.
        let mut record = Self::read_as_written(directory, run)?;
        if record.state == RunState::Running {
            record.state = RunState::Lost;
            record.ended = Some(last_seen(directory, run));
        }
        Ok(record)
    }

    /// Reads the record of a run as its file has it: a run that is not going on any more may be called running.
    pub(crate) fn read_as_written(directory: &StateDirectory, run: &RunId) -> Result<Self, Error> {
        let text = read_text(directory, run)?;
        // A line that a full disk or a kill cut off, maybe inside a character, does not parse, and the one before it counts.
        let last = text.rsplit(|octet| *octet == b'\n').find_map(|line| serde_json::from_slice(line).ok());
        last.ok_or_else(|| Error::Record {
            run: run.to_string(),
            why: "it is damaged, or of another version of Lockgate".into(),
        })
    }

    /// Whether a run has begun and not yet written its first record.
    pub(crate) fn is_unwritten(directory: &StateDirectory, run: &RunId) -> bool {
        may_be_held(&directory.live().join(run.as_str()))
            && read_text(directory, run).is_ok_and(|text| !text.contains(&b'\n'))
    }

    /// Whether anything is on record of a run: its record, or an audit alone, as of a sidecar that serves alone.
    #[must_use]
    pub fn is_known(directory: &StateDirectory, run: &RunId) -> bool {
        directory.record(run).exists() || directory.audit(run).exists()
    }

    /// Whether the run has been over for longer than `span`. Of one that did not tell its end, that is how long ago it began.
    #[must_use]
    pub fn is_over_for(&self, span: Duration) -> bool {
        let ended = self.ended.as_ref().unwrap_or(&self.started).parse::<jiff::Timestamp>().ok();
        let age = ended.and_then(|ended| jiff::Timestamp::now().duration_since(ended).try_into().ok());
        self.state != RunState::Running && age.is_some_and(|age: Duration| age > span)
    }
}

/// The largest file of a record: a few lines, each with a command that the kernel took (execve(2)).
const LARGEST: u64 = 64 << 20;

fn read_text(directory: &StateDirectory, run: &RunId) -> Result<Vec<u8>, Error> {
    let path = directory.record(run);
    without_waiting::read(&path, LARGEST).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Error::NoRun { run: run.to_string() },
        std::io::ErrorKind::InvalidData => Error::Record { run: run.to_string(), why: source.to_string() },
        // It may be read the next time.
        _ => state_error(&path, source),
    })
}

/// Whether a full disk or a kill cut the last line off. The next record must not be read as a part of it.
fn ends_in_half_a_line(file: &File) -> std::io::Result<bool> {
    let length = file.metadata()?.len();
    let mut last = [b'\n'];
    if length > 0 {
        file.read_exact_at(&mut last, length - 1)?;
    }
    Ok(last != *b"\n")
}

pub(crate) fn now() -> String {
    written(jiff::Timestamp::now())
}

pub(crate) fn written(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

/// Why a killed run still counts as one that goes on.
const UNTOLD: &str = "it was killed, and its end could not be written down";

/// How long a run that is over may still hold what it had. After that, whoever would touch it is refused.
const TAKING_AWAY: Duration = Duration::from_secs(30);

/// Refuses to touch what a running run still uses, and what a killed one left as long as its record does not say that it is over.
pub(crate) fn refuse_running(what: Act, directory: &StateDirectory, run: &RunId) -> Result<(), Error> {
    let (may_go_on, process) = match RunRecord::read_as_written(directory, run) {
        Ok(record) => (record.state == RunState::Running, record.process),
        // It is damaged, and can only be removed.
        Err(Error::Record { .. } | Error::State { .. }) => (true, None),
        Err(error) => return Err(error),
    };
    let lock = directory.live().join(run.as_str());
    let goes_on = match may_go_on {
        true => may_be_held(&lock),
        // It is over, and what it had is being taken away: at an engine, for seconds.
        false => !await_release(&lock, TAKING_AWAY),
    };
    match may_go_on && lock.exists() {
        _ if goes_on => Err(Error::GoesOn { what, run: run.to_string() }),
        true => {
            let why = match process.is_some_and(ProcessStamp::is_alive) {
                true => StillThere::ProcessAlive,
                false => StillThere::Because(UNTOLD.into()),
            };
            Err(Error::LeftBehind { what, run: run.to_string(), why })
        }
        false => Ok(()),
    }
}

/// Returns when a killed run was last seen: when its record or its audit was last written to.
pub(crate) fn last_seen(directory: &StateDirectory, run: &RunId) -> String {
    let files = [directory.record(run), directory.audit(run)];
    let last = files.iter().filter_map(|path| std::fs::metadata(path).ok()?.modified().ok()).max();
    last.and_then(|at| jiff::Timestamp::try_from(at).ok()).map_or_else(now, written)
}

#[cfg(test)]
impl RunRecord {
    /// Returns the record of a run that has just begun.
    pub(crate) fn for_test(id: &str) -> Self {
        Self {
            id: id.into(),
            state: RunState::Running,
            process: None,
            started: now(),
            ended: None,
            command: vec!["true".into()],
            workspace: "/srv/project".into(),
            writable: vec!["/srv/project".into()],
            backend: Backend::Linux,
            org: None,
            labels: BTreeMap::new(),
            exposed: Vec::new(),
            permissions: Vec::new(),
            notices: Vec::new(),
            plan: Vec::new(),
            setup: Vec::new(),
            outcome: None,
            leftover: None,
            failure: None,
            audits: Vec::new(),
            memory_peak: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> RunRecord {
        RunRecord::for_test("abcdefghjkmn")
    }

    #[test]
    fn what_is_left_of_a_run_is_told_once_and_as_it_stands_now() {
        let mut record = record();
        record.note_leftover(None, &[]);
        assert_eq!(record.leftover, None);
        let problems = ["links /w/.git: shut".to_owned()];
        for _ in 0..2 {
            record.note_leftover(None, &problems);
            let told = record.leftover.as_ref().unwrap().to_string();
            assert!(told.ends_with("taken away: links /w/.git: shut; the next run tries again"), "{told}");
        }
        for _ in 0..2 {
            record.note_leftover(None, &[]);
            let told = record.leftover.as_ref().unwrap().to_string();
            assert!(told.ends_with("taken away: links /w/.git: shut; it is gone now"), "{told}");
        }
        record.note_leftover(Some("another".into()), &problems);
        assert_eq!(record.leftover, Some(Leftover { why: "another".into(), is_gone: false }));
    }

    #[test]
    fn a_record_that_cannot_be_written_down_is_an_error() {
        use std::os::unix::ffi::OsStringExt;

        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::for_test(folder.path());
        let run: RunId = "abcdefghjkmn".parse().unwrap();
        let workspace = std::ffi::OsString::from_vec(b"/srv/caf\xe9".to_vec()).into();
        let unfit = RunRecord { workspace, ..record() };
        assert!(matches!(unfit.write(&directory, &run), Err(Error::State { .. })));
        assert!(!directory.record(&run).exists());
        record().write(&directory, &run).unwrap();
        assert_eq!(RunRecord::read(&directory, &run).unwrap().workspace, PathBuf::from("/srv/project"));
    }

    #[test]
    fn what_is_wrong_with_a_run_is_said_of_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::for_test(folder.path());
        let run: RunId = "abcdefghjkmn".parse().unwrap();
        assert!(!RunRecord::is_known(&directory, &run));
        assert!(matches!(RunRecord::read(&directory, &run), Err(Error::NoRun { .. })));
        assert!(matches!(RunRecord::remove(&directory, &run), Err(Error::NoRun { .. })));
        assert!(matches!(crate::changes::discard_changes(&directory, &run), Err(Error::NoRun { .. })));
        record().write(&directory, &run).unwrap();
        assert!(RunRecord::is_known(&directory, &run));
        let none = crate::changes::discard_changes(&directory, &run).unwrap_err().to_string();
        assert!(none.contains("nothing that it wrote is kept apart") && !none.contains("find run"), "{none}");
        std::fs::create_dir(directory.live()).unwrap();
        std::fs::write(directory.live().join(run.as_str()), "").unwrap();
        let lock = File::open(directory.live().join(run.as_str())).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let goes_on = RunRecord::remove(&directory, &run).unwrap_err().to_string();
        assert_eq!(goes_on, "remove run abcdefghjkmn: it is going on; end it first");
        // It is over, and its process is still taking away what it had.
        RunRecord { state: RunState::Ended, ..record() }.write(&directory, &run).unwrap();
        let is_released = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let released = std::sync::Arc::clone(&is_released);
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            released.store(true, std::sync::atomic::Ordering::SeqCst);
            drop(lock);
        });
        refuse_running(Act::Remove, &directory, &run).unwrap();
        assert!(is_released.load(std::sync::atomic::Ordering::SeqCst), "it did not wait");
        std::fs::write(directory.record(&run), "\n\n").unwrap();
        let damaged = RunRecord::read(&directory, &run).unwrap_err();
        let why = "read the record of run abcdefghjkmn: it is damaged, or of another version of Lockgate";
        assert_eq!(damaged.to_string(), why);
        assert_eq!(damaged.remedy().unwrap(), "lockgate runs rm abcdefghjkmn removes the run");
    }

    #[test]
    fn a_run_is_going_on_while_its_lock_is_held_and_lost_if_it_told_no_end() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::for_test(folder.path());
        let run: RunId = "abcdefghjkmn".parse().unwrap();
        let long_ago = RunRecord { started: "2026-01-01T00:00:00Z".into(), ..record() };
        long_ago.write(&directory, &run).unwrap();
        let read = || RunRecord::read(&directory, &run).unwrap();
        // Its lock file is missing, or nobody holds it: as where more were killed than one command looks after.
        assert_eq!(read().state, RunState::Lost);
        // It was going on until something was last written.
        assert!(!read().is_over_for(Duration::from_secs(60)));
        let before = std::time::SystemTime::now() - Duration::from_secs(1000);
        let written = File::options().append(true).open(directory.record(&run)).unwrap();
        written.set_modified(before).unwrap();
        assert!(read().is_over_for(Duration::from_secs(60)));
        std::fs::create_dir(directory.live()).unwrap();
        let path = directory.live().join(run.as_str());
        let lock = File::create(&path).unwrap();
        assert_eq!(read().state, RunState::Lost);
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        assert_eq!(read().state, RunState::Running);
        assert!(!read().is_over_for(Duration::from_secs(60)));
        // One that has just begun has its lock, and no record yet: it is not damaged.
        std::fs::write(directory.record(&run), "").unwrap();
        assert!(RunRecord::is_unwritten(&directory, &run));
        drop(lock);
        assert!(!RunRecord::is_unwritten(&directory, &run));
    }

    #[test]
    fn half_a_line_takes_nothing_with_it_and_what_is_damaged_can_be_removed() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::for_test(folder.path());
        let run: RunId = "abcdefghjkmn".parse().unwrap();
        record().write(&directory, &run).unwrap();
        // A line that a full disk cut off, at a letter and inside one.
        for half in
            [&br#"{"id":"abcdefghjkmn","state":"en"#[..], b"{\"id\":\"abcdefghjkmn\",\"command\":[\"\xd0"]
        {
            let mut file = std::fs::OpenOptions::new().append(true).open(directory.record(&run)).unwrap();
            file.write_all(half).unwrap();
            assert_eq!(RunRecord::read_as_written(&directory, &run).unwrap().state, RunState::Running);
        }
        RunRecord { state: RunState::Ended, ..record() }.write(&directory, &run).unwrap();
        assert_eq!(RunRecord::read(&directory, &run).unwrap().state, RunState::Ended);
        std::fs::write(directory.record(&run), "\n").unwrap();
        RunRecord::remove(&directory, &run).unwrap();
        assert!(!directory.record(&run).exists());
    }

    #[test]
    fn the_reason_of_a_failure_is_kept_on_one_line_and_bounded() {
        let why = |why: &str| failure(&Error::SidecarFailed { why: why.into(), remedy: None });
        assert_eq!(why("open a\nb\x1b[2J\n"), "open a b\u{fffd}[2J");
        let long = why(&"ä".repeat(5000));
        assert!(long.chars().count() == LONGEST_FAILURE + 1 && long.ends_with('…'), "{}", long.len());
        // It can be read again, and so can a record of an older version, which has no such field.
        let untold = record();
        let told = RunRecord { failure: Some(why("x")), ..untold.clone() };
        let json = serde_json::to_string(&told).unwrap();
        assert_eq!(serde_json::from_str::<RunRecord>(&json).unwrap(), told);
        let before = serde_json::to_string(&untold).unwrap();
        assert!(!before.contains("failure"), "{before}");
        assert_eq!(serde_json::from_str::<RunRecord>(&before).unwrap(), untold);
    }
}
