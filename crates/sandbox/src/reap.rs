//! Gives back what a run left when its process was killed or could not clean up, according to its undo log.

use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use crate::path_identity::resolved;
use crate::undo::{Undo, UndoLog, why_left};

/// Unwinds the undo logs of runs that are over, one after the other. Of the files that a log names, only those below these directories are
/// removed with all that is in them.
#[derive(Clone, Debug)]
pub struct Reaper {
    /// The directory of the files that runs write over their images.
    pub written: PathBuf,
    /// The directory of the files with the authorities of sidecars.
    pub trusted: PathBuf,
    /// The engines that did not answer.
    silent: Vec<PathBuf>,
}

impl Reaper {
    /// Returns a reaper of the runs that have these directories.
    #[must_use]
    pub fn of(written: PathBuf, trusted: PathBuf) -> Self {
        Self { written, trusted, silent: Vec::new() }
    }

    /// Unwinds an undo log, and hands on each message to the user as soon as there is one: this process may be killed before the rest is
    /// done. The log is obeyed, so the caller must have checked its owner.
    ///
    /// # Errors
    /// When the log cannot be read. What could not be given back is in the result.
    pub fn reap(&mut self, mut log: impl Read, tell: &mut dyn FnMut(&[String])) -> io::Result<Unwound> {
        let mut octets = Vec::new();
        log.read_to_end(&mut octets)?;
        // A full disk may have cut the last line inside a character.
        let log = String::from_utf8_lossy(&octets);
        let mut undo = UndoLog::recover(&log);
        undo.silent = std::mem::take(&mut self.silent);
        let foreign: Vec<String> = undo
            .entries
            .iter()
            .filter_map(|undo| self.foreign(undo))
            .filter(|path| path.symlink_metadata().is_ok())
            .map(|path| {
                format!("`{}` is kept: it is no directory of a run, though the log says so", path.display())
            })
            .collect();
        undo.entries.retain(|undo| self.foreign(undo).is_none());
        let problems = undo.unwind_telling(tell);
        let told = undo.told().into_iter().chain(foreign).collect();
        self.silent = undo.silent;
        Ok(Unwound { problems, told, why_left: why_left(&log).map(str::to_owned) })
    }

    /// Returns what an entry would remove that is not a run's.
    fn foreign<'a>(&self, undo: &'a Undo) -> Option<&'a Path> {
        let (path, directory) = match undo {
            Undo::Written(path) => (path, &self.written),
            Undo::Trusted(path) => (path, &self.trusted),
            _ => return None,
        };
        let (real, directory) = (resolved(path), resolved(directory));
        let goes_up = path.components().any(|part| part == Component::ParentDir);
        let is_own = !goes_up && real != directory && real.starts_with(&directory);
        (!is_own).then_some(path)
    }
}

/// The result of unwinding the log of a run that is over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unwound {
    /// What could not be given back.
    pub problems: Vec<String>,
    /// Messages to the user about what was given back.
    pub told: Vec<String>,
    /// The reason why something was left, if the process that cleaned up after the run recorded one.
    pub why_left: Option<String>,
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::file_id::FileId;
    use crate::protect::Repository;

    #[test]
    fn only_what_is_below_the_directories_of_runs_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut reaper = Reaper::of(at("state/written"), at("state/trusted"));
        for made in ["state/written/run/of-a-cache", "state/trusted/run", "victim/inner", "state/vault"] {
            std::fs::create_dir_all(at(made)).unwrap();
        }
        std::os::unix::fs::symlink("state", at("other-name")).unwrap();
        std::os::unix::fs::symlink(at("victim"), at("state/written/link")).unwrap();
        let mut reaped = |line: &str| {
            let line = format!("{line}\n").replace(" /", &format!(" {}/", folder.path().display()));
            reaper.reap(line.as_bytes(), &mut |_| ()).unwrap()
        };
        for foreign in [
            "written /victim",
            "written /state/written",
            "written /state/written/../vault",
            "written /state/written/link/inner",
            "written /state/written/link",
            "written /state/trusted/run",
            "trusted /victim/inner",
            "trusted /state/vault",
        ] {
            let Unwound { problems, told, .. } = reaped(foreign);
            assert!(
                problems.is_empty() && told.len() == 1 && told[0].contains(" is kept: "),
                "{foreign}: {told:?}"
            );
        }
        for kept in ["victim/inner", "state/written/run/of-a-cache", "state/trusted/run", "state/vault"] {
            assert!(at(kept).exists(), "{kept}");
        }
        assert_eq!(reaped("written /victim/that/is/not/there"), Unwound::default());
        for own in [
            "written /other-name/written/run/of-a-cache",
            "written /state/written/run",
            "trusted /state/trusted/run",
        ] {
            assert_eq!(reaped(own), Unwound::default(), "{own}");
        }
        assert!(!at("state/written/run").exists() && !at("state/trusted/run").exists());
    }

    #[test]
    fn what_was_taken_away_is_told_before_the_rest_is() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut reaper = Reaper::of(at("written"), at("trusted"));
        for made in ["written/run", ".git"] {
            std::fs::create_dir_all(at(made)).unwrap();
        }
        std::os::unix::fs::symlink("/somewhere", at(".git/FETCH_HEAD")).unwrap();
        let being = FileId::of(std::fs::File::open(at(".git")).unwrap().as_fd()).unwrap();
        let written = Undo::Written(at("written/run"));
        let links =
            Undo::PlantedLinks(Repository { path: at(".git"), being, layout: crate::protect::Layout::Whole });
        let log = [written.line(), links.line()].concat();
        let mut noted = Vec::new();
        let unwound = reaper.reap(log.as_bytes(), &mut |told| {
            noted.extend_from_slice(told);
            assert!(at("written/run").exists() && !at(".git/FETCH_HEAD").is_symlink());
        });
        assert!(noted.len() == 1 && noted[0].contains("FETCH_HEAD"), "{noted:?}");
        assert_eq!(unwound.unwrap().told, noted);
        assert!(!at("written/run").exists());
    }

    #[test]
    fn an_engine_that_did_not_answer_is_not_asked_again() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("engine.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut reaper = Reaper::of(folder.path().join("written"), folder.path().join("trusted"));
        reaper.silent.push(socket.clone());
        for run in ["abcdefghjkmn", "abcdefghjkmp", "abcdefghjkmq"] {
            let log = format!("engine {run} {}\n", socket.display());
            let problems = reaper.reap(log.as_bytes(), &mut |_| ()).unwrap().problems;
            assert!(problems.len() == 1 && problems[0].ends_with("does not answer"), "{problems:?}");
        }
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
