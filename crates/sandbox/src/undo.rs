//! Undo: every acquired thing pushes how it is given back, and what was pushed last is given back first.
//!
//! The log is written to the run's directory before the thing is acquired, so that after a `kill -9` the next start
//! finds the same list.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use policy::RunId;

/// How one acquired thing is given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undo {
    /// Remove a control group's directory, once its last process is gone.
    Group(PathBuf),
    /// Take away an empty directory that held a protected name.
    Placeholder(PathBuf),
    /// Remove what was written over an image.
    Written(PathBuf),
    /// Remove the files by which programs trust a run's authority.
    Trusted(PathBuf),
    /// Remove the wall around the link of a run.
    Wall(RunId),
    /// Remove the link of a run.
    Link(RunId),
    /// Remove what the engine at a socket has of a run.
    Engine(PathBuf, RunId),
}

impl Undo {
    pub(crate) fn line(&self) -> String {
        match self {
            Self::Group(path) => format!("group {}\n", path.display()),
            Self::Placeholder(path) => format!("placeholder {}\n", path.display()),
            Self::Written(path) => format!("written {}\n", path.display()),
            Self::Trusted(path) => format!("trusted {}\n", path.display()),
            Self::Wall(run) => format!("wall {run}\n"),
            Self::Link(run) => format!("link {run}\n"),
            Self::Engine(socket, run) => format!("engine {run} {}\n", socket.display()),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let (kind, path) = line.split_once(' ')?;
        match kind {
            "group" => Some(Self::Group(path.into())),
            "placeholder" => Some(Self::Placeholder(path.into())),
            "written" => Some(Self::Written(path.into())),
            "trusted" => Some(Self::Trusted(path.into())),
            "wall" => path.parse().ok().map(Self::Wall),
            "link" => path.parse().ok().map(Self::Link),
            "engine" => {
                let (run, socket) = path.split_once(' ')?;
                Some(Self::Engine(socket.into(), run.parse().ok()?))
            }
            _ => None,
        }
    }
}

/// A line of the log that says why something in it is still there: of whoever tried after the run was over.
pub(crate) fn left(why: &str) -> String {
    let why: String = why.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("left {why}\n")
}

/// The last such reason in a log.
pub(crate) fn why_left(log: &str) -> Option<&str> {
    log.lines().rev().find_map(|line| line.strip_prefix("left "))
}

/// The undo log of one run.
#[derive(Debug, Default)]
pub struct UndoLog {
    pub(crate) entries: Vec<Undo>,
    file: Option<File>,
    pub(crate) whose: Whose,
}

/// Whose things are given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Those of a run whose end this process has seen, or made.
    #[default]
    Own,
    /// Those of a run whose process was killed.
    Dead,
}

impl UndoLog {
    /// A log that is kept in a file as well.
    #[must_use]
    pub fn in_file(file: File) -> Self {
        Self { file: Some(file), ..Self::default() }
    }

    /// A log that dies with the process.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::default()
    }

    /// Notes how something that is about to be acquired is given back.
    pub fn push(&mut self, undo: Undo) {
        self.push_all([undo]);
    }

    /// Notes several at once, the last of which is given back first: one write for all.
    pub fn push_all(&mut self, undos: impl IntoIterator<Item = Undo>) {
        let first = self.entries.len();
        self.entries.extend(undos);
        if let Some(file) = &mut self.file {
            let lines: String = self.entries[first..].iter().map(Undo::line).collect();
            // A log that cannot be written (full disk) still unwinds from memory.
            let _ = file.write_all(lines.as_bytes());
        }
    }

    /// Strikes out what an engine had of a run: whoever made it has taken it away, and an engine need not be asked.
    pub fn engine_is_done(&mut self, run: &RunId) {
        self.entries.retain(|undo| !matches!(undo, Undo::Engine(_, whose) if whose == run));
    }

    /// Reads a log that a dead run left.
    #[must_use]
    pub fn recover(text: &str) -> Self {
        let entries = text.lines().filter_map(Undo::parse).collect();
        Self { entries, file: None, whose: Whose::Dead }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_survives_its_process() {
        let paths = ["/sys/fs/cgroup/x y", "/a/.git", "/a/b"].map(PathBuf::from);
        let [group, placeholder, written] = paths;
        let engine = Undo::Engine("/a b/docker.sock".into(), "abcdefghjkmn".parse().unwrap());
        let run = || "abcdefghjkmn".parse().unwrap();
        let link = [Undo::Wall(run()), Undo::Link(run())];
        let others = [Undo::Group(group), Undo::Placeholder(placeholder), Undo::Written(written), engine];
        for undo in others.into_iter().chain(link) {
            assert_eq!(Undo::parse(undo.line().trim_end()), Some(undo));
        }
        let log = format!("engine {} /e.sock\n{}", run() as RunId, left("a\nb"));
        assert_eq!((UndoLog::recover(&log).entries.len(), why_left(&log)), (1, Some("a b")));
        assert_eq!(UndoLog::recover("group /a\nnonsense\nplaceholder /b\n").entries.len(), 2);
    }
}
