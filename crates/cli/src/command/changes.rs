//! `lockgate diff|apply|discard`: what runs wrote in overlay workspaces.

use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use policy::RunId;
use runtime::{KeptRun, RunRecord, StateDirectory};
use sandbox::{Change, LeftOut, What};

use super::run_name;
use crate::exit::{Done, Usage};
use crate::output;

pub(crate) fn diff(run: Option<&str>, stat: bool) -> Done {
    let state = state()?;
    let changes = runtime::changes_of(&state, &find(&state, run)?)?;
    if stat {
        for change in &changes.list {
            output::data(&line(change))?;
        }
    } else if std::io::stdout().is_terminal() {
        let mut out = Shown { out: BufWriter::new(std::io::stdout().lock()), line: Vec::new() };
        changes.write_patch(&mut out)?;
        out.end()?;
    } else {
        let mut out = BufWriter::new(std::io::stdout().lock());
        changes.write_patch(&mut out)?;
        out.flush()?;
    }
    changes.left_out.iter().for_each(|left| output::tell(&left_out(left)));
    changes.list.iter().filter(|change| change.conflict.is_some()).for_each(tell_conflict);
    Ok(0)
}

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
    let changes = runtime::finished_changes_of(&state, &run)?;
    for path in paths {
        if !changes.list.iter().any(|change| change.path.starts_with(path)) {
            let what = format!("`{}` is no path that the run changed", output::path(path));
            return Err(Usage::error(what, format!("lockgate diff --stat {run} names them")));
        }
    }
    let conflicts = changes.conflicts(paths);
    if !conflicts.is_empty() {
        conflicts.into_iter().for_each(tell_conflict);
        output::tell(&format!("nothing was taken over; take others with lockgate apply {run} --path PATH"));
        return Ok(1);
    }
    let applied = runtime::apply_changes(&state, &run, &changes, paths)?;
    applied.left_out.iter().for_each(|left| output::tell(&left_out(left)));
    output::tell(&match applied.done.len() {
        1 => format!("1 path was taken over into {}", workspace(&state, &run)),
        paths => format!("{paths} paths were taken over into {}", workspace(&state, &run)),
    });
    if paths.is_empty() && applied.left_out.is_empty() {
        runtime::discard_changes(&state, &run)?;
    } else {
        output::tell(&format!("the rest is kept: lockgate diff {run}, then apply or discard"));
    }
    Ok(0)
}

pub(crate) fn discard(run: Option<&str>) -> Done {
    let state = state()?;
    let run = find(&state, run)?;
    let workspace = workspace(&state, &run);
    runtime::discard_changes(&state, &run)?;
    output::tell(&format!("what {run} wrote in {workspace} was dropped"));
    Ok(0)
}

/// Lists run records after killed runs were cleaned up, since their changes are to be decided on as well.
fn state() -> Result<StateDirectory, anyhow::Error> {
    let state = StateDirectory::of(&super::caller()?)?;
    super::look_after_dead(&state);
    Ok(state)
}

fn find(state: &StateDirectory, run: Option<&str>) -> Result<RunId, anyhow::Error> {
    match run {
        Some(name) => run_name::find(state, name),
        None => latest(state, &super::caller()?.directory),
    }
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

fn line(change: &Change) -> String {
    let letter = match change.what {
        What::Made { .. } => 'A',
        What::Changed { .. } => 'M',
        What::Gone { .. } => 'D',
    };
    let note = if change.protected { "  (this machine would execute or trust it)" } else { "" };
    format!("{letter} {}{note}", output::path(&change.path))
}

fn left_out(left: &LeftOut) -> String {
    format!("left out: {}: {}", output::path(&left.path), left.why)
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
    fn no_name_adds_a_line() {
        let path = PathBuf::from("p\nlockgate: verified\u{202e}");
        let told = "p\\nlockgate: verified\\u{202e}";
        let what = What::Made { mode: 0o100_644 };
        let change = Change { path: path.clone(), what, conflict: Some("why"), protected: false };
        assert_eq!(line(&change), format!("A {told}"));
        assert_eq!(conflict(&change), format!("conflict: {told}: why"));
        assert_eq!(left_out(&LeftOut { path, why: "why" }), format!("left out: {told}: why"));
    }
}
