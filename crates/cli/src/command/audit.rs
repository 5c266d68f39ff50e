//! `lockgate audit`: shows, follows and verifies the audit of a run.

use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use egress::{Entry, VerifyError, VerifyReport};
use policy::RunId;
use runtime::{RunRecord, RunState, StateDirectory};

use super::audit_lines::{copy_lines, lines, open, read_line};
use super::audit_missing::{REMOVED, never_asked, recorded_companions};
use super::audit_words::{many, show_line};
use super::run_name::find;
use crate::arguments::Audit;
use crate::exit::{Done, Usage};
use crate::output::{self, Form};

/// How often `follow` looks for new records.
const PAUSE: Duration = Duration::from_millis(200);

pub(crate) fn audit(command: Audit) -> Done {
    let state = StateDirectory::to_read(&super::caller()?)?;
    match command {
        Audit::Show { run, json } => {
            let run = find(&state, &run)?;
            if let Some(why) = never_asked(&state, &run) {
                show_companions(&state, &run, Form::of(json))?;
                output::tell(&format!("run {run} {why}"));
                return Ok(0);
            }
            match Form::of(json) {
                Form::Json => show_json(&state, &run)?,
                Form::Text if show_text(&state, &run)? == 0 => tell_none(&run),
                Form::Text => {}
            }
            Ok(0)
        }
        Audit::Follow { run, json } => {
            let run = find(&state, &run)?;
            while let Some(why) = never_asked(&state, &run) {
                super::look_after_dead(&state);
                if RunRecord::read(&state, &run)?.state != RunState::Running {
                    show_companions(&state, &run, Form::of(json))?;
                    output::tell(&format!("run {run} {why}"));
                    return Ok(0);
                }
                std::thread::sleep(PAUSE);
            }
            follow(&state, &run, Form::of(json))
        }
        Audit::Verify { run, key, json } => verify(&state, &run, key, Form::of(json)),
    }
}

fn tell_none(run: &RunId) {
    output::tell(&format!("run {run}: no request was recorded"));
}

/// Returns the audit of a run that began one.
fn kept(state: &StateDirectory, run: &RunId) -> Result<PathBuf, anyhow::Error> {
    let path = state.audit(run);
    match path.exists() {
        true => Ok(path),
        false => {
            let why = RunRecord::read(state, run).map_or("its record cannot be read either", |_| REMOVED);
            Err(Usage::no(format!("there is no audit of run {run}: {why}")))
        }
    }
}

/// Prints the records of a run, and those of its companions, as they are.
pub(super) fn show_json(state: &StateDirectory, run: &RunId) -> Result<(), anyhow::Error> {
    copy_lines(&kept(state, run)?)?;
    show_companions(state, run, Form::Json).map(drop)
}

/// Prints the requests of a run, one a line. Returns how many lines there were.
pub(super) fn show_text(state: &StateDirectory, run: &RunId) -> Result<usize, anyhow::Error> {
    let mut shown = 0;
    for line in lines(&kept(state, run)?)? {
        shown += show_line(&line?)?;
    }
    Ok(shown + show_companions(state, run, Form::Text)?)
}

/// Prints the records of a run's companions. Returns how many lines for people there were.
pub(super) fn show_companions(
    state: &StateDirectory,
    run: &RunId,
    form: Form,
) -> Result<usize, anyhow::Error> {
    let mut shown = 0;
    for (companion, path) in state.companion_audits(run) {
        if form == Form::Json {
            copy_lines(&path)?;
            continue;
        }
        output::data(&format!("companion {companion}:"))?;
        for line in lines(&path)? {
            shown += show_line(&line?)?;
        }
    }
    Ok(shown)
}

/// Follows until the run has ended. A killed run has written no closing record.
fn follow(state: &StateDirectory, run: &RunId, form: Form) -> Done {
    let mut reader = open(&kept(state, run)?)?;
    let mut octets = Vec::new();
    let mut at = 0;
    let (mut over, mut shown) = (None, 0);
    loop {
        octets.clear();
        let read = read_line(&mut reader, &mut octets)?;
        if read == 0 || !octets.ends_with(b"\n") {
            if let Some(state) = over {
                let how = if state == RunState::Lost { "was lost" } else { "is over" };
                output::tell(&format!("run {run} {how}: its audit has no last record"));
                return Ok(0);
            }
            // Asked before the next read, so that its last records are still shown. A standalone sidecar has no run record.
            super::look_after_dead(state);
            over = RunRecord::read(state, run).ok().map(|it| it.state).filter(|it| *it != RunState::Running);
            reader.seek(SeekFrom::Start(at))?; // half a record is read again when it is whole
            std::thread::sleep(PAUSE);
            continue;
        }
        at += read as u64;
        let line = String::from_utf8_lossy(&octets);
        match form {
            Form::Json => output::data(line.trim_end())?,
            Form::Text => shown += show_line(&line)?,
        }
        let Ok(entry) = serde_json::from_str::<Entry>(&line) else { continue };
        if entry.closes() {
            // Companions have records of their own, which are not followed.
            if form == Form::Text && shown == 0 && state.companion_audits(run).is_empty() {
                tell_none(run);
            }
            return Ok(0);
        }
    }
}

/// The records of a run, or of one of its companions, in a file.
struct Chain {
    companion: Option<String>,
    path: PathBuf,
}

impl Chain {
    fn of_run(path: PathBuf) -> Self {
        Self { companion: None, path }
    }

    /// What its messages begin with.
    fn whose(&self) -> String {
        let whose = |name: &String| format!("companion {}: ", output::plain(name));
        self.companion.as_ref().map(whose).unwrap_or_default()
    }
}

/// Whose chains are verified.
enum Subject {
    /// A run of this machine's: all that its companions recorded is here.
    Run(RunId),
    /// A file that may have been taken anywhere, alone or with those of its companions.
    File,
}

/// Verifies the chain of a run or of a file, and those of its companions.
fn verify(state: &StateDirectory, run: &str, key: Option<String>, form: Form) -> Done {
    key.as_deref().map_or(Ok(()), refuse_malformed)?;
    // A word alone is a run's: what a command has left under such a name in the current folder is not asked.
    let (own, subject) = if !run.contains('/') && Path::new(run).extension().is_none() {
        let run = find(state, run)?;
        if let Some(why) = never_asked(state, &run) {
            verify_companions(state, &run, key, form)?;
            return Err(Usage::no(format!("there is no audit of its command to verify: run {run} {why}")));
        }
        let chain = Chain::of_run(state.audit(&run));
        if !chain.path.exists() {
            return Err(broken(&chain, REMOVED, form)?);
        }
        (chain, Subject::Run(run))
    } else if Path::new(run).is_file() {
        (Chain::of_run(run.into()), Subject::File)
    } else {
        let how = if Path::new(run).exists() { "is no file" } else { "is not there" };
        return Err(Usage::error(
            format!("`{}` {how}", output::plain(run)),
            "name a run, or the path of an audit file",
        ));
    };
    let beside = runtime::companion_audits_beside(&own.path).into_iter();
    let mut companions: Vec<_> = beside.map(|(name, path)| Chain { companion: Some(name), path }).collect();
    if let Subject::Run(run) = &subject {
        for chain in std::iter::once(&own).chain(&companions) {
            refuse_others(chain, run, form)?;
        }
    }
    let key = key_or_own(state, key)?;
    let ended = run_of(state, run).is_some_and(|record| record.state == RunState::Ended);
    let report = check_chain(&own, key.trim(), ended, form)?;
    let unchecked = match subject {
        Subject::Run(_) => Vec::new(),
        Subject::File => leave_unnamed(&own, &mut companions)?,
    };
    tell_chain(&own, &report, &unchecked, form)?;
    for chain in &companions {
        let report = check_chain(chain, key.trim(), ended, form)?;
        tell_chain(chain, &report, &[], form)?;
    }
    refuse_unnamed(&own, &companions, &unchecked, form)?;
    Ok(0)
}

/// Verifies what there is of a run whose command never began: the chains of its companions, none of which any other chain names.
fn verify_companions(
    state: &StateDirectory,
    run: &RunId,
    key: Option<String>,
    form: Form,
) -> Result<(), anyhow::Error> {
    let recorded = recorded_companions(state, run);
    if recorded.is_empty() {
        return Ok(());
    }
    let key = key_or_own(state, key)?;
    for (name, path) in recorded {
        let chain = &Chain { companion: Some(name), path };
        refuse_others(chain, run, form)?;
        let report = check_chain(chain, key.trim(), false, form)?;
        tell_chain(chain, &report, &[], form)?;
    }
    Ok(())
}

fn key_or_own(state: &StateDirectory, key: Option<String>) -> Result<String, anyhow::Error> {
    Ok(key.map_or_else(|| runtime::audit_public_key(state), Ok)?)
}

/// Leaves out what lies beside a file and is no chain that it names, such as an older file of the same name. Returns the companions
/// whose chains do not lie there.
fn leave_unnamed(own: &Chain, companions: &mut Vec<Chain>) -> Result<Vec<String>, anyhow::Error> {
    let mut named: Vec<_> =
        egress::named_companions(open(&own.path)?)?.into_iter().map(|named| named.name).collect();
    companions.retain(|chain| chain.companion.as_ref().is_some_and(|name| named.contains(name)));
    named.retain(|name| companions.iter().all(|chain| chain.companion.as_ref() != Some(name)));
    Ok(named)
}

/// Parses the public key; an invalid key is a usage error and says nothing about the audit.
fn refuse_malformed(key: &str) -> Result<(), anyhow::Error> {
    match egress::verify(std::io::empty(), key.trim()) {
        Err(VerifyError::Key) => Err(Usage::error(
            format!("--key `{}` is not a public key", output::plain(key)),
            "write its 64 hexadecimal digits in lower case, or leave it out for this machine's own",
        )),
        _ => Ok(()),
    }
}

/// Compares the companions that a run's chain names, but those that are left unchecked, with the files that are there.
fn refuse_unnamed(
    own: &Chain,
    companions: &[Chain],
    unchecked: &[String],
    form: Form,
) -> Result<(), anyhow::Error> {
    let mut named = egress::named_companions(open(&own.path)?)?;
    named.retain(|companion| !unchecked.contains(&companion.name));
    for chain in companions {
        let at = named.iter().position(|it| Some(&it.name) == chain.companion.as_ref());
        let first = egress::first_hash(open(&chain.path)?)?;
        if at.map(|at| named.swap_remove(at).first) != first {
            return Err(broken(chain, "it is not the one that the run's audit names", form)?);
        }
    }
    match named.into_iter().next() {
        Some(missing) => {
            // What names it is all there is of it.
            let missing = Chain { companion: Some(missing.name), path: own.path.clone() };
            Err(broken(&missing, "the run's audit names it, and it is not there", form)?)
        }
        None => Ok(()),
    }
}

/// Refuses a valid chain that belongs to another run.
fn refuse_others(chain: &Chain, run: &RunId, form: Form) -> Result<(), anyhow::Error> {
    let path = &chain.path;
    let first = match lines(path)?.next() {
        Some(Ok(first)) => first,
        Some(Err(error)) if error.is::<Usage>() => return Err(broken(chain, &error.to_string(), form)?),
        Some(Err(error)) => return Err(error),
        None => return Err(broken(chain, "it is empty", form)?),
    };
    let why = match serde_json::from_str::<Entry>(&first) {
        Ok(entry) if entry.run == run.as_str() => return Ok(()),
        Ok(entry) => format!("{} is of run {}", path.display(), output::plain(&entry.run)),
        Err(error) => format!("the first record of {} is damaged: {error}", path.display()),
    };
    Err(broken(chain, &why, form)?)
}

/// Builds the error for an invalid audit, after reporting it as JSON if asked to.
fn broken(chain: &Chain, why: &str, form: Form) -> Result<anyhow::Error, anyhow::Error> {
    if form == Form::Json {
        output::answer(&serde_json::json!({"holds": false, "why": why}).to_string())?;
    }
    Ok(Usage::no(format!("{}the audit does not hold: {why}", chain.whose())))
}

/// Finds the record of the named run, if there is one.
fn run_of(state: &StateDirectory, run: &str) -> Option<RunRecord> {
    RunRecord::read(state, &find(state, run).ok()?).ok()
}

fn check_chain(chain: &Chain, key: &str, ended: bool, form: Form) -> Result<VerifyReport, anyhow::Error> {
    let report = match egress::verify(open(&chain.path)?, key) {
        Ok(report) => report,
        Err(VerifyError::Empty) => return Err(broken(chain, "it is empty", form)?),
        Err(error) => return Err(broken(chain, &error.to_string(), form)?),
    };
    if ended && !report.closed {
        return Err(broken(chain, "its run ended, and it does not: records were cut off at its end", form)?);
    }
    Ok(report)
}

/// Tells what was found of a chain that holds, and which companions' chains were not looked at.
fn tell_chain(
    chain: &Chain,
    report: &VerifyReport,
    unchecked: &[String],
    form: Form,
) -> Result<(), anyhow::Error> {
    if form == Form::Json {
        let json = serde_json::json!({
            "holds": true, "records": report.records, "signatures": report.signatures,
            "unsigned_tail": report.unsigned_tail, "omitted": report.omitted, "closed": report.closed,
            "unchecked_companions": unchecked,
        });
        return Ok(output::answer(&json.to_string())?);
    }
    let end = end_of(report.closed, report.unsigned_tail);
    let (records, signatures) = (many(report.records, "record"), many(report.signatures, "signature"));
    let omitted = match report.omitted {
        0 => String::new(),
        omitted => {
            let omitted = many(omitted, "record");
            format!("; {omitted} of requests that no rule granted left out, because it was full")
        }
    };
    let left = match unchecked {
        [] => String::new(),
        names => {
            format!("; its companions' chains ({}) were not checked", output::plain(&names.join(", ")))
        }
    };
    let found = format!("{}valid: {records}, {signatures}, {end}{omitted}{left}", chain.whose());
    Ok(output::answer(&found)?)
}

/// Says how a chain ends whose last records may not be signed yet.
fn end_of(closed: bool, unsigned_tail: u64) -> String {
    let last = match unsigned_tail {
        _ if closed => return "properly closed".into(),
        0 => return "still open, or cut after the last record".into(),
        1 => "record is".into(),
        tail => format!("{tail} records are"),
    };
    format!("still open, or cut; the last {last} chained but not yet signed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::state_below;
    use egress::LONGEST_RECORD;

    const RUN: &str = "abcdefghjkmn";

    #[test]
    fn a_run_is_found_by_what_is_on_record_alone() {
        let folder = tempfile::tempdir().unwrap();
        let state = state_below(folder.path());
        for name in [RUN, "nope"] {
            let error = find(&state, name).unwrap_err();
            assert!(error.downcast_ref::<Usage>().is_some(), "{error}");
            assert_eq!(error.to_string(), format!("there is no run `{name}`"));
        }
        // A standalone sidecar has an audit and no run record.
        let run: RunId = RUN.parse().unwrap();
        std::fs::create_dir_all(state.audit(&run).parent().unwrap()).unwrap();
        std::fs::write(state.audit(&run), "").unwrap();
        assert_eq!(find(&state, RUN).unwrap(), run);
    }

    #[test]
    fn a_run_that_never_had_an_audit_made_no_requests() {
        let folder = tempfile::tempdir().unwrap();
        let (state, run) = (state_below(folder.path()), RUN.parse::<RunId>().unwrap());
        std::fs::create_dir_all(folder.path().join("lockgate/runs")).unwrap();
        let is = |became: &str| {
            let record = serde_json::json!({
                "id": RUN, "state": became, "started": "", "command": [], "workspace": "/", "backend": "linux",
                "notices": [], "plan": [],
            });
            std::fs::write(folder.path().join(format!("lockgate/runs/{RUN}.jsonl")), record.to_string())
                .unwrap();
        };
        for (became, told) in [("running", true), ("failed", true), ("lost", true), ("ended", false)] {
            is(became);
            assert_eq!(never_asked(&state, &run).is_some(), told, "{became}");
        }
        is("lost");
        assert!(never_asked(&state, &run).unwrap().contains("somebody has removed it"));
        is("failed");
        let error = verify(&state, RUN, None, Form::Text).unwrap_err().to_string();
        assert!(error.contains("made no requests"), "{error}");
        std::fs::create_dir_all(state.audit(&run).parent().unwrap()).unwrap();
        std::fs::write(state.audit(&run), "").unwrap();
        assert!(never_asked(&state, &run).is_some(), "its start failed before the first record");
        is("lost");
        assert!(never_asked(&state, &run).is_some(), "it was killed before the first record");
        is("failed");
        std::fs::write(state.audit(&run), "{}\n").unwrap();
        assert_eq!(never_asked(&state, &run), None);
        std::fs::write(state.audit(&run), "").unwrap();
        is("ended");
        assert_eq!(never_asked(&state, &run), None, "of one that ended it was cut");
    }

    #[test]
    fn what_companions_recorded_is_there_whether_or_not_the_command_began() {
        let folder = tempfile::tempdir().unwrap();
        let (state, run) = (state_below(folder.path()), RUN.parse::<RunId>().unwrap());
        std::fs::create_dir_all(folder.path().join("lockgate/runs")).unwrap();
        std::fs::create_dir_all(state.audit(&run).parent().unwrap()).unwrap();
        let companion = state.audit(&run).with_file_name(format!("{RUN}.db.jsonl"));
        let denied = serde_json::json!({
            "seq": 0, "ts": "T", "run": RUN, "plane": "forward", "action": "GET", "target": "http://x/",
            "outcome": "denied", "sent": 0, "received": 0, "us": 0, "prev": "0",
        });
        for became in ["failed", "lost"] {
            let record = serde_json::json!({
                "id": RUN, "state": became, "started": "", "command": [], "workspace": "/", "backend": "linux",
                "notices": [], "plan": [],
            });
            std::fs::write(folder.path().join(format!("lockgate/runs/{RUN}.jsonl")), record.to_string())
                .unwrap();
            let verified = || {
                let key = Some("a".repeat(64));
                verify(&state, RUN, key, Form::Text).unwrap_err().to_string()
            };
            std::fs::write(&companion, "").unwrap();
            assert!(!never_asked(&state, &run).unwrap().contains("companions"), "{became}");
            assert!(verified().starts_with("there is no audit of its command"), "{became}: {}", verified());
            std::fs::write(&companion, format!("{denied}\n")).unwrap();
            assert!(never_asked(&state, &run).unwrap().contains("companions alone"), "{became}");
            assert_eq!(show_companions(&state, &run, Form::Text).unwrap(), 1, "{became}");
            assert!(
                verified().starts_with("companion db: the audit does not hold"),
                "{became}: {}",
                verified()
            );
        }
    }

    #[test]
    fn an_audit_that_was_removed_does_not_hold() {
        let folder = tempfile::tempdir().unwrap();
        let state = state_below(folder.path());
        let record = serde_json::json!({
            "id": RUN, "state": "ended", "started": "", "command": [], "workspace": "/", "backend": "linux",
            "notices": [], "plan": [],
        });
        std::fs::create_dir_all(folder.path().join("lockgate/runs")).unwrap();
        std::fs::write(folder.path().join(format!("lockgate/runs/{RUN}.jsonl")), record.to_string()).unwrap();
        let error = verify(&state, RUN, None, Form::Text).unwrap_err();
        assert_eq!(error.to_string(), "the audit does not hold: its run ended, and it was removed");
        assert_eq!(crate::exit::code_and_remedy(&error).0, 1);
        let run: RunId = RUN.parse().unwrap();
        let shown = [
            show_json(&state, &run).unwrap_err(),
            show_text(&state, &run).unwrap_err(),
            follow(&state, &run, Form::Text).unwrap_err(),
        ];
        for error in shown {
            assert!(error.to_string().ends_with(REMOVED), "{error}");
            assert_eq!(crate::exit::code_and_remedy(&error).0, 1);
        }
    }

    #[test]
    fn no_line_is_read_without_end_and_no_pipe_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (state, run) = (state_below(folder.path()), RUN.parse::<RunId>().unwrap());
        let path = state.audit(&run);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let told = |of: Result<(), anyhow::Error>| of.unwrap_err().to_string();
        for (length, fits) in [(LONGEST_RECORD - 1, true), (LONGEST_RECORD, false)] {
            std::fs::write(&path, "x".repeat(length) + "\n").unwrap();
            assert_eq!(lines(&path).unwrap().all(|line| line.is_ok()), fits, "{length}");
        }
        assert!(told(show_text(&state, &run).map(drop)).contains("more than 262144 octets"));
        assert!(told(follow(&state, &run, Form::Json).map(drop)).contains("more than 262144 octets"));
        let broken = told(verify(&state, RUN, None, Form::Text).map(drop));
        assert!(broken.starts_with("the audit does not hold: a line"), "{broken}");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(told(show_text(&state, &run).map(drop)).contains("no regular file"));
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        for told in
            [told(show_text(&state, &run).map(drop)), told(verify(&state, RUN, None, Form::Text).map(drop))]
        {
            assert!(told.contains("no regular file"), "{told}");
        }
    }

    #[test]
    fn a_damaged_record_hides_none_behind_it() {
        let folder = tempfile::tempdir().unwrap();
        let (state, run) = (state_below(folder.path()), RUN.parse::<RunId>().unwrap());
        std::fs::create_dir_all(state.audit(&run).parent().unwrap()).unwrap();
        std::fs::write(state.audit(&run), b"\xff{}\n{\"seq\":1}\n").unwrap();
        let read: Vec<String> = lines(&state.audit(&run)).unwrap().map(Result::unwrap).collect();
        assert_eq!(read, ["\u{fffd}{}", "{\"seq\":1}"]);
        assert_eq!(show_text(&state, &run).unwrap(), 2);
        let chain = Chain::of_run(state.audit(&run));
        let error = refuse_others(&chain, &run, Form::Text).unwrap_err().to_string();
        assert!(error.starts_with("the audit does not hold: the first record of "), "{error}");
    }

    #[test]
    fn a_companion_is_compared_by_its_name_and_told_without_control_characters() {
        let folder = tempfile::tempdir().unwrap();
        let own = Chain::of_run(folder.path().join("own.jsonl"));
        let hash = "a".repeat(64);
        let opened = serde_json::json!({
            "seq": 0, "ts": "T", "run": RUN, "plane": "gate", "action": "companion", "target": "d\u{1b}b",
            "outcome": "allowed", "sent": 0, "received": 0, "us": 0, "prev": "0", "image": "sha256:1", "chain": hash,
        });
        std::fs::write(&own.path, format!("{opened}\n")).unwrap();
        let path = folder.path().join("companion.jsonl");
        let mut first = opened.clone();
        first["hash"] = hash.as_str().into();
        std::fs::write(&path, format!("{first}\n")).unwrap();
        let why = |companions: &[Chain]| {
            refuse_unnamed(&own, companions, &[], Form::Text).map_err(|error| error.to_string())
        };
        let named = |name: &str| Chain { companion: Some(name.into()), path: path.clone() };
        let shown = named("d\u{1b}b").whose();
        assert!(shown.starts_with("companion d") && !shown.contains('\u{1b}'), "{shown:?}");
        assert_eq!(why(&[named("d\u{1b}b")]), Ok(()));
        let other = why(&[named(shown.trim_start_matches("companion ").trim_end_matches(": "))]).unwrap_err();
        assert!(other.ends_with("it is not the one that the run's audit names"), "{other}");
        assert_eq!(
            why(&[]).unwrap_err(),
            format!("{shown}the audit does not hold: the run's audit names it, and it is not there")
        );
    }

    #[test]
    fn a_file_is_verified_with_the_companions_that_lie_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let own = Chain::of_run(folder.path().join("kept.jsonl"));
        let naming = |name: &str| {
            let entry = serde_json::json!({
                "seq": 0, "ts": "T", "run": RUN, "plane": "gate", "action": "companion", "target": name,
                "outcome": "allowed", "sent": 0, "received": 0, "us": 0, "prev": "0", "image": "sha256:1",
                "chain": "a".repeat(64),
            });
            format!("{entry}\n")
        };
        std::fs::write(&own.path, naming("db") + &naming("cache")).unwrap();
        // An older file of the same name is no companion's.
        for name in ["kept.db.jsonl", "kept.1.jsonl", "other.cache.jsonl"] {
            std::fs::write(folder.path().join(name), "{}\n").unwrap();
        }
        let beside = runtime::companion_audits_beside(&own.path);
        assert_eq!(beside.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["1", "db"]);
        let mut companions: Vec<_> =
            beside.into_iter().map(|(name, path)| Chain { companion: Some(name), path }).collect();
        let unchecked = leave_unnamed(&own, &mut companions).unwrap();
        assert_eq!(unchecked, ["cache"]);
        assert!(matches!(&companions[..], [Chain { companion: Some(name), .. }] if name == "db"));
        assert_eq!(refuse_unnamed(&own, &[], &["db".into(), "cache".into()], Form::Text).ok(), Some(()));
        assert!(
            refuse_unnamed(&own, &[], &unchecked, Form::Text).is_err(),
            "the one that is there is compared"
        );
    }

    #[test]
    fn one_record_is_no_records() {
        assert!(end_of(false, 1).ends_with("the last record is chained but not yet signed"));
        assert!(end_of(false, 2).ends_with("the last 2 records are chained but not yet signed"));
        assert_eq!(end_of(true, 2), "properly closed");
    }

    #[test]
    fn a_key_that_is_none_is_told_as_such() {
        for key in ["zz", "", &"A".repeat(64), &"a".repeat(63)] {
            assert!(refuse_malformed(key).unwrap_err().downcast_ref::<Usage>().is_some(), "{key}");
        }
        assert!(refuse_malformed(&"a".repeat(64)).is_ok());
    }
}
