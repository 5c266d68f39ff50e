//! Writes changes as a patch for people and for `git apply`: text as hunks, everything else whole.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FileType;
use sha1::{Digest as _, Sha1};
use similar::TextDiff;

use super::mode::is_directory;
use super::refused_names::is_refused;
use super::side::{file_name, is_elsewhere, open_file, open_parent};
use super::{Change, Changes, What, binary};

/// The largest file whose content is shown.
const LARGEST: u64 = 64 << 20;
/// The number of octets that decide whether a file is text, as in git.
const LOOKED_AT: usize = 8000;
/// The longest search of one comparison for the smallest difference. After it, the comparison settles for a larger one.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time of all searches of a patch together, and that of each one after it has run out.
const TOGETHER: Duration = Duration::from_secs(20);
const LEAST: Duration = Duration::from_millis(50);
/// Git's object name for a missing file.
const NOTHING: &str = "0000000000000000000000000000000000000000";

/// One side of a change.
struct Side {
    mode: u32,
    content: Vec<u8>,
    name: String,
}

impl Changes {
    /// Writes the changes at or below the named paths as a patch; all changes if no path is named. What this machine would execute or trust
    /// is a comment in it, unless it is named, or such a folder around it is.
    ///
    /// # Errors
    /// When a file cannot be read, or nothing can be written.
    pub fn write_patch(&self, only: &[PathBuf], to: &mut dyn Write) -> io::Result<()> {
        let is_aside =
            |change: &Change| is_refused(&change.path, change.what.mode()) || change.is_withheld(only);
        let renamed = self.renamed(&|change| change.is_chosen(only) && !is_aside(change))?;
        let sources: HashSet<_> = renamed.values().copied().collect();
        let until = Instant::now() + TOGETHER;
        let chosen = self.list.iter().enumerate().filter(|(_, change)| change.is_chosen(only));
        for (index, change) in chosen {
            if let Some(from) = renamed.get(&index) {
                self.write_rename(to, &self.list[*from], change)?;
            } else if is_aside(change) {
                self.write_aside(to, change, until)?;
            } else if !sources.contains(&index) {
                self.write_change(to, change, until)?;
            }
        }
        Ok(())
    }

    /// Writes a change that git is not to take from the patch, as comment lines.
    fn write_aside(&self, to: &mut dyn Write, change: &Change, until: Instant) -> io::Result<()> {
        let mut text = Vec::new();
        self.write_change(&mut text, change, until)?;
        for line in text.split_inclusive(|octet| *octet == b'\n') {
            to.write_all(b"# ")?;
            to.write_all(line)?;
        }
        Ok(())
    }

    /// Finds new files with the content of a removed one, among some changes. Returns the indices of both in the list.
    fn renamed(&self, is_shown: &dyn Fn(&Change) -> bool) -> io::Result<HashMap<usize, usize>> {
        let mut gone: HashMap<(String, bool), Vec<usize>> = HashMap::new();
        for (index, change) in self.list.iter().enumerate().rev() {
            if let What::Gone { mode } = change.what
                && is_shown(change)
                && let Some(side) = unless_elsewhere(self.below_side(&change.path, mode))?
                && !side.content.is_empty()
            {
                gone.entry((side.name, is_link(mode))).or_default().push(index);
            }
        }
        let mut renamed = HashMap::new();
        for (index, change) in self.list.iter().enumerate() {
            if let What::Made { mode } = change.what
                && !gone.is_empty()
                && is_shown(change)
                && let Some(side) = unless_elsewhere(self.above_side(&change.path, mode))?
                && let Some(from) = gone.get_mut(&(side.name, is_link(mode))).and_then(Vec::pop)
            {
                renamed.insert(index, from);
            }
        }
        Ok(renamed)
    }

    fn write_rename(&self, to: &mut dyn Write, from: &Change, change: &Change) -> io::Result<()> {
        write_head(to, &from.path, &change.path)?;
        write_modes(to, from.what.mode(), change.what.mode())?;
        writeln!(to, "similarity index 100%")?;
        writeln!(to, "rename from {}\nrename to {}", quoted("", &from.path), quoted("", &change.path))
    }

    fn write_change(&self, to: &mut dyn Write, change: &Change, until: Instant) -> io::Result<()> {
        let path = &change.path;
        let sides = match change.what {
            // Git does not track directories. It makes them with the files in them.
            What::Made { mode } if is_directory(mode) => {
                return writeln!(to, "# new directory {}", quoted("", path));
            }
            What::Gone { mode } if is_directory(mode) => {
                return writeln!(to, "# directory gone {}", quoted("", path));
            }
            What::Made { mode } => self.above_side(path, mode).map(|new| (None, new)),
            What::Gone { mode } => self.below_side(path, mode).map(|old| (old, None)),
            What::Changed { from, to } => {
                self.below_side(path, from).and_then(|old| self.above_side(path, to).map(|new| (old, new)))
            }
        };
        let (old, new) = match sides {
            Err(error) if is_elsewhere(&error) => {
                return writeln!(to, "# {}: removed or replaced meanwhile", quoted("", path));
            }
            sides => sides?,
        };
        // As a comment alone: git would take a head without content for the whole change.
        let is_unshown = match change.what {
            What::Made { .. } => new.is_none(),
            What::Gone { .. } => old.is_none(),
            What::Changed { .. } => old.is_none() || new.is_none(),
        };
        if is_unshown {
            return write_unshown(to, change);
        }
        if let (Some(old), Some(new)) = (&old, &new)
            && (git_mode(old.mode), &old.name) == (git_mode(new.mode), &new.name)
        {
            return Ok(()); // both sides are equal by now
        }
        write_sides(to, path, old.as_ref(), new.as_ref(), until)
    }

    fn above_side(&self, path: &Path, mode: u32) -> io::Result<Option<Side>> {
        side_of(self.above.as_fd(), path, mode)
    }

    fn below_side(&self, path: &Path, mode: u32) -> io::Result<Option<Side>> {
        side_of(self.below.as_fd(), path, mode)
    }
}

/// Reads a path of a side, which had a mode.
fn side_of(of: BorrowedFd<'_>, path: &Path, mode: u32) -> io::Result<Option<Side>> {
    let read = || match FileType::from_raw_mode(mode) {
        FileType::Symlink => link(&open_parent(of, path)?, path, mode),
        FileType::RegularFile => side(open_file(of, path)?, mode),
        _ => Ok(None),
    };
    read().map_err(|error| {
        let is_replaced = is_elsewhere(&error) || error.kind() == io::ErrorKind::InvalidInput;
        let kind = if is_replaced { io::ErrorKind::NotFound } else { error.kind() };
        io::Error::new(kind, format!("{}: {error}", path.display()))
    })
}

fn unless_elsewhere(side: io::Result<Option<Side>>) -> io::Result<Option<Side>> {
    match side {
        Err(error) if is_elsewhere(&error) => Ok(None),
        side => side,
    }
}

/// Writes the head and the difference of two sides of a path.
fn write_sides(
    to: &mut dyn Write,
    path: &Path,
    old: Option<&Side>,
    new: Option<&Side>,
    until: Instant,
) -> io::Result<()> {
    write_head(to, path, path)?;
    match (old, new) {
        (None, Some(new)) => writeln!(to, "new file mode {}", git_mode(new.mode))?,
        (Some(old), None) => writeln!(to, "deleted file mode {}", git_mode(old.mode))?,
        (Some(old), Some(new)) => write_modes(to, old.mode, new.mode)?,
        (None, None) => {}
    }
    let name = |side: Option<&Side>| side.map_or(NOTHING, |s| s.name.as_str()).to_owned();
    let content = |side: Option<&Side>| side.map(|s| s.content.clone()).unwrap_or_default();
    let ((was, is), (before, after)) = ((name(old), name(new)), (content(old), content(new)));
    if was == is {
        return Ok(());
    }
    let same = match (old, new) {
        (Some(old), Some(new)) if git_mode(old.mode) == git_mode(new.mode) => {
            format!(" {}", git_mode(old.mode))
        }
        _ => String::new(),
    };
    writeln!(to, "index {was}..{is}{same}")?;
    if is_binary(&before) || is_binary(&after) {
        writeln!(to, "GIT binary patch")?;
        binary::write_literal(to, &after)?;
        return binary::write_literal(to, &before);
    }
    if before.is_empty() && after.is_empty() {
        return Ok(());
    }
    let label = |side: Option<&Side>, prefix: &str| match side {
        Some(_) => quoted(prefix, path),
        None => "/dev/null".into(),
    };
    writeln!(to, "--- {}\n+++ {}", label(old, "a/"), label(new, "b/"))?;
    write_hunks(to, &before, &after, until)
}

/// Writes the hunks between two texts. Lines end as in git: a lone carriage return is part of a line.
fn write_hunks(to: &mut dyn Write, before: &[u8], after: &[u8], until: Instant) -> io::Result<()> {
    let lines = |content| <[u8]>::split_inclusive(content, |octet| *octet == b'\n').collect::<Vec<_>>();
    let (before, after) = (lines(before), lines(after));
    let patience = until.saturating_duration_since(Instant::now()).clamp(LEAST, PATIENCE);
    let diff = TextDiff::configure().timeout(patience).diff_slices(&before, &after);
    for hunk in diff.unified_diff().context_radius(3).iter_hunks() {
        writeln!(to, "{}", hunk.header())?;
        for change in hunk.iter_changes() {
            write!(to, "{}", change.tag())?;
            to.write_all(change.value())?;
            if !change.value().ends_with(b"\n") {
                to.write_all(b"\n\\ No newline at end of file\n")?;
            }
        }
    }
    Ok(())
}

fn is_link(mode: u32) -> bool {
    FileType::from_raw_mode(mode).is_symlink()
}

fn side(file: std::fs::File, mode: u32) -> io::Result<Option<Side>> {
    let mut content = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut content)?;
    Ok((content.len() as u64 <= LARGEST).then(|| Side { mode, name: blob(&content), content }))
}

fn link(parent: &OwnedFd, path: &Path, mode: u32) -> io::Result<Option<Side>> {
    let content = rustix::fs::readlinkat(parent, file_name(path), Vec::new())?.into_bytes();
    Ok(Some(Side { mode, name: blob(&content), content }))
}

/// Returns git's object name for content.
fn blob(content: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(format!("blob {}\0", content.len()));
    hash.update(content);
    hash.finalize().iter().map(|octet| format!("{octet:02x}")).collect()
}

/// Returns git's mode for a file: executable, not executable, or a link.
fn git_mode(mode: u32) -> &'static str {
    match mode & 0o100 {
        _ if is_link(mode) => "120000",
        0 => "100644",
        _ => "100755",
    }
}

fn is_binary(content: &[u8]) -> bool {
    content[..content.len().min(LOOKED_AT)].contains(&0)
}

fn write_head(to: &mut dyn Write, from: &Path, path: &Path) -> io::Result<()> {
    writeln!(to, "diff --git {} {}", quoted("a/", from), quoted("b/", path))
}

/// Writes a comment in place of a file whose content is too large to show, or of what has none.
fn write_unshown(to: &mut dyn Write, change: &Change) -> io::Result<()> {
    let path = quoted("", &change.path);
    let how = match change.what {
        What::Made { mode } => format!("new file of mode {}", git_mode(mode)),
        What::Gone { .. } => "deleted".into(),
        What::Changed { from, to } if git_mode(from) == git_mode(to) => "changed".into(),
        What::Changed { from, to } => format!("changed, of mode {}, now {}", git_mode(from), git_mode(to)),
    };
    let why = match FileType::from_raw_mode(change.what.mode()) {
        FileType::RegularFile | FileType::Symlink => "too large to be shown",
        _ => "it was a pipe, a socket or a device",
    };
    writeln!(to, "# {path}: {how}; {why}")
}

fn write_modes(to: &mut dyn Write, old: u32, new: u32) -> io::Result<()> {
    if git_mode(old) == git_mode(new) {
        return Ok(());
    }
    writeln!(to, "old mode {}\nnew mode {}", git_mode(old), git_mode(new))
}

/// Formats a path as git does: in quotes and with escapes if it has characters that could be misread.
fn quoted(prefix: &str, path: &Path) -> String {
    let octets = path.as_os_str().as_bytes();
    let plain = |b: &u8| (b' '..=b'~').contains(b) && !matches!(b, b'"' | b'\\');
    if octets.iter().all(plain) {
        return format!("{prefix}{}", path.display());
    }
    let mut text = format!("\"{prefix}");
    for octet in octets {
        match octet {
            b'"' | b'\\' => text.extend(['\\', char::from(*octet)]),
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b' '..=b'~' => text.push(char::from(*octet)),
            other => text.push_str(&format!("\\{other:03o}")),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::changes::fixture::Kept;

    impl Kept {
        fn patch(&self) -> Vec<u8> {
            let mut patch = Vec::new();
            self.changes().write_patch(&[], &mut patch).unwrap();
            patch
        }

        /// Applies the patch to the workspace by git.
        #[expect(clippy::disallowed_methods, reason = "git itself is to judge")]
        fn git_apply(&self, patch: &[u8]) {
            let at = self.path().join("patch");
            std::fs::write(&at, patch).unwrap();
            let mut git = std::process::Command::new("git");
            // Git must not find a repository around the test's directory.
            git.env("GIT_CEILING_DIRECTORIES", self.path()).current_dir(self.workspace(""));
            let ended = git.args(["apply", "--whitespace=nowarn"]).arg(&at).output().unwrap();
            let (said, shown) = (String::from_utf8_lossy(&ended.stderr), String::from_utf8_lossy(patch));
            assert!(ended.status.success(), "{said}\n{shown:?}");
        }
    }

    #[test]
    fn a_file_that_is_too_large_is_said_to_be() {
        let kept = Kept::new();
        let large = |path: PathBuf| std::fs::File::create(path).unwrap().set_len(LARGEST + 1).unwrap();
        std::fs::write(kept.workspace("grown"), "shown\n").unwrap();
        large(kept.workspace("shrunk"));
        large(kept.written("grown"));
        large(kept.written("made"));
        std::fs::write(kept.written("plain"), "x\n").unwrap();
        std::fs::write(kept.written("shrunk"), "y\n").unwrap();
        let patch = kept.patch();
        let text = String::from_utf8(patch.clone()).unwrap();
        assert!(!text.contains("deleted") && !text.contains("shown\n-"), "{text}");
        for said in ["grown: changed", "shrunk: changed", "made: new file of mode 100644"] {
            assert!(text.contains(&format!("# {said}; too large to be shown\n")), "{said}: {text}");
        }
        kept.git_apply(&patch);
        assert_eq!(std::fs::read(kept.workspace("grown")).unwrap(), b"shown\n");
        assert!(kept.workspace("plain").exists() && !kept.workspace("made").exists());
    }

    #[test]
    fn what_has_no_content_is_not_said_to_be_large() {
        let kept = Kept::new();
        let made = rustix::fs::mkfifoat(rustix::fs::CWD, kept.workspace("pipe"), rustix::fs::Mode::RUSR);
        made.unwrap();
        // A file in its place stands for a removal, which only root can mark by hand.
        std::fs::write(kept.written("pipe"), "").unwrap();
        let patch = String::from_utf8(kept.patch()).unwrap();
        assert!(patch.contains("# pipe: deleted; it was a pipe, a socket or a device\n"), "{patch}");
    }

    #[test]
    fn what_git_refuses_by_its_name_does_not_spoil_the_patch() {
        let kept = Kept::new();
        let refused = [
            ".git ",
            ".git.",
            ".GIT..",
            "git~1",
            "GIT~1 .",
            ".git:x",
            "x\\.git",
            ".g\u{200c}it",
            "sub/.git . /file",
        ];
        let links = [".gitmodules", ".GITMODULES ", "gitmod~1", "gi7eba~1", ".gitmodules:x", "gi7e~123"];
        let taken = ["git", ".gitx", "git~2", ".gitignore", "~1", "a~1"];
        std::fs::create_dir_all(kept.written("sub/.git . ")).unwrap();
        for name in refused.iter().chain(&taken) {
            std::fs::write(kept.written(name), format!("{name}\n")).unwrap();
        }
        for name in links {
            std::os::unix::fs::symlink("a~1", kept.written(name)).unwrap();
            std::fs::create_dir_all(kept.written("files")).unwrap();
            std::fs::write(kept.written("files").join(name), "x\n").unwrap();
        }
        let patch = kept.patch();
        kept.git_apply(&patch);
        for name in refused.iter().chain(&links) {
            assert!(std::fs::symlink_metadata(kept.workspace(name)).is_err(), "{name}");
        }
        let text = String::from_utf8_lossy(&patch);
        assert_eq!(
            text.lines().filter(|line| line.starts_with("# diff --git")).count(),
            refused.len() + links.len(),
            "{text}"
        );
        assert!(taken.iter().all(|name| kept.workspace(name).exists()), "{text}");
        assert!(links.iter().all(|name| kept.workspace("files").join(name).exists()), "{text}");
    }

    #[test]
    fn what_this_machine_would_execute_is_a_comment_until_it_is_named() {
        let kept = Kept::new();
        for folder in [".claude", "d"] {
            std::fs::create_dir(kept.workspace(folder)).unwrap();
        }
        std::fs::write(kept.workspace("d/moved"), "moved\n").unwrap();
        for folder in [".husky", ".claude", "bare/refs", "bare/objects", "d"] {
            std::fs::create_dir_all(kept.written(folder)).unwrap();
        }
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(kept.written("d"), c"user.overlay.opaque", b"y", flags).unwrap();
        let withheld = [".husky/pre-commit", ".claude/settings.json", ".envrc", "bare/HEAD", "bare/config"];
        for file in withheld.iter().chain(&["plain"]) {
            std::fs::write(kept.written(file), format!("{file}\n")).unwrap();
        }
        // As a rename, git would take this one over as well.
        std::fs::write(kept.written(".bashrc"), "moved\n").unwrap();
        let patch = kept.patch();
        kept.git_apply(&patch);
        let there = |path: &str| kept.workspace(path).exists();
        assert!(there("plain") && !there("d/moved"));
        let text = String::from_utf8(patch).unwrap();
        for path in withheld.iter().chain(&[".bashrc"]) {
            assert!(!there(path) && text.contains(&format!("# +++ b/{path}\n")), "{path}: {text}");
        }
        // A folder takes what is below it, if it is such a one itself.
        std::fs::remove_file(kept.workspace("plain")).unwrap();
        let only = [".husky", ".claude", "bare/config", "plain"].map(PathBuf::from);
        let mut patch = Vec::new();
        kept.changes().write_patch(&only, &mut patch).unwrap();
        kept.git_apply(&patch);
        for (path, expected) in withheld.iter().zip([true, true, false, false, true]) {
            assert_eq!(there(path), expected, "{path}");
        }
        assert!(there("plain"));
    }

    #[test]
    fn what_vanished_meanwhile_does_not_end_the_patch() {
        let kept = Kept::new();
        for name in ["gone", "was a link", "became a folder", "deep/gone"] {
            std::fs::create_dir_all(kept.written("deep")).unwrap();
            match name {
                "was a link" => std::os::unix::fs::symlink("x", kept.written(name)).unwrap(),
                _ => std::fs::write(kept.written(name), "x\n").unwrap(),
            }
        }
        std::fs::write(kept.written("last"), "y\n").unwrap();
        let changes = kept.changes();
        std::fs::remove_dir_all(kept.written("deep")).unwrap();
        for name in ["gone", "was a link", "became a folder"] {
            std::fs::remove_file(kept.written(name)).unwrap();
        }
        std::fs::write(kept.written("was a link"), "").unwrap();
        std::fs::create_dir(kept.written("became a folder")).unwrap();
        let mut patch = Vec::new();
        changes.write_patch(&[], &mut patch).unwrap();
        let text = String::from_utf8(patch).unwrap();
        for name in ["gone", "was a link", "became a folder", "deep/gone"] {
            assert!(text.contains(&format!("# {name}: removed or replaced meanwhile\n")), "{name}: {text}");
        }
        assert!(text.contains("+++ b/last"), "{text}");
    }

    #[test]
    fn a_carriage_return_alone_ends_no_line() {
        let kept = Kept::new();
        let contents: [(&str, Option<&str>, &str); 7] = [
            ("a", None, "one\r"),
            ("b", None, "one\rtwo\r\nthree\r"),
            ("c", Some("one\r"), "one\r\n"),
            ("d", Some("one\ntwo\r"), "one\ntwo"),
            ("e", Some("1\n2\n3\n4\n5\r6\n"), "1\n2\n3\n4\n5\r\r6\n"),
            ("f", Some("\r"), "\r\r"),
            ("g", Some("last\n"), "+++ b/last\r--- a/last"),
        ];
        for (name, before, after) in contents {
            if let Some(before) = before {
                std::fs::write(kept.workspace(name), before).unwrap();
            }
            std::fs::write(kept.written(name), after).unwrap();
        }
        let patch = kept.patch();
        kept.git_apply(&patch);
        for (name, _, after) in contents {
            assert_eq!(std::fs::read_to_string(kept.workspace(name)).unwrap(), after, "{name}");
        }
    }
}
