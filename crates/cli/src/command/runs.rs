//! `lockgate runs`: lists, shows, stops and removes runs.

use policy::{Label, RunId, Span};
use runtime::{Permission, RunRecord, RunState, SetUpRecord, StateDirectory};

use super::audit;
use super::run_name::find;
use crate::arguments::Runs;
use crate::exit::{Done, Usage};
use crate::output::{self, Form};

/// How many characters of a command the list shows.
const LONGEST: usize = 120;

pub(crate) fn runs(command: Runs) -> Done {
    let state = StateDirectory::of(&super::caller()?)?;
    super::look_after_dead(&state);
    match command {
        Runs::Ls { json, quiet, labels, number } => {
            ls(&state, Form::of(json), quiet, &labels, number.unwrap_or(usize::MAX))
        }
        Runs::Show { run, json } => show(&state, &run, Form::of(json)),
        Runs::Logs { run } => logs(&state, &run),
        Runs::Stop { runs } => stop(&state, &runs),
        Runs::Rm { runs, force } => remove(&state, &runs, force),
        Runs::Prune { older } => prune(&state, older),
    }
}

/// Removes all named runs, or none of them.
fn remove(state: &StateDirectory, names: &[String], force: bool) -> Done {
    let mut runs: Vec<RunId> = Vec::new();
    for name in names {
        let run = find(state, name)?;
        RunRecord::check_removable(state, &run)?;
        if !force && runtime::keeps_changes(state, &run)? {
            return Err(Usage::error(
                format!("run {run} keeps apart what it wrote, and that would go with it"),
                format!("lockgate apply {run}, lockgate discard {run}, or runs rm --force"),
            ));
        }
        if !runs.contains(&run) {
            runs.push(run);
        }
    }
    for run in runs {
        RunRecord::remove(state, &run)?;
        output::tell(&format!("removed run {run}"));
    }
    Ok(0)
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
    for record in RunRecord::list(state)?.into_iter().filter(|it| it.is_over_for(older.duration())) {
        let run = record.id.parse()?;
        match remove_unless_kept(state, &run) {
            Ok(true) => output::data(&record.id)?,
            // Another `prune` may have removed it since.
            Ok(false) | Err(runtime::Error::NoRun { .. }) => {}
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

fn ls(state: &StateDirectory, form: Form, quiet: bool, labels: &[Label], most: usize) -> Done {
    let bears = |record: &RunRecord, label: &Label| {
        record.labels.get(label.name()).is_some_and(|value| value == label.value())
    };
    let records = RunRecord::list(state)?;
    let wanted = records.into_iter().filter(|record| labels.iter().all(|label| bears(record, label)));
    for record in wanted.take(most) {
        let line = match form {
            Form::Json => serde_json::to_string(&record)?,
            Form::Text if quiet => record.id,
            Form::Text => {
                let command = shortened(&command(&record));
                format!("{}  {}  {:<9}  {command}", record.id, record.started, became(&record))
            }
        };
        output::data(&line)?;
    }
    Ok(0)
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

fn command(record: &RunRecord) -> String {
    output::plain(&record.command.join(" "))
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
    if form == Form::Json {
        output::data(&serde_json::to_string(&record)?)?;
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
            if let Some(peak) = outcome.memory_peak {
                output::data(&format!("memory     {} at most", policy::ByteSize::from_bytes(peak)))?;
            }
            if let Some(models) = &outcome.models {
                output::data(&format!("models     {}", output::models(models)))?;
            }
            let (allowed, denied, failed) = (outcome.allowed, outcome.denied, outcome.failed);
            output::data(&format!("requests   {allowed} allowed, {denied} denied, {failed} failed"))?;
        }
        None => output::data(&format!("outcome    {}", came_to(&record)))?,
    }
    for notice in notes(&record) {
        output::data(&format!("note       {}", output::plain(&notice)))?;
    }
    for permission in &record.permissions {
        output::data(&format!("rule       {}", output::plain(&rule(permission))))?;
    }
    Ok(0)
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
fn logs(state: &StateDirectory, run: &str) -> Done {
    let run = find(state, run)?;
    let record = RunRecord::read(state, &run)?;
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
    match audit::never_asked(state, &run) {
        Some(why) => output::data(&format!("    it {why}"))?,
        None => audit::show_text(state, &run)?,
    }
    if let Some(ended) = &record.ended {
        output::data(&format!("{ended}  {}", came_to(&record)))?;
    }
    Ok(0)
}
