//! `lockgate diff|apply|discard`: what runs wrote in overlay workspaces.

use std::collections::BTreeSet;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Component, Path, PathBuf};

use policy::RunId;
use runtime::{KeptRun, RunRecord, RunState, StateDirectory};
use sandbox::{Change, LeftOut, What};

use super::run_name;
use crate::exit::{Done, Usage};
use crate::output::{self, Stdout};

pub(crate) fn diff(run: Option<&str>, stat: bool, paths: &[PathBuf]) -> Done {
    let state = state()?;
    let run = find(&state, run)?;
    let changes = runtime::changes_of(&state, &run)?;
    let paths = &changed(&state, &run, &changes.list, paths)?;
    if stat {
        for change in changes.list.iter().filter(|change| change.is_chosen(paths)) {
            output::data(&line(change))?;
        }
    } else if std::io::stdout().is_terminal() {
        let mut out = Shown { out: BufWriter::new(Stdout::default()), line: Vec::new() };
        changes.write_patch(paths, &mut out)?;
        out.end()?;
    } else {
        let mut out = BufWriter::new(Stdout::default());
        changes.write_patch(paths, &mut out)?;
        out.flush()?;
    }
    if let Some(told) = withheld(&run, &changes.list, paths).filter(|_| !stat) {
        output::tell(&told);
    }
    changes.left_out.iter().for_each(|left| output::tell(&left_out(left)));
    let conflicts: Vec<_> = changes.list.iter().filter(|change| change.conflict.is_some()).collect();
    conflicts.iter().copied().for_each(tell_conflict);
    if !stat && conflicts.iter().any(|change| change.is_chosen(paths) && !change.is_withheld(paths)) {
        output::tell(TAKES_OUT);
    }
    Ok(0)
}

/// What the patch does to a file in conflict: it leads from the folder as it is now to what the run wrote.
const TAKES_OUT: &str = "of what is in conflict the patch makes what the run wrote, and takes out what was changed here since; read it, and \
                         commit your own changes first";

/// Writes a patch to a terminal line by line, without control characters: the command wrote it, and a terminal would obey them.
struct Shown<W> {
    out: W,
    line: Vec<u8>,
}

impl<W: Write> Shown<W> {
    fn end(mut self) -> std::io::Result<()> {
        if !self.line.is_empty() {
            self.show_line()?;
        }
        self.out.flush()
    }

    fn show_line(&mut self) -> std::io::Result<()> {
        let line = String::from_utf8_lossy(&self.line);
        let parts: Vec<_> = line.split('\t').map(output::plain).collect();
        writeln!(self.out, "{}", parts.join("\t"))?;
        self.line.clear();
        Ok(())
    }
}

impl<W: Write> Write for Shown<W> {
    fn write(&mut self, octets: &[u8]) -> std::io::Result<usize> {
        for part in octets.split_inclusive(|octet| *octet == b'\n') {
            match part.strip_suffix(b"\n") {
                Some(rest) => {
                    self.line.extend(rest);
                    self.show_line()?;
                }
                None => self.line.extend(part),
            }
        }
        Ok(octets.len())
    }

    /// Keeps an unfinished line until the rest of it comes.
    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

pub(crate) fn apply(run: Option<&str>, paths: &[PathBuf]) -> Done {
    let state = state()?;
    let run = find(&state, run)?;
    let finished = runtime::finished_changes_of(&state, &run)?;
    let changes = &finished.changes;
    let paths = &changed(&state, &run, &changes.list, paths)?;
    let conflicts = changes.conflicts(paths);
    if !conflicts.is_empty() {
        conflicts.into_iter().for_each(tell_conflict);
        output::tell(&format!("nothing was taken over; {}", next(&run, &changes.list)));
        return Ok(1);
    }
    let applied = runtime::apply_changes(&state, &run, &finished, paths)?;
    applied.left_out.iter().for_each(|left| output::tell(&left_out(left)));
    output::tell(&match applied.done.len() {
        1 => format!("1 path of run {run} was taken over into {}", workspace(&state, &run)),
        paths => format!("{paths} paths of run {run} were taken over into {}", workspace(&state, &run)),
    });
    if applied.left_out.is_empty() && applied.done.len() == changes.list.len() {
        runtime::discard_applied(&state, &run, finished)?;
    } else {
        output::tell(&format!("the rest is kept: lockgate diff {run}, then apply or discard"));
    }
    if let Some(told) = as_well(&others(&state, &run)) {
        output::tell(&told);
    }
    let is_nothing = applied.done.is_empty() && !applied.left_out.is_empty();
    Ok(u8::from(is_nothing))
}

pub(crate) fn discard(run: Option<&str>) -> Done {
    let state = state()?;
    let is_named = run.is_some();
    let run = find(&state, run)?;
    let others = others(&state, &run);
    if !is_named && !others.is_empty() {
        // What is dropped is gone, so none of several is chosen for the person.
        return Err(Usage::error(
            format!("several runs of this folder keep changes: {run}, {}", listed(&others)),
            "name the one to drop: lockgate discard RUN; lockgate diff RUN shows what it wrote",
        ));
    }
    let workspace = workspace(&state, &run);
    runtime::discard_changes(&state, &run)?;
    output::tell(&format!("what {run} wrote in {workspace} was dropped"));
    Ok(0)
}

/// Lists run records after killed runs were cleaned up, since their changes are to be decided on as well.
fn state() -> Result<StateDirectory, anyhow::Error> {
    let state = StateDirectory::to_read(&super::caller()?)?;
    super::look_after_dead(&state);
    Ok(state)
}

fn find(state: &StateDirectory, run: Option<&str>) -> Result<RunId, anyhow::Error> {
    match run {
        Some(name) => run_name::find(state, name),
        None => latest(state, &super::caller()?.directory),
    }
}

/// Returns named paths as those of changes are written. Refuses one at or below which nothing was changed.
fn changed(
    state: &StateDirectory,
    run: &RunId,
    all: &[Change],
    named: &[PathBuf],
) -> Result<Vec<PathBuf>, anyhow::Error> {
    let workspace = RunRecord::read(state, run).map(|record| record.workspace).unwrap_or_default();
    let within = |named: &PathBuf| {
        let path = within(&workspace, named);
        if all.iter().any(|change| change.path.starts_with(&path)) {
            return Ok(path);
        }
        let what = format!("`{}` is no path that the run changed", output::path(named));
        Err(Usage::error(what, format!("lockgate diff --stat {run} names them")))
    };
    named.iter().map(within).collect()
}

/// Returns a path relative to the workspace, without `.`.
fn within(workspace: &Path, named: &Path) -> PathBuf {
    let is_here = |part: &Component<'_>| matches!(part, Component::CurDir);
    named.strip_prefix(workspace).unwrap_or(named).components().filter(|part| !is_here(part)).collect()
}

/// The most paths that are told in one sentence.
const MOST_TOLD: usize = 8;

/// Returns what to say of the changes that are no more than comments in a patch, because this machine would execute or trust them.
fn withheld(run: &RunId, all: &[Change], named: &[PathBuf]) -> Option<String> {
    let of_them = all.iter().filter(|change| change.is_chosen(named) && change.is_withheld(named));
    let outermost: BTreeSet<&PathBuf> = of_them.filter_map(|change| change.protected.as_ref()).collect();
    let first = outermost.first()?;
    let mut told: Vec<_> = outermost.iter().take(MOST_TOLD).map(|path| output::path(path)).collect();
    if let Some(more) = outermost.len().checked_sub(MOST_TOLD).filter(|more| *more > 0) {
        told.push(format!("and {more} more"));
    }
    Some(format!(
        "only comments in the patch, because this machine would execute or trust it: {}; once you have looked at it, `lockgate diff {run} \
         --path {}` makes a patch of it",
        told.join(", "),
        policy::shell_word(&first.to_string_lossy())
    ))
}

/// Returns the workspace of a run.
fn workspace(state: &StateDirectory, run: &RunId) -> String {
    RunRecord::read(state, run).map_or_else(|_| "its workspace".into(), |it| output::path(&it.workspace))
}

/// Finds the latest run in this folder whose changes are kept.
fn latest(state: &StateDirectory, here: &Path) -> Result<RunId, anyhow::Error> {
    let all = runtime::all_with_changes(state)?;
    let is_here = |it: &&KeptRun| it.workspace.as_ref().is_ok_and(|workspace| workspace == here);
    if let Some(found) = all.iter().find(is_here) {
        let here = all.iter().filter(is_here);
        run_name::refuse_untold_order(
            &here.filter_map(|it| RunRecord::read(state, &it.run).ok()).collect::<Vec<_>>(),
        )?;
        return Ok(found.run.clone());
    }
    // Such a run may have worked in this folder.
    if let Some((run, why)) = all.iter().find_map(|it| Some((&it.run, it.workspace.as_ref().err()?))) {
        return Err(Usage::nothing(
            format!("nobody knows whose folder the changes of run {run} are of: failed to {why}"),
            format!("lockgate discard {run} drops them"),
        ));
    }
    Err(match all.first() {
        Some(KeptRun { run, workspace: Ok(workspace) }) => Usage::nothing(
            "no changes of a run in this folder are kept apart",
            format!("{run} has some of {}: name it", output::path(workspace)),
        ),
        _ => Usage::nothing(
            "no run's changes are kept apart",
            "lockgate run --workspace-mode overlay -- CMD keeps them apart",
        ),
    })
}

/// Returns the other runs that keep changes of the same folder, the latest first.
fn others(state: &StateDirectory, run: &RunId) -> Vec<RunId> {
    let Ok(RunRecord { workspace, .. }) = RunRecord::read(state, run) else { return Vec::new() };
    let is_another =
        |it: &KeptRun| it.run != *run && it.workspace.as_ref().is_ok_and(|other| *other == workspace);
    let all = runtime::all_with_changes(state).unwrap_or_default().into_iter();
    all.filter(is_another).map(|it| it.run).filter(|run| is_over(state, run)).collect()
}

/// Whether a run is over: of one that goes on nothing can be decided yet.
fn is_over(state: &StateDirectory, run: &RunId) -> bool {
    RunRecord::read(state, run).map_or(true, |record| record.state != RunState::Running)
}

/// Says which other runs are still to be decided on.
fn as_well(others: &[RunId]) -> Option<String> {
    match others {
        [] => None,
        [one] => Some(format!("run {one} keeps changes of it as well: lockgate diff {one}")),
        many => Some(format!("runs {} keep changes of it as well: lockgate diff RUN", listed(many))),
    }
}

/// Lists runs in one sentence.
fn listed(runs: &[RunId]) -> String {
    let mut told: Vec<_> = runs.iter().take(MOST_TOLD).map(ToString::to_string).collect();
    if let Some(more) = runs.len().checked_sub(MOST_TOLD).filter(|more| *more > 0) {
        told.push(format!("and {more} more"));
    }
    told.join(", ")
}

fn line(change: &Change) -> String {
    let letter = match change.what {
        What::Made { .. } => 'A',
        What::Changed { .. } => 'M',
        What::Gone { .. } => 'D',
    };
    let note = if change.protected.is_some() { "  (this machine would execute or trust it)" } else { "" };
    format!("{letter} {}{note}", output::path(&change.path))
}

fn left_out(left: &LeftOut) -> String {
    format!("left out: {}: {}", output::path(&left.path), left.why)
}

/// Returns what to do after conflicts.
fn next(run: &RunId, all: &[Change]) -> String {
    if all.iter().all(|change| change.conflict.is_some()) {
        let by_name = match all.iter().any(|change| change.protected.is_some()) {
            true => " (one that this machine would execute or trust only if --path names it)",
            false => "",
        };
        return format!(
            "all of it is in conflict: lockgate diff {run} | git apply gives each file the run's content{by_name}, and takes out what was \
             changed here since; read that patch, and commit your own changes first"
        );
    }
    format!("take others with lockgate apply {run} --path PATH")
}

fn tell_conflict(change: &Change) {
    output::tell(&conflict(change));
}

fn conflict(change: &Change) -> String {
    format!("conflict: {}: {}", output::path(&change.path), change.conflict.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::state_below;

    #[test]
    fn a_terminal_is_shown_lines_and_obeys_none() {
        let patch = "+a\tb\n-\u{1b}[2J\r\n+ends\u{9b}";
        for piece in [1, 3, patch.len()] {
            let mut out = Vec::new();
            let mut shown = Shown { out: &mut out, line: Vec::new() };
            patch.as_bytes().chunks(piece).for_each(|octets| shown.write_all(octets).unwrap());
            shown.end().unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), "+a\tb\n-\u{fffd}[2J\u{fffd}\n+ends\u{fffd}\n");
        }
    }

    #[test]
    fn what_is_all_in_conflict_is_taken_from_a_patch_that_undoes_ones_own() {
        let change = |conflict| Change {
            path: "a".into(),
            what: What::Made { mode: 0o100_644 },
            conflict,
            protected: None,
        };
        let run = RunId::from_random([0; 12]);
        assert!(next(&run, &[change(Some("why")), change(None)]).contains("--path"));
        let all = next(&run, &[change(Some("why")), change(Some("why"))]);
        for said in [
            "| git apply gives each file the run's content",
            "takes out what was changed here",
            "commit your own",
        ] {
            assert!(all.contains(said), "{said}: {all}");
        }
    }

    #[test]
    fn what_is_only_a_comment_in_the_patch_is_told_with_what_to_do() {
        let change = |path: &str, protected: Option<&str>| Change {
            path: path.into(),
            what: What::Made { mode: 0o100_644 },
            conflict: None,
            protected: protected.map(PathBuf::from),
        };
        let husky = Some(".husky");
        let all = [change(".husky", husky), change(".husky/x\ny", husky), change("plain", None)];
        let run = RunId::from_random([0; 12]);
        let told = withheld(&run, &all, &[]).unwrap();
        assert!(told.contains("trust it: .husky; ") && told.contains("--path .husky`"), "{told}");
        assert_eq!(withheld(&run, &all, &[".husky".into()]), None);
        assert_eq!(withheld(&run, &all, &["plain".into()]), None);
        let spaced = withheld(&run, &[change("my dir/.husky", Some("my dir/.husky"))], &[]).unwrap();
        assert!(spaced.contains("--path 'my dir/.husky'`"), "{spaced}");
        let many: Vec<_> = (0..20).map(|n| change("x", Some(&format!("{n}")))).collect();
        assert!(withheld(&run, &many, &[]).unwrap().contains(", and 12 more;"));
    }

    #[test]
    fn a_path_may_be_named_from_the_top_of_the_machine_or_of_the_workspace() {
        for named in ["a/b", "./a/b", "a/./b/", "/w/a/b", "/w/./a/b"] {
            assert_eq!(within(Path::new("/w"), Path::new(named)), Path::new("a/b"), "{named}");
        }
        for named in ["/wx/a/b", "../a/b", "a/../b"] {
            assert_eq!(within(Path::new("/w"), Path::new(named)), Path::new(named));
        }
        assert_eq!(within(Path::new("/w"), Path::new("/w")), Path::new(""));
    }

    #[test]
    fn other_runs_of_a_folder_that_keep_changes_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let state = state_below(folder.path());
        let keep = |run: &str, workspace: &str, started: &str| {
            let record = serde_json::json!({
                "id": run, "state": "ended", "started": started, "command": [], "workspace": workspace,
                "backend": "linux", "notices": [], "plan": [],
            });
            let at = folder.path().join("lockgate");
            std::fs::create_dir_all(at.join("changes").join(run)).unwrap();
            std::fs::create_dir_all(at.join("runs")).unwrap();
            std::fs::write(at.join(format!("runs/{run}.jsonl")), record.to_string()).unwrap();
            run.parse::<RunId>().unwrap()
        };
        let first = keep("abcdefghjkmn", "/w", "2026-01-01T00:00:00Z");
        let second = keep("bcdefghjkmna", "/w", "2026-01-02T00:00:00Z");
        let elsewhere = keep("cdefghjkmnab", "/elsewhere", "2026-01-03T00:00:00Z");
        assert_eq!(latest(&state, Path::new("/w")).unwrap(), second);
        assert_eq!(others(&state, &second), std::slice::from_ref(&first));
        assert_eq!(as_well(&others(&state, &elsewhere)), None);
        let told = as_well(&others(&state, &second)).unwrap();
        assert!(
            told.starts_with("run abcdefghjkmn keeps changes") && told.ends_with("diff abcdefghjkmn"),
            "{told}"
        );
        let told = as_well(&[first, second]).unwrap();
        assert!(told.starts_with("runs abcdefghjkmn, bcdefghjkmna keep changes"), "{told}");
    }

    #[test]
    fn no_name_adds_a_line() {
        let path = PathBuf::from("p\nlockgate: verified\u{202e}");
        let told = "p\\nlockgate: verified\\u{202e}";
        let what = What::Made { mode: 0o100_644 };
        let change = Change { path: path.clone(), what, conflict: Some("why"), protected: None };
        assert_eq!(line(&change), format!("A {told}"));
        assert_eq!(conflict(&change), format!("conflict: {told}: why"));
        assert_eq!(left_out(&LeftOut { path, why: "why" }), format!("left out: {told}: why"));
    }
}
