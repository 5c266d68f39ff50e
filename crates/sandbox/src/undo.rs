//! The undo log: how each acquired thing is given back. The last entry is given back first.
//!
//! An entry is written to the run's directory before the thing is acquired, so that after a `kill -9` the next start finds the same list.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use policy::RunId;

use crate::file_id::FileId;
use crate::process_stamp::ProcessStamp;
use crate::protect::{HeldName, Layout, OpenRepository, PlaceholderCache, Repository, Unheld};

/// How to give back one acquired thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undo {
    /// Make sure that the first process of a sandbox is gone, before the names are given back that it must not take.
    Process(ProcessStamp),
    /// Let the supervisor of a plain command end it: no kernel does once that process is gone. The command may have stopped it.
    Supervisor(ProcessStamp),
    /// Remove a control group's directory, once its last process is gone.
    Group(PathBuf),
    /// Tell which of the protected names that nothing held were made.
    Unheld(Unheld),
    /// Remove a placeholder at a protected name.
    Placeholder(PathBuf),
    /// Remove the links in a repository, which had none.
    PlantedLinks(Repository),
    /// Remove the files that were written over an image.
    Written(PathBuf),
    /// Remove the files with a run's certificate authority.
    Trusted(PathBuf),
    /// Remove the firewall around the link of a run. The log's word for it is `wall`.
    Firewall(RunId),
    /// Remove the link of a run.
    Link(RunId),
    /// Remove a run's containers and network at the engine of this socket.
    Engine(PathBuf, RunId),
}

impl Undo {
    pub(crate) fn line(&self) -> String {
        match self {
            Self::Process(born) => format!("process {}\n", born.written()),
            Self::Supervisor(born) => format!("supervisor {}\n", born.written()),
            Self::Group(path) => format!("group {}\n", written(path)),
            Self::Unheld(unheld) => {
                let being = unheld.being.written();
                format!("unheld {} {being} {}\n", unheld.word(), written(&unheld.workspace))
            }
            Self::Placeholder(path) => format!("placeholder {}\n", written(path)),
            Self::PlantedLinks(Repository { path, being, layout }) => {
                let kind = if *layout == Layout::Bare { "bare-links" } else { "links" };
                format!("{kind} {} {}\n", being.written(), written(path))
            }
            Self::Written(path) => format!("written {}\n", written(path)),
            Self::Trusted(path) => format!("trusted {}\n", written(path)),
            Self::Firewall(run) => format!("wall {run}\n"),
            Self::Link(run) => format!("link {run}\n"),
            Self::Engine(socket, run) => format!("engine {run} {}\n", written(socket)),
        }
    }

    /// Formats the entry for users.
    pub(crate) fn named(&self) -> String {
        match self {
            Self::PlantedLinks(repository) => format!("links {}", written(&repository.path)),
            other => other.line().trim_end().to_owned(),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once(' ')?;
        match kind {
            "process" => ProcessStamp::read(rest).map(Self::Process),
            "supervisor" => ProcessStamp::read(rest).map(Self::Supervisor),
            "group" => read(rest).map(Self::Group),
            "unheld" => {
                let (word, folder) = rest.split_once(' ')?;
                let (being, workspace) = read_folder(folder)?;
                Some(Self::Unheld(Unheld::read(word, being, workspace)))
            }
            "placeholder" => read(rest).map(Self::Placeholder),
            "links" => read_repository(rest, Layout::Whole).map(Self::PlantedLinks),
            "bare-links" => read_repository(rest, Layout::Bare).map(Self::PlantedLinks),
            "written" => read(rest).map(Self::Written),
            "trusted" => read(rest).map(Self::Trusted),
            "wall" => rest.parse().ok().map(Self::Firewall),
            "link" => rest.parse().ok().map(Self::Link),
            "engine" => {
                let (run, socket) = rest.split_once(' ')?;
                Some(Self::Engine(read(socket)?, run.parse().ok()?))
            }
            _ => None,
        }
    }
}

fn read_repository(text: &str, layout: Layout) -> Option<Repository> {
    let (being, path) = read_folder(text)?;
    Some(Repository { path, being, layout })
}

/// Reads a folder's identity and path: another one may be at that path by now.
fn read_folder(text: &str) -> Option<(FileId, PathBuf)> {
    let (being, path) = text.split_once(' ')?;
    Some((FileId::read(being)?, read(path)?))
}

/// Formats a path for a log. Whatever octets it has, it stays on one line.
fn written(path: &Path) -> String {
    let octet = |octet: &u8| match octet {
        b'%' | ..0x20 | 0x7f.. => format!("%{octet:02X}"),
        plain => char::from(*plain).to_string(),
    };
    path.as_os_str().as_bytes().iter().map(octet).collect()
}

/// Reads a path of a log. Refuses a relative one, whose meaning would depend on the reader.
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

/// Ends a half-written line so that the line is invalid, whatever its first half says.
const CUT: &str = "%\n";

/// Writes as much as there is room for. Returns the number of octets written.
fn write_some(file: &mut File, octets: &[u8]) -> usize {
    let mut written = 0;
    while written < octets.len() {
        match file.write(&octets[written..]) {
            Ok(0) => break,
            Ok(more) => written += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    written
}

/// Formats a log line with the reason why something could not be removed after the run.
pub(crate) fn left(why: &str) -> String {
    let why: String = why.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("left {why}\n")
}

/// Returns the last such reason in a log.
pub(crate) fn why_left(log: &str) -> Option<&str> {
    log.lines().rev().find_map(|line| line.strip_prefix("left "))
}

/// The undo log of one run.
#[derive(Debug, Default)]
pub struct UndoLog {
    pub(crate) entries: Vec<Undo>,
    file: Option<File>,
    /// The first entry that the file may lack. The file may then end in half a line.
    lacks: Option<usize>,
    pub(crate) whose: Whose,
    /// The cache that placeholders come from and go to.
    pub(crate) placeholders: PlaceholderCache,
    /// The names that this run holds, with their locks.
    pub(crate) held: Vec<HeldName>,
    /// The repositories that the command may write into, opened before it ran.
    pub(crate) repositories: Vec<OpenRepository>,
    /// The workspaces whose names are held, opened before the command ran.
    pub(crate) workspaces: Vec<(FileId, Arc<OwnedFd>)>,
    /// The engines that did not answer. None is waited for twice.
    pub(crate) silent: Vec<PathBuf>,
    /// Messages to the user about what was given back.
    pub(crate) told: Vec<String>,
}

/// The run whose things are given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Whose {
    /// A run whose end this process has seen, or caused.
    #[default]
    Own,
    /// A run whose process was killed.
    Dead,
}

impl UndoLog {
    /// Returns a log that is also written to a file.
    #[must_use]
    pub fn in_file(file: File) -> Self {
        Self { file: Some(file), ..Self::default() }
    }

    /// Sets the directory in which placeholders are cached.
    #[must_use]
    pub fn with_placeholder_cache(self, directory: PathBuf) -> Self {
        Self { placeholders: PlaceholderCache::at(directory), ..self }
    }

    /// Returns a log in memory alone.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::default()
    }

    /// Records an entry, before the thing is acquired.
    pub fn push(&mut self, undo: Undo) {
        self.push_all([undo]);
    }

    /// Records several entries by one write. The last one is given back first.
    pub fn push_all(&mut self, undos: impl IntoIterator<Item = Undo>) {
        let first = self.entries.len();
        self.entries.extend(undos);
        if let Some(file) = &mut self.file {
            // A log that cannot be written (full disk) still unwinds from memory. The next write adds what it lacks.
            let from = self.lacks.map_or(first, |lacks| lacks.min(first));
            let cut = self.lacks.map_or("", |_| CUT);
            let lines: String = self.entries[from..].iter().map(Undo::line).collect();
            let lines = [cut, &lines].concat();
            let taken = &lines.as_bytes()[..write_some(file, lines.as_bytes())];
            let whole = taken.iter().filter(|octet| **octet == b'\n').count();
            let is_all = taken.len() == lines.len();
            self.lacks = (!is_all).then(|| from + whole.saturating_sub(usize::from(!cut.is_empty())));
        }
    }

    /// Adds messages to the user.
    pub fn tell(&mut self, messages: impl IntoIterator<Item = String>) {
        self.told.extend(messages);
    }

    /// Takes the messages to the user about what was given back.
    pub fn told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.told)
    }

    /// Drops the entry for a run at an engine, because its containers and network have been removed.
    pub fn engine_is_done(&mut self, run: &RunId) {
        self.entries.retain(|undo| !matches!(undo, Undo::Engine(_, whose) if whose == run));
    }

    /// Formats the things that may still be there, for users.
    #[must_use]
    pub fn may_be_left(&self) -> Vec<String> {
        let may_be_there = |undo: &&Undo| match undo {
            Undo::Process(_) | Undo::Supervisor(_) | Undo::Unheld(_) => false,
            Undo::Group(path) | Undo::Placeholder(path) | Undo::Written(path) | Undo::Trusted(path) => {
                path.symlink_metadata().is_ok()
            }
            Undo::PlantedLinks(_) | Undo::Firewall(_) | Undo::Link(_) | Undo::Engine(..) => true,
        };
        self.entries.iter().filter(may_be_there).map(Undo::named).collect()
    }

    /// Reads the log of a dead run. Ignores a last line without its line end, because a truncated entry could be a valid other one.
    #[must_use]
    pub fn recover(text: &str) -> Self {
        let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        Self { entries: whole.filter_map(Undo::parse).collect(), whose: Whose::Dead, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Paths with any octets, among them those that have a meaning in a log.
    fn paths() -> impl Strategy<Value = PathBuf> {
        const TOLD: &[&[u8]] = &[b"\nwritten /home/me", b" ", b"%", b"%2F", b"\r\n", b"\xff"];
        let told = proptest::sample::select(TOLD);
        let piece = prop_oneof![told.prop_map(<[u8]>::to_vec), vec(1_u8.., 0..6)];
        vec(piece, 0..5)
            .prop_map(|pieces| OsString::from_vec([b"/".to_vec(), pieces.concat()].concat()).into())
    }

    fn undos() -> impl Strategy<Value = Undo> {
        let stamp = |random: [u8; 12]| {
            ProcessStamp::read(&format!("{} {}", 1 + u16::from(random[0]), random[1])).unwrap()
        };
        let being = |random: [u8; 12]| {
            let [inode, seconds, nanoseconds, major, minor, ..] = random;
            FileId::read(&format!("{inode}:-{seconds}:{nanoseconds}:{major}:{minor}")).unwrap()
        };
        let layout =
            |random: [u8; 12]| if random[5].is_multiple_of(2) { Layout::Whole } else { Layout::Bare };
        (0..11, paths(), any::<[u8; 12]>()).prop_map(move |(kind, path, random)| match kind {
            10 => Undo::Unheld(Unheld::read(".husky,info/attributes", being(random), path)),
            9 => Undo::PlantedLinks(Repository { path, being: being(random), layout: layout(random) }),
            8 => Undo::Supervisor(stamp(random)),
            7 => Undo::Process(stamp(random)),
            0 => Undo::Group(path),
            1 => Undo::Placeholder(path),
            2 => Undo::Written(path),
            3 => Undo::Trusted(path),
            4 => Undo::Firewall(RunId::from_random(random)),
            5 => Undo::Link(RunId::from_random(random)),
            6 => Undo::Engine(path, RunId::from_random(random)),
            _ => unreachable!("no such kind"),
        })
    }

    #[test]
    fn what_was_cut_off_for_want_of_room_is_never_read_as_another_thing() {
        // L01, L10: a pipe takes a limited amount at once, as a nearly full disk does.
        let (mut reader, writer) = std::io::pipe().unwrap();
        rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK).unwrap();
        rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::NONBLOCK).unwrap();
        let mut log = UndoLog::in_file(OwnedFd::from(writer).into());
        let many = (0..2000).map(|n| {
            Undo::Written(format!("/home/me/{n}/.local/state/lockgate/written/abcdefghjkmn").into())
        });
        let mut text = Vec::new();
        let mut read = |text: &mut Vec<u8>| drop(std::io::Read::read_to_end(&mut reader, text));
        log.push_all(many);
        read(&mut text);
        let cut = UndoLog::recover(std::str::from_utf8(&text).unwrap()).entries.len();
        assert!(!text.ends_with(b"\n") && (1..2000).contains(&cut), "the pipe took it all: {cut}");
        for name in [".git", ".envrc"] {
            log.push(Undo::Placeholder(Path::new("/w").join(name)));
            read(&mut text);
        }
        let read = UndoLog::recover(std::str::from_utf8(&text).unwrap()).entries;
        let foreign: Vec<&Undo> = read.iter().filter(|undo| !log.entries.contains(undo)).collect();
        assert!(foreign.is_empty(), "{foreign:?}");
        // Once there is room, the whole entry is written.
        assert!(log.entries.iter().all(|undo| read.contains(undo)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

        // L01: a process that was killed while writing left a prefix of the log, and nothing else.
        #[test]
        fn a_log_cut_anywhere_is_the_beginning_of_itself(all in vec(undos(), 0..12), reason: String) {
            let mut file = tempfile::tempfile().unwrap();
            let mut log = UndoLog::in_file(file.try_clone().unwrap());
            log.push_all(all.iter().cloned());
            file.write_all(left(&reason).as_bytes()).unwrap();
            std::io::Seek::rewind(&mut file).unwrap();
            let text = std::io::read_to_string(file).unwrap();
            prop_assert_eq!(&UndoLog::recover(&text).entries, &all);
            for end in 0..text.len() {
                // As `reap` reads it, if it ends inside a character.
                let cut = String::from_utf8_lossy(&text.as_bytes()[..end]);
                let whole = cut.matches('\n').count();
                prop_assert_eq!(&UndoLog::recover(&cut).entries[..], &all[..whole]);
            }
        }

        #[test]
        fn whatever_a_log_says_is_read_as_a_whole_path_or_not_at_all(
            text in "((process|supervisor|group|placeholder|unheld .husky,.claude 1:2:3:4:5|links 1:2:3:4:5|bare-links 1:2:3:4:5|written|trusted|engine abcdefghjkmn) ?[/.%0-9a-f ]{0,12}(\r?\n|.))*",
        ) {
            for undo in UndoLog::recover(&text).entries {
                match &undo {
                    Undo::Firewall(_) | Undo::Link(_) | Undo::Process(_) | Undo::Supervisor(_) => {}
                    Undo::Engine(path, _)
                    | Undo::Group(path)
                    | Undo::Placeholder(path)
                    | Undo::Unheld(Unheld { workspace: path, .. })
                    | Undo::PlantedLinks(Repository { path, .. })
                    | Undo::Written(path)
                    | Undo::Trusted(path) => prop_assert!(path.is_absolute(), "{path:?}"),
                }
                prop_assert_eq!(Undo::parse(undo.line().trim_end_matches('\n')), Some(undo));
            }
        }
    }

    #[test]
    fn a_log_survives_its_process() {
        let paths = ["/sys/fs/cgroup/x y", "/a/.git", "/a/b"].map(PathBuf::from);
        let [group, placeholder, written] = paths;
        let engine = Undo::Engine("/a b/docker.sock".into(), "abcdefghjkmn".parse().unwrap());
        let run = || "abcdefghjkmn".parse().unwrap();
        let link = [Undo::Firewall(run()), Undo::Link(run())];
        let being = FileId::read("5:-1:2:254:0").unwrap();
        let repository = Repository { path: placeholder.clone(), being, layout: Layout::Whole };
        let bare = Undo::PlantedLinks(Repository { layout: Layout::Bare, ..repository.clone() });
        let links = Undo::PlantedLinks(repository);
        let others =
            [Undo::Group(group), Undo::Placeholder(placeholder), links, bare, Undo::Written(written), engine];
        let unheld = Undo::Unheld(Unheld::read(".husky,nonsense,info/attributes", being, "/a b".into()));
        assert_eq!(unheld.line(), "unheld .husky,info/attributes 5:-1:2:254:0 /a b\n");
        for undo in others.into_iter().chain(link).chain([unheld]) {
            assert_eq!(Undo::parse(undo.line().trim_end()), Some(undo));
        }
        // Whatever octets a path has, it is read back as the same one path; no relative path is read.
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
        // A log that was cut anywhere yields only entries that were in it.
        let log =
            "group /a/b\nwritten /home/me/.local/state/lockgate/written/abcdefghjkmn\nplaceholder /w/.git\n";
        let all = UndoLog::recover(log).entries;
        for end in 0..log.len() {
            let cut = UndoLog::recover(&log[..end]).entries;
            assert!(cut.iter().all(|undo| all.contains(undo)), "{:?}", &log[..end]);
        }
    }
}
