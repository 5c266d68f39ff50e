//! `lockgate runs`: lists, shows, stops and removes runs.

use policy::{Label, RunId, Span, shell_word};
use runtime::{
    Permission, Requests, RunList, RunRecord, RunState, SetUpRecord, StateDirectory, UnreadableRecord,
};
use serde::Serialize;

use super::run_name::{self, find};
use super::{audit, audit_missing};
use crate::arguments::Runs;
use crate::exit::{Done, Usage};
use crate::output::{self, Form, ListForm};

/// How many characters of a command the list shows.
const LONGEST: usize = 120;
/// How many records that cannot be read are told one by one.
const MOST_UNREADABLE: usize = 8;

pub(crate) fn runs(command: Runs) -> Done {
    let state = StateDirectory::to_read(&super::caller()?)?;
    super::look_after_dead(&state);
    match command {
        Runs::Ls { json, quiet, labels, number } => {
            ls(&state, ListForm::of(json, quiet), &labels, number.unwrap_or(usize::MAX))
        }
        Runs::Show { run, json } => show(&state, &run, Form::of(json)),
        Runs::Logs { run, json } => logs(&state, &run, Form::of(json)),
        Runs::Stop { runs } => stop(&state, &runs),
        Runs::Rm { runs, force: false } => remove(&state, &runs),
        Runs::Rm { runs, force: true } => remove_by_force(&state, &runs),
        Runs::Prune { older } => prune(&state, older),
    }
}

/// Removes all named runs, or none of them.
fn remove(state: &StateDirectory, names: &[String]) -> Done {
    let removable = |run: &RunId| {
        RunRecord::check_removable(state, run)?;
        if runtime::keeps_changes(state, run)? {
            return Err(Usage::error(
                format!("run {run} keeps apart what it wrote, and that would go with it"),
                format!("lockgate apply {run}, lockgate discard {run}, or runs rm --force"),
            ));
        }
        Ok(())
    };
    for run in find_each(state, names, removable)? {
        RunRecord::remove(state, &run)?;
        output::tell(&format!("removed run {run}"));
    }
    Ok(0)
}

/// Removes all named runs, or none of them, with the changes that they keep. What cannot be taken away is given up.
fn remove_by_force(state: &StateDirectory, names: &[String]) -> Done {
    let removable = |run: &RunId| Ok(RunRecord::check_removable_by_force(state, run)?);
    for run in find_each(state, names, removable)? {
        let rest = RunRecord::give_up_rest(state, &run)?;
        if !rest.is_empty() {
            output::tell(&format!("of what run {run} left, this may still be there: {}", rest.join("; ")));
        }
        RunRecord::remove(state, &run)?;
        output::tell(&format!("removed run {run}"));
    }
    Ok(0)
}

/// Returns the named runs, each once, if each may be removed.
fn find_each(
    state: &StateDirectory,
    names: &[String],
    removable: impl Fn(&RunId) -> Result<(), anyhow::Error>,
) -> Result<Vec<RunId>, anyhow::Error> {
    let mut runs: Vec<RunId> = Vec::new();
    for name in names {
        let run = find(state, name)?;
        removable(&run)?;
        if !runs.contains(&run) {
            runs.push(run);
        }
    }
    Ok(runs)
}

fn stop(state: &StateDirectory, names: &[String]) -> Done {
    let runs: Vec<RunId> = names.iter().map(|name| find(state, name)).collect::<Result<_, _>>()?;
    let mut failed = None;
    for run in runs {
        match runtime::stop(state, &run) {
            Ok(()) => output::tell(&format!("run {run} has ended")),
            // The others are stopped all the same. The last failure becomes the error of the command.
            Err(error) => fail_later(&mut failed, error),
        }
    }
    failed.map_or(Ok(0), Err)
}

/// Removes old runs and reports them. One that cannot be removed keeps none of the others. S3.18
fn prune(state: &StateDirectory, older: Span) -> Done {
    let mut failed = None;
    let RunList { records, unreadable, .. } = RunList::read(state)?;
    tell_unreadable(&unreadable);
    for record in records.into_iter().filter(|it| it.is_over_for(older.duration())) {
        let run = record.id.parse()?;
        match remove_unless_kept(state, &run) {
            Ok(true) => output::answer(&record.id)?,
            // Another `prune` may have removed it since; and a killed run's lock may be held by who takes away what it left.
            Ok(false) | Err(runtime::Error::NoRun { .. } | runtime::Error::GoesOn { .. }) => {}
            // Its engine may be gone for good, and would fail each further `prune`.
            Err(error @ runtime::Error::LeftBehind { .. }) => {
                let remedy = error.remedy();
                output::error(&error.into(), remedy.as_deref());
            }
            Err(error) => fail_later(&mut failed, error),
        }
    }
    failed.map_or(Ok(0), Err)
}

/// Removes a run, unless changes of it are kept. Returns whether it was removed.
fn remove_unless_kept(state: &StateDirectory, run: &RunId) -> Result<bool, runtime::Error> {
    let kept = runtime::keeps_changes(state, run)?;
    if !kept {
        RunRecord::remove(state, run)?;
    }
    Ok(!kept)
}

/// Reports the failure of before, and keeps this one as the command's own.
fn fail_later(failed: &mut Option<anyhow::Error>, error: runtime::Error) {
    if let Some(before) = failed.replace(error.into()) {
        output::error(&before, None);
    }
}

fn ls(state: &StateDirectory, form: ListForm, labels: &[Label], most: usize) -> Done {
    let bears = |record: &RunRecord, label: &Label| {
        record.labels.get(label.name()).is_some_and(|value| value == label.value())
    };
    let RunList { records, unreadable, .. } = RunList::read(state)?;
    tell_unreadable(&unreadable);
    if records.is_empty() && unreadable.is_empty() && form == ListForm::Text {
        output::tell("no run is on record; lockgate run -- CMD makes one");
    }
    let wanted = records.into_iter().filter(|record| labels.iter().all(|label| bears(record, label)));
    for record in wanted.take(most) {
        let line = match form {
            ListForm::Json => Shown::of(state, &record)?.json()?,
            ListForm::Names => record.id,
            ListForm::Text => Shown::of(state, &record)?.line(),
        };
        output::data(&line)?;
    }
    Ok(0)
}

/// A record, and what its run left to be decided on.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    record: &'a RunRecord,
    keeps_changes: bool,
}

impl<'a> Shown<'a> {
    fn of(state: &StateDirectory, record: &'a RunRecord) -> Result<Self, anyhow::Error> {
        let is_over = record.state != RunState::Running;
        Ok(Self { record, keeps_changes: is_over && runtime::keeps_changes(state, &record.id.parse()?)? })
    }

    fn json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    fn line(&self) -> String {
        let Self { record, keeps_changes } = self;
        let kept = if *keeps_changes { "  (keeps changes)" } else { "" };
        let command = shortened(&command(record));
        format!("{}  {}  {:<9}  {command}{kept}", record.id, record.started, became(record))
    }
}

/// Tells which records are missing from a list, and how many more.
fn tell_unreadable(records: &[UnreadableRecord]) {
    let (told, rest) = records.split_at(records.len().min(MOST_UNREADABLE));
    told.iter().for_each(|record| output::tell(&run_name::unreadable(record)));
    if !rest.is_empty() {
        output::tell(&format!("{} more records cannot be read", rest.len()));
    }
}

fn became(record: &RunRecord) -> String {
    match (&record.outcome, record.state) {
        (Some(outcome), _) => format!("exit {}", outcome.exit_code),
        (None, RunState::Running) => "running".into(),
        (None, RunState::Lost) => "lost".into(),
        (None, _) => "failed".into(),
    }
}

/// Describes the outcome of a run, with the reason if its command never ran.
fn came_to(record: &RunRecord) -> String {
    match (&record.outcome, &record.failure) {
        (Some(outcome), _) => output::plain(&outcome.summary),
        (None, Some(why)) => format!("failed to {}", output::plain(why)),
        (None, None) => became(record),
    }
}

/// Returns the command as a shell would take it.
fn command(record: &RunRecord) -> String {
    let words: Vec<_> = record.command.iter().map(|word| shell_word(word)).collect();
    output::plain(&words.join(" "))
}

/// Shortens a long command; `lockgate runs show` prints all of it.
fn shortened(command: &str) -> String {
    match command.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &command[..at]),
        None => command.to_owned(),
    }
}

fn set_up(setup: &SetUpRecord) -> String {
    let SetUpRecord { command, status, milliseconds, .. } = setup;
    output::plain(&format!("`{command}` {status} after {milliseconds} ms"))
}

fn show(state: &StateDirectory, run: &str, form: Form) -> Done {
    let record = RunRecord::read(state, &find(state, run)?)?;
    let shown = Shown::of(state, &record)?;
    if form == Form::Json {
        output::data(&shown.json()?)?;
        return Ok(0);
    }
    output::data(&format!("run        {}", record.id))?;
    output::data(&format!("command    {}", command(&record)))?;
    output::data(&format!("workspace  {}", output::path(&record.workspace)))?;
    output::data(&format!("backend    {}", record.backend))?;
    if let Some(process) = record.process.filter(|_| record.state == RunState::Running) {
        output::data(&format!("process    {}", process.number()))?;
    }
    if let Some(name) = &record.org {
        output::data(&format!("org        {}", output::plain(name)))?;
    }
    for (name, value) in &record.labels {
        output::data(&format!("label      {name}={}", output::plain(value)))?;
    }
    if !record.exposed.is_empty() {
        output::data(&format!(
            "exposed    {}: the credential itself, not a placeholder",
            record.exposed.join(", ")
        ))?;
    }
    output::data(&format!("started    {}", record.started))?;
    if let Some(ended) = &record.ended {
        output::data(&format!("ended      {ended}"))?;
    }
    for setup in &record.setup {
        output::data(&format!("set-up     {}", set_up(setup)))?;
    }
    match &record.outcome {
        Some(outcome) => {
            output::data(&format!("outcome    {}", output::plain(&outcome.summary)))?;
            show_memory(outcome.memory_peak)?;
            if let Some(models) = &outcome.models {
                output::data(&format!("models     {}", output::models(models)))?;
            }
            if let Some(Requests { allowed, denied, failed }) = outcome.requests {
                output::data(&format!("requests   {allowed} allowed, {denied} denied, {failed} failed"))?;
            }
        }
        None => {
            output::data(&format!("outcome    {}", came_to(&record)))?;
            show_memory(record.memory_peak)?;
        }
    }
    if shown.keeps_changes {
        output::data(&format!("changes    kept apart: lockgate diff {}", record.id))?;
    }
    for notice in notes(&record) {
        output::data(&format!("note       {}", output::plain(&notice)))?;
    }
    for permission in &record.permissions {
        output::data(&format!("rule       {}", output::plain(&rule(permission))))?;
    }
    Ok(0)
}

fn show_memory(peak: Option<u64>) -> std::io::Result<()> {
    match peak {
        Some(peak) => output::data(&format!("memory     {} at most", rounded_up(peak))),
        None => Ok(()),
    }
}

/// Returns a number of octets in the unit that it is shown in, rounded up.
fn rounded_up(octets: u64) -> policy::ByteSize {
    let unit = if octets >= 1 << 20 { 1 << 20 } else { 1 << 10 };
    policy::ByteSize::from_bytes(octets.checked_next_multiple_of(unit).unwrap_or(octets))
}

/// Returns what was weaker in a run than it could have been, and what could not be taken away at its end.
fn notes(record: &RunRecord) -> impl Iterator<Item = String> {
    record.notices.iter().cloned().chain(record.leftover.iter().map(ToString::to_string))
}

/// Lists what a run or one of its companions was allowed or denied, and by which rule.
fn rule(permission: &Permission) -> String {
    let Permission { companion, effect, rule, reach } = permission;
    let whose = companion.as_ref().map(|name| format!("of {name}: ")).unwrap_or_default();
    format!("{whose}{effect} {reach} ({rule})")
}

/// The story of a run: how its sandbox was made, each request, how it ended.
fn logs(state: &StateDirectory, run: &str, form: Form) -> Done {
    let run = find(state, run)?;
    let record = RunRecord::read(state, &run)?;
    if form == Form::Json {
        output::data(&serde_json::to_string(&record)?)?;
        match audit_missing::never_asked(state, &run)? {
            Some(_) => drop(audit::show_companions(state, &run, form)?),
            None => audit::show_json(state, &run)?,
        }
        return Ok(0);
    }
    output::data(&format!("{}  began: {}", record.started, command(&record)))?;
    for (number, step) in (1..).zip(&record.plan) {
        output::data(&format!("    {number:2}. {}", output::plain(step)))?;
    }
    for notice in notes(&record) {
        output::data(&format!("    note: {}", output::plain(&notice)))?;
    }
    for setup in &record.setup {
        output::data(&format!("    set-up: {}", set_up(setup)))?;
    }
    match audit_missing::never_asked(state, &run)? {
        Some(why) => {
            output::data(&format!("    it {why}"))?;
            audit::show_companions(state, &run, form)?;
        }
        None => drop(audit::show_text(state, &run)?),
    }
    if let Some(ended) = &record.ended {
        output::data(&format!("{ended}  {}", came_to(&record)))?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    use std::path::Path;

    use super::*;
    use crate::command::state_below;

    /// Makes the record of a run that left something at an engine which is gone, and its lock file, which is returned.
    fn left_behind(folder: &Path, id: &str, state: &str) -> std::fs::File {
        let at = |name: &str| folder.join("lockgate").join(name);
        for made in ["runs", "live"] {
            std::fs::create_dir_all(at(made)).unwrap();
        }
        let record = serde_json::json!({
            "id": id, "state": state, "started": "2020-01-01T00:00:00.000Z", "command": ["true"],
            "workspace": "/", "backend": "docker", "notices": [], "plan": [],
        });
        std::fs::write(at(&format!("runs/{id}.jsonl")), format!("{record}\n")).unwrap();
        let lock = at(&format!("live/{id}"));
        let mut lock = std::fs::File::options().write(true).create_new(true).mode(0o600).open(lock).unwrap();
        let inode = lock.metadata().unwrap().ino();
        writeln!(lock, "lock {inode}\nengine {id} {}", folder.join("engine.sock").display()).unwrap();
        lock
    }

    #[test]
    fn nothing_is_given_up_of_one_run_where_another_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let state = state_below(folder.path());
        let [over, running] = ["abcdefghjkmn", "abcdefghjkmp"].map(str::to_owned);
        let lock = folder.path().join("lockgate/live").join(&over);
        drop(left_behind(folder.path(), &over, "lost"));
        let live = left_behind(folder.path(), &running, "running");
        live.lock().unwrap();
        let refused = remove_by_force(&state, &[over.clone(), running]).unwrap_err();
        assert!(refused.to_string().contains("it is going on"), "{refused}");
        assert!(lock.exists());
        assert_eq!(remove_by_force(&state, std::slice::from_ref(&over)).unwrap(), 0);
        assert!(!lock.exists() && !RunRecord::is_known(&state, &over.parse().unwrap()));
    }

    #[test]
    fn an_old_run_whose_rest_cannot_be_taken_away_is_no_failure_of_prune() {
        let folder = tempfile::tempdir().unwrap();
        let state = state_below(folder.path());
        drop(left_behind(folder.path(), "abcdefghjkmn", "lost"));
        assert_eq!(prune(&state, "1s".parse().unwrap()).unwrap(), 0);
        assert!(RunRecord::is_known(&state, &"abcdefghjkmn".parse().unwrap()));
    }

    #[test]
    fn what_is_said_to_be_at_most_is_rounded_up() {
        for (octets, shown) in [
            (2_093_056, "2MiB"),
            (1 << 21, "2MiB"),
            (1_000, "1KiB"),
            (1_048_575, "1MiB"),
            (0, "0B"),
            ((1 << 30) + 1, "1025MiB"),
        ] {
            assert_eq!(rounded_up(octets).to_string(), shown, "{octets}");
        }
    }

    #[test]
    fn a_run_whose_changes_are_kept_is_marked() {
        let folder = tempfile::tempdir().unwrap();
        let state = state_below(folder.path());
        let record = serde_json::json!({
            "id": "abcdefghjkmn", "state": "ended", "started": "", "command": ["true"],
            "workspace": "/", "backend": "linux", "notices": [], "plan": [],
        });
        let record: RunRecord = serde_json::from_value(record).unwrap();
        let shown = || Shown::of(&state, &record).unwrap();
        assert!(!shown().keeps_changes && shown().line().ends_with("true"), "{}", shown().line());
        std::fs::create_dir_all(folder.path().join("lockgate/changes/abcdefghjkmn")).unwrap();
        assert!(shown().line().ends_with("true  (keeps changes)"), "{}", shown().line());
        let json = shown().json().unwrap();
        assert!(json.starts_with("{\"id\":") && json.ends_with(",\"keeps_changes\":true}"), "{json}");
    }

    #[test]
    fn a_command_is_shown_as_a_shell_takes_it() {
        let record = serde_json::json!({
            "id": "abcdefghjkmn", "state": "ended", "started": "", "command": ["sh", "-c", "echo 'a b'\u{1b}", ""],
            "workspace": "/", "backend": "linux", "notices": [], "plan": [],
        });
        let record: RunRecord = serde_json::from_value(record).unwrap();
        let shown = command(&record);
        assert!(shown.starts_with("sh -c '") && shown.ends_with(" ''"), "{shown}");
        assert!(!shown.contains('\u{1b}'), "{shown}");
    }
}
