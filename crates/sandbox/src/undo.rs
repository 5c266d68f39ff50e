//! Undo: every acquired thing pushes how it is given back, and what was pushed last is given back first.
//!
//! The log is written to the run's directory before the thing is acquired, so that after a `kill -9` the next start
//! finds the same list.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use policy::RunId;

use crate::protect::{Placeholder, Stock};

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
            Self::Group(path) => format!("group {}\n", written(path)),
            Self::Placeholder(path) => format!("placeholder {}\n", written(path)),
            Self::Written(path) => format!("written {}\n", written(path)),
            Self::Trusted(path) => format!("trusted {}\n", written(path)),
            Self::Wall(run) => format!("wall {run}\n"),
            Self::Link(run) => format!("link {run}\n"),
            Self::Engine(socket, run) => format!("engine {run} {}\n", written(socket)),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once(' ')?;
        match kind {
            "group" => read(rest).map(Self::Group),
            "placeholder" => read(rest).map(Self::Placeholder),
            "written" => read(rest).map(Self::Written),
            "trusted" => read(rest).map(Self::Trusted),
            "wall" => rest.parse().ok().map(Self::Wall),
            "link" => rest.parse().ok().map(Self::Link),
            "engine" => {
                let (run, socket) = rest.split_once(' ')?;
                Some(Self::Engine(read(socket)?, run.parse().ok()?))
            }
            _ => None,
        }
    }
}

/// A path as a log has it: whatever is in its name, it is one line and no other. A repository names its folders.
fn written(path: &Path) -> String {
    let octet = |octet: &u8| match octet {
        b'%' | ..0x20 | 0x7f.. => format!("%{octet:02X}"),
        plain => char::from(*plain).to_string(),
    };
    path.as_os_str().as_bytes().iter().map(octet).collect()
}

/// Reads one; nothing that is relative to whoever happens to read it.
fn read(text: &str) -> Option<PathBuf> {
    let mut octets = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((octet, after)) = rest.split_first() {
        rest = after;
        if *octet == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            octets.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            octets.push(*octet);
        }
    }
    let path = PathBuf::from(OsString::from_vec(octets));
    path.is_absolute().then_some(path)
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
    /// Whether what was written last may be half a line.
    is_cut: bool,
    pub(crate) whose: Whose,
    /// Where placeholders come from and go to.
    pub(crate) stock: Stock,
    /// Those that this run holds, and locks.
    pub(crate) held: Vec<Placeholder>,
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

    /// The same, whose placeholders come from a directory, and go back to it, as far as that can be.
    #[must_use]
    pub fn with_stock(self, directory: PathBuf) -> Self {
        Self { stock: Stock::at(directory), ..self }
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
            // A log that cannot be written (full disk) still unwinds from memory. What is cut off must not begin the next line.
            if self.is_cut {
                let _ = file.write_all(b"\n");
            }
            self.is_cut = file.write_all(lines.as_bytes()).is_err();
        }
    }

    /// Strikes out what an engine had of a run: whoever made it has taken it away, and an engine need not be asked.
    pub fn engine_is_done(&mut self, run: &RunId) {
        self.entries.retain(|undo| !matches!(undo, Undo::Engine(_, whose) if whose == run));
    }

    /// Reads a log that a dead run left. Half a line may be the whole of another: one without its end is none.
    #[must_use]
    pub fn recover(text: &str) -> Self {
        let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        Self { entries: whole.filter_map(Undo::parse).collect(), whose: Whose::Dead, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

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
        // A name is one path, whatever is in it, and no path is read that depends on where it is read.
        let hostile =
            [&b"/w/x\nwritten /home/me"[..], b"/w/\xff 100%", b"/w/%2e%41\r\n"].map(OsStr::from_bytes);
        for name in hostile.map(PathBuf::from) {
            let line = Undo::Placeholder(name.clone()).line();
            assert_eq!(line.trim_end().lines().count(), 1, "{line:?}");
            assert_eq!(UndoLog::recover(&line).entries, [Undo::Placeholder(name)]);
        }
        for line in [
            "written .",
            "written ./.git",
            "written %2e",
            "group %",
            "group /a%4",
            "engine abcdefghjkmn e.sock",
        ] {
            assert_eq!(Undo::parse(line), None, "{line}");
        }
        let log = format!("engine {} /e.sock\n{}", run() as RunId, left("a\nb"));
        assert_eq!((UndoLog::recover(&log).entries.len(), why_left(&log)), (1, Some("a b")));
        assert_eq!(UndoLog::recover("group /a\nnonsense\nplaceholder /b\n").entries.len(), 2);
        // Of a log that was cut anywhere nothing is read that was not in it.
        let log =
            "group /a/b\nwritten /home/me/.local/state/lockgate/written/abcdefghjkmn\nplaceholder /w/.git\n";
        let all = UndoLog::recover(log).entries;
        for end in 0..log.len() {
            let cut = UndoLog::recover(&log[..end]).entries;
            assert!(cut.iter().all(|undo| all.contains(undo)), "{:?}", &log[..end]);
        }
    }
}
