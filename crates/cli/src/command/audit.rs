//! `lockgate audit`: shows and follows the audit of a run.

use std::io::{Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use egress::Entry;
use policy::RunId;
use runtime::{RunRecord, RunState, StateDirectory};

use super::audit_lines::{copy_lines, lines, open, read_line};
use super::audit_missing::{REMOVED, about, never_asked};
use super::audit_verify::verify;
use super::audit_words::show_line;
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
            if let Some(why) = never_asked(&state, &run)? {
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
            while let Some(why) = never_asked(&state, &run)? {
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
    match about(&path)? {
        Some(_) => Ok(path),
        None => {
            let why = RunRecord::read(state, run).map_or("its record cannot be read either", |_| REMOVED);
            Err(Usage::no(format!("there is no audit of run {run}: {why}")))
        }
    }
}

/// Prints the records of a run as they are, and those of its companions with their names.
pub(super) fn show_json(state: &StateDirectory, run: &RunId) -> Result<(), anyhow::Error> {
    copy_lines(&kept(state, run)?, None)?;
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
    for (companion, path) in state.companion_audits(run)? {
        if form == Form::Json {
            copy_lines(&path, Some(&companion))?;
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
            if form == Form::Text && shown == 0 && state.companion_audits(run)?.is_empty() {
                tell_none(run);
            }
            return Ok(0);
        }
    }
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
            assert_eq!(never_asked(&state, &run).unwrap().is_some(), told, "{became}");
        }
        is("lost");
        assert!(never_asked(&state, &run).unwrap().unwrap().contains("somebody has removed it"));
        is("failed");
        let error = verify(&state, RUN, None, Form::Text).unwrap_err().to_string();
        assert!(error.contains("made no requests"), "{error}");
        std::fs::create_dir_all(state.audit(&run).parent().unwrap()).unwrap();
        std::fs::write(state.audit(&run), "").unwrap();
        assert!(never_asked(&state, &run).unwrap().is_some(), "its start failed before the first record");
        is("lost");
        assert!(never_asked(&state, &run).unwrap().is_some(), "it was killed before the first record");
        is("failed");
        std::fs::write(state.audit(&run), "{}\n").unwrap();
        assert_eq!(never_asked(&state, &run).unwrap(), None);
        std::fs::write(state.audit(&run), "").unwrap();
        is("ended");
        assert_eq!(never_asked(&state, &run).unwrap(), None, "of one that ended it was cut");
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
            assert!(!never_asked(&state, &run).unwrap().unwrap().contains("companions"), "{became}");
            assert!(verified().starts_with("there is no audit of its command"), "{became}: {}", verified());
            std::fs::write(&companion, format!("{denied}\n")).unwrap();
            assert!(never_asked(&state, &run).unwrap().unwrap().contains("companions alone"), "{became}");
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
    fn what_cannot_be_read_is_neither_removed_nor_altered() {
        let folder = tempfile::tempdir().unwrap();
        let (state, run) = (state_below(folder.path()), RUN.parse::<RunId>().unwrap());
        let at = |name: &str| folder.path().join("lockgate").join(name);
        std::fs::create_dir_all(at("runs")).unwrap();
        let record = serde_json::json!({
            "id": RUN, "state": "ended", "started": "", "command": [], "workspace": "/", "backend": "linux",
            "notices": [], "plan": [],
        });
        std::fs::write(at(&format!("runs/{RUN}.jsonl")), record.to_string()).unwrap();
        let failed = |told: Result<(), anyhow::Error>| {
            let error = told.unwrap_err();
            assert_eq!(crate::exit::code_and_remedy(&error).0, crate::exit::FAILED, "{error}");
            error.to_string()
        };
        let every_way = || {
            assert!(failed(never_asked(&state, &run).map(drop)).contains("audit"));
            failed(show_json(&state, &run));
            failed(show_text(&state, &run).map(drop));
            failed(follow(&state, &run, Form::Json).map(drop));
            failed(verify(&state, RUN, Some("a".repeat(64)), Form::Json).map(drop));
        };
        // As an error of the disk, for root as well: of the folder, and of the file.
        std::os::unix::fs::symlink("audit", at("audit")).unwrap();
        every_way();
        failed(show_companions(&state, &run, Form::Json).map(drop));
        failed(RunRecord::remove(&state, &run).map_err(anyhow::Error::from));
        assert!(at(&format!("runs/{RUN}.jsonl")).exists());
        std::fs::remove_file(at("audit")).unwrap();
        std::fs::create_dir(at("audit")).unwrap();
        std::os::unix::fs::symlink(format!("{RUN}.jsonl"), state.audit(&run)).unwrap();
        every_way();
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
        let error = verify(&state, RUN, Some("a".repeat(64)), Form::Text).unwrap_err().to_string();
        assert!(error.starts_with("the audit does not hold: the first record of "), "{error}");
    }
}
