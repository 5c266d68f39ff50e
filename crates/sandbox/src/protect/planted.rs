//! Symbolic links in a repository. Git on this machine writes through them without notice: a reflog that is a link puts the command's words
//! into one of the user's files. A repository that has one is not shown for writing, so a link that is there at the end of a run was made
//! by the run, and is removed. Folders that are read-only inside are skipped.
//!
//! Named pipes are handled alike: git on this machine would wait forever at one in place of a file.

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use super::repository::{Layout, OpenRepository, Repository};
use super::told::shown;
use super::tree::{Found, Shut, Walk, let_owner_in};
use crate::error::Error;
use crate::source;

/// The most files and folders that are looked at before a run. After the run there is no such limit: what is skipped could be a link.
const MOST: usize = if cfg!(test) { 1_000 } else { 1_000_000 };

/// The most links that are reported by name, and the longest part of a name, in characters.
const MOST_TOLD: usize = 32;

/// The folders that are read-only inside.
const COVERED: [&str; 5] = ["branches", "hooks", "modules", "remotes", "worktrees"];

/// The folder of objects. Git writes a loose object (in a folder of two digits) to a temporary file and renames it, so a link there leads
/// nowhere, but it would wait at a pipe. Elsewhere in this folder a link does: git makes the lock of a commit graph where its name leads.
const OBJECTS: &str = "objects";

/// Opens the repositories of a workspace. Refuses one that contains a symbolic link.
pub(super) fn repositories_without_links(
    workspace: &Path,
    root: &Arc<OwnedFd>,
    open: &[PathBuf],
) -> Result<Vec<OpenRepository>, Error> {
    let all = OpenRepository::all(workspace, root, open).map_err(|error| {
        of_this_machine(&workspace.join(".git"), &error)
            .unwrap_or_else(|| refused(Layout::Whole, error.to_string()))
    })?;
    refuse_links_within(&all)?;
    Ok(all)
}

/// Refuses a workspace whose repository has a symbolic link or a named pipe.
fn refuse_links_within(repositories: &[OpenRepository]) -> Result<(), Error> {
    for OpenRepository { repository, opened } in repositories {
        let refused = |why| refused(repository.layout, why);
        let mut found = None;
        walk(opened.as_fd(), repository.layout, Shut::Refuse, &mut |planted, what| {
            found = Some((planted.path(), what));
            Ok(ControlFlow::Break(()))
        })
        .map_err(|error| {
            of_this_machine(&repository.path, &error)
                .unwrap_or_else(|| refused(format!("it cannot be looked through: {error}")))
        })?;
        if let Some((path, what)) = found {
            let path = match repository.layout {
                Layout::Whole => Path::new(".git").join(path),
                Layout::Bare => path,
            };
            let path = path.display().to_string();
            let why = match what {
                Planted::Link { .. } => "is a symbolic link, which git would write through",
                Planted::Pipe => "is a named pipe, at which git would wait",
            };
            return Err(refused(format!("`{}` {why}", path.escape_debug())));
        }
    }
    Ok(())
}

/// Returns an error that says nothing of the repository, as where no more files may be opened.
fn of_this_machine(path: &Path, error: &io::Error) -> Option<Error> {
    let errno = Errno::from_io_error(error).filter(|errno| source::is_of_this_machine(*errno))?;
    Some(source::refused(path, errno))
}

/// Returns the refusal of a repository that cannot be protected.
pub(super) fn refused(layout: Layout, why: String) -> Error {
    let what = match layout {
        Layout::Whole => "the repository in `.git`",
        Layout::Bare => "the workspace, a bare repository,",
    };
    Error::Refused {
        what: format!("{what} cannot be protected: {why}"),
        remedy: Some(
            "put a file or folder of its own in its place, use --workspace-mode overlay, or leave the repository to \
             the command as it is: --open .git"
                .into(),
        ),
    }
}

/// Removes the links and named pipes of a repository, and reports each. If one cannot be removed, this goes on, and returns that error.
pub(crate) fn take_away(
    repository: &Repository,
    held: Option<&OpenRepository>,
    told: &mut Vec<String>,
) -> io::Result<()> {
    let stays = |error| {
        let path = policy::visible_shell_word(&repository.path.display().to_string());
        let path = path.as_deref().unwrap_or("DIRECTORY");
        let what =
            "so there may still be links through which git would write, or pipes at which it would wait";
        let remedy = "look at them before you use git here";
        io::Error::other(format!("{error}; {what}: {remedy} (`find {path} -type l -o -type p`)"))
    };
    let found;
    let opened = match held {
        Some(held) => held.opened.as_fd(),
        None => {
            found = repository.find().map_err(stays)?;
            match &found {
                Some(found) => found.as_fd(),
                None => {
                    told.push(format!(
                        "the repository that was at `{}` is not there any more, or another; if you moved it, look for links and pipes in it before you use \
                         git there: `find DIRECTORY -type l -o -type p`",
                        shown(repository.path.as_os_str()),
                    ));
                    return Ok(());
                }
            }
        }
    };
    let mut taken = 0_usize;
    let done = walk(opened, repository.layout, Shut::Open, &mut |planted, what| {
        if !take(planted)? {
            return Ok(ControlFlow::Continue(()));
        }
        taken += 1;
        if taken <= MOST_TOLD {
            let path = shown(repository.path.join(planted.path()).as_os_str());
            told.push(match what {
                Planted::Link { target } => format!(
                    "took away `{path}`, a link to `{}` that was made meanwhile: git here would have written there",
                    shown(&target),
                ),
                Planted::Pipe => format!(
                    "took away `{path}`, a named pipe that was made meanwhile: git here would have waited at it"
                ),
            });
        }
        Ok(ControlFlow::Continue(()))
    });
    if let Some(more) = taken.checked_sub(MOST_TOLD).filter(|more| *more > 0) {
        told.push(format!("took away {more} more of them in `{}`", shown(repository.path.as_os_str())));
    }
    done.map_err(stays)
}

/// Removes one of them. Returns whether it still existed.
fn take(planted: &Found<'_>) -> io::Result<bool> {
    let unlink = || rustix::fs::unlinkat(planted.folder, planted.name, AtFlags::empty());
    let taken = match unlink() {
        // The command closed the folder by its mode.
        Err(Errno::ACCESS) => let_owner_in(planted.folder).and_then(|()| unlink()),
        taken => taken,
    };
    match taken {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => {
            let name = planted.name.display().to_string();
            Err(io::Error::other(format!("`{}` stays: {}", name.escape_debug(), io::Error::from(errno))))
        }
    }
}

/// What a run left for git on this machine.
enum Planted {
    Link { target: OsString },
    Pipe,
}

/// Visits every link through which git would write, and every named pipe.
fn walk(
    git: BorrowedFd<'_>,
    layout: Layout,
    shut: Shut,
    visit: &mut dyn FnMut(&Found<'_>, Planted) -> io::Result<ControlFlow<()>>,
) -> io::Result<()> {
    // There may be hundreds of folders of loose objects, which no start is to wait for.
    let leaves = |path: &Path| is_left(path, layout) || shut == Shut::Refuse && is_of_loose_objects(path);
    let most = if shut == Shut::Refuse { MOST } else { usize::MAX };
    Walk { most, leaves: &leaves, shut }.visit(git, &mut |found| {
        match found.kind {
            FileType::Symlink if found.path().parent().is_some_and(is_of_loose_objects) => {
                return Ok(ControlFlow::Continue(()));
            }
            FileType::Symlink => {}
            FileType::Fifo => return visit(found, Planted::Pipe),
            _ => return Ok(ControlFlow::Continue(())),
        }
        let target = match rustix::fs::readlinkat(found.folder, found.name, Vec::new()) {
            Ok(target) => OsString::from_vec(target.into_bytes()),
            // It is gone, or no link any more.
            Err(Errno::NOENT | Errno::INVAL) => return Ok(ControlFlow::Continue(())),
            Err(errno) => return Err(errno.into()),
        };
        match is_harmless(&found.path(), &target) {
            true => Ok(ControlFlow::Continue(())),
            false => visit(found, Planted::Link { target }),
        }
    })
}

/// Whether a folder is skipped.
fn is_left(path: &Path, layout: Layout) -> bool {
    let Some(name) = path.file_name() else { return false };
    path.parent() == Some(Path::new(""))
        && (COVERED.iter().any(|covered| name == *covered) || !layout.has(name))
}

/// Whether a folder holds loose objects.
fn is_of_loose_objects(path: &Path) -> bool {
    let is_number = |name: &OsStr| name.len() == 2 && name.as_bytes().iter().all(u8::is_ascii_hexdigit);
    path.parent() == Some(Path::new(OBJECTS)) && path.file_name().is_some_and(is_number)
}

/// Whether git writes nothing elsewhere through a link: an old-style symbolic reference that stays below its folder, or an editor's lock,
/// whose name git does not use.
fn is_harmless(path: &Path, target: &OsStr) -> bool {
    let is_reference = path == Path::new("HEAD") || path.starts_with("refs") && path != Path::new("refs");
    let leads_to_reference = || {
        let is_plain = |part: &[u8]| !part.is_empty() && !part.starts_with(b".");
        Path::new(target).components().all(|part| matches!(part, Component::Normal(_)))
            && target
                .as_bytes()
                .strip_prefix(b"refs/")
                .is_some_and(|rest| rest.split(|o| *o == b'/').all(is_plain))
    };
    let is_lock = || {
        path.file_name().is_some_and(|name| name.as_bytes().starts_with(b".#"))
            && !target.as_bytes().contains(&b'/')
    };
    is_reference && leads_to_reference() || is_lock()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;
    use std::sync::Arc;

    use super::*;

    const VICTIM: &str = "/home/somebody/.bashrc";

    /// A workspace with a repository.
    struct Bench {
        _folder: tempfile::TempDir,
        workspace: PathBuf,
        git: PathBuf,
    }

    impl Bench {
        fn of(folders: &[&str]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let workspace = folder.path().canonicalize().unwrap();
            let git = workspace.join(".git");
            folders.iter().for_each(|made| fs::create_dir_all(workspace.join(made)).unwrap());
            Self { _folder: folder, workspace, git }
        }

        fn repositories(&self, open: &[PathBuf]) -> Vec<OpenRepository> {
            let root: Arc<OwnedFd> = source::open(&self.workspace).unwrap().into();
            OpenRepository::all(&self.workspace, &root, open).unwrap()
        }

        fn refused(&self) -> Option<String> {
            refuse_links_within(&self.repositories(&[])).err().map(|error| error.to_string())
        }

        /// Removes the links as after a killed run: the repository is found by its path.
        fn taken(&self) -> Vec<String> {
            let mut told = Vec::new();
            for it in self.repositories(&[]) {
                take_away(&it.repository, None, &mut told).unwrap();
            }
            told
        }

        fn link(&self, path: &str) {
            symlink(VICTIM, self.workspace.join(path)).unwrap();
        }

        fn shut(&self, path: &str, mode: u32) {
            fs::set_permissions(self.workspace.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
    }

    #[test]
    fn a_link_in_a_repository_is_refused_and_taken_away_wherever_git_would_write() {
        let bench = Bench::of(&[
            ".git/logs/refs/heads",
            ".git/refs/heads",
            ".git/objects/ab",
            ".git/objects/info/commit-graphs",
            ".git/objects/pack",
            ".git/objects/xy",
            ".git/hooks",
            ".git/modules",
        ]);
        assert_eq!(bench.refused(), None);
        // These are covered, or git does not write through them.
        for harmless in ["hooks/x", "modules/x", "objects/ab/cd"] {
            bench.link(&format!(".git/{harmless}"));
        }
        assert_eq!((bench.refused(), bench.taken()), (None, Vec::new()));
        for planted in [
            "COMMIT_EDITMSG",
            "logs/HEAD",
            "logs/refs/heads/main",
            "refs/heads/x",
            "objects/cd",
            "objects/info/commit-graph",
            "objects/info/commit-graphs/commit-graph-chain",
            "objects/pack/multi-pack-index",
            "objects/xy/z",
        ] {
            bench.link(&format!(".git/{planted}"));
            let why = bench.refused().unwrap();
            assert!(why.contains(&format!("`.git/{planted}` is a symbolic link")), "{why}");
            assert!(refuse_links_within(&bench.repositories(&[".git".into()])).is_ok());
            let told = bench.taken();
            assert!(told.len() == 1 && told[0].contains(planted) && told[0].contains(".bashrc"), "{told:?}");
            assert_eq!((bench.refused(), bench.taken()), (None, Vec::new()));
        }
        // A folder that is itself a link.
        fs::remove_dir_all(bench.git.join("logs")).unwrap();
        bench.link(".git/logs");
        assert!(bench.refused().is_some() && bench.taken().len() == 1);
        assert!(bench.git.join("hooks/x").is_symlink() && !bench.git.join("logs").is_symlink());
    }

    #[test]
    fn a_named_pipe_is_refused_and_taken_away_and_a_socket_is_not() {
        let bench = Bench::of(&[".git/refs/heads"]);
        let _socket =
            std::os::unix::net::UnixListener::bind(bench.git.join("fsmonitor--daemon.ipc")).unwrap();
        assert_eq!(bench.refused(), None);
        for planted in ["FETCH_HEAD", "refs/heads/x"] {
            let path = bench.git.join(planted);
            rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, 0o600.into(), 0).unwrap();
            let why = bench.refused().unwrap();
            assert!(why.contains(&format!("`.git/{planted}` is a named pipe")), "{why}");
            let told = bench.taken();
            assert!(told.len() == 1 && told[0].contains("waited at it"), "{told:?}");
            assert!(!path.exists() && bench.git.join("fsmonitor--daemon.ipc").exists());
        }
        // In place of a loose object: not looked for before a run, and taken away after it.
        fs::create_dir_all(bench.git.join("objects/ab")).unwrap();
        let path = bench.git.join("objects/ab/cd");
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(bench.refused(), None);
        assert_eq!((bench.taken().len(), path.exists()), (1, false));
    }

    #[test]
    fn a_repository_that_was_moved_is_told_of() {
        let bench = Bench::of(&[".git"]);
        let noted = bench.repositories(&[]).remove(0).repository;
        fs::rename(&bench.git, bench.workspace.join("moved")).unwrap();
        let mut told = Vec::new();
        take_away(&noted, None, &mut told).unwrap();
        assert!(told.len() == 1 && told[0].contains("is not there any more"), "{told:?}");
    }

    #[test]
    fn a_symbolic_reference_and_an_editors_lock_stay_and_what_looks_like_one_does_not() {
        let bench = Bench::of(&[".git/refs/heads", ".git/logs"]);
        for (path, target, stays) in [
            ("HEAD", "refs/heads/main", true),
            ("refs/heads/x", "refs/heads/main", true),
            (".#COMMIT_EDITMSG", "me@host.example.org.123:1700000000", true),
            ("HEAD", "refs/../../../.bashrc", false),
            ("HEAD", "refs/./heads/main", false),
            ("HEAD", "refs//heads", false),
            ("HEAD", "refs/", false),
            ("HEAD", "/refs/heads/main", false),
            ("HEAD", VICTIM, false),
            ("FETCH_HEAD", "refs/heads/main", false),
            ("logs/HEAD", "refs/heads/main", false),
            (".#COMMIT_EDITMSG", VICTIM, false),
            ("logs/.#x", "../../x", false),
        ] {
            let link = bench.git.join(path);
            symlink(target, &link).unwrap();
            assert_eq!(bench.refused().is_none(), stays, "{path} {target}");
            assert_eq!(bench.taken().is_empty(), stays, "{path} {target}");
            assert_eq!(link.is_symlink(), stays, "{path} {target}");
            let _ = fs::remove_file(link);
        }
        fs::remove_dir_all(bench.git.join("refs")).unwrap();
        symlink("refs/x", bench.git.join("refs")).unwrap();
        assert_eq!(bench.taken().len(), 1);
    }

    #[test]
    fn whatever_is_shut_is_opened_for_its_owner_and_none_of_it_ends_the_search() {
        let bench = Bench::of(&[".git/logs", ".git/closed", ".git/kept"]);
        bench.link(".git/logs/HEAD");
        bench.link(".git/closed/link");
        for number in 0..40 {
            fs::create_dir_all(bench.git.join(format!("d{number}/sub"))).unwrap();
            bench.link(&format!(".git/d{number}/sub/link"));
            bench.shut(&format!(".git/d{number}"), if number % 2 == 0 { 0o600 } else { 0o100 });
        }
        bench.shut(".git/closed", 0);
        bench.shut(".git/kept", 0o555);
        let repositories = bench.repositories(&[]);
        let mut told = Vec::new();
        bench.shut(".git", 0);
        bench.shut("", 0);
        take_away(&repositories[0].repository, repositories.first(), &mut told).unwrap();
        bench.shut("", 0o700);
        let mode = |name: &str| fs::metadata(bench.git.join(name)).unwrap().permissions().mode() & 0o777;
        // A folder that can be searched keeps its mode.
        assert_eq!(mode("kept"), 0o555);
        // As many are reported by name as a user can read, and the others as a number.
        assert_eq!(told.len(), MOST_TOLD + 1);
        assert!(told[MOST_TOLD].starts_with(&format!("took away {} more of them in `", 42 - MOST_TOLD)));
        assert_eq!(bench.taken(), Vec::<String>::new());
        assert!((0..40).all(|number| !bench.git.join(format!("d{number}/sub/link")).is_symlink()));
    }

    #[test]
    fn there_may_be_more_names_after_a_run_than_before_one() {
        let bench = Bench::of(&[".git/logs"]);
        (0..=MOST).for_each(|number| fs::write(bench.git.join(number.to_string()), "").unwrap());
        assert!(bench.refused().is_some_and(|why| why.contains("there are more than")));
        bench.link(".git/logs/HEAD");
        assert_eq!(bench.taken().len(), 1);
    }

    #[test]
    fn too_few_open_files_are_no_reason_to_leave_the_repository_to_the_command() {
        let of = |errno: Errno| of_this_machine(Path::new("/w/.git"), &errno.into());
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO] {
            assert!(matches!(of(errno), Some(Error::Open { .. })), "{errno:?}");
        }
        assert!(of(Errno::ACCESS).is_none());
    }

    #[test]
    fn nothing_is_done_to_another_repository_that_is_in_its_place() {
        let bench = Bench::of(&[".git"]);
        let noted = bench.repositories(&[]).remove(0).repository;
        fs::rename(&bench.git, bench.workspace.join("old")).unwrap();
        fs::create_dir(&bench.git).unwrap();
        bench.link(".git/objects");
        let mut told = Vec::new();
        take_away(&noted, None, &mut told).unwrap();
        assert!(told.len() == 1 && told[0].contains("is not there any more"), "{told:?}");
        assert!(bench.git.join("objects").is_symlink());
        // The control.
        fs::remove_dir_all(&bench.git).unwrap();
        fs::rename(bench.workspace.join("old"), &bench.git).unwrap();
        bench.link(".git/objects");
        take_away(&noted, None, &mut told).unwrap();
        assert!(told.len() == 2 && !bench.git.join("objects").is_symlink(), "{told:?}");
    }

    #[test]
    fn a_workspace_that_is_a_bare_repository_is_gone_through_where_git_writes() {
        let bench = Bench::of(&["objects/ab", "refs", "logs", "main/bin"]);
        fs::write(bench.workspace.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        bench.link("objects/ab/cd");
        // A working tree in a bare repository is the user's own.
        bench.link("main/bin/tool");
        assert_eq!((bench.refused(), bench.taken()), (None, Vec::new()));
        for planted in ["FETCH_HEAD", "logs/HEAD", "objects/info"] {
            bench.link(planted);
            let why = bench.refused().unwrap();
            assert!(why.contains("a bare repository") && why.contains(&format!("`{planted}` is a")), "{why}");
            assert_eq!(bench.taken().len(), 1);
            assert_eq!((bench.refused(), bench.taken()), (None, Vec::new()));
        }
    }

    #[test]
    fn what_cannot_be_looked_through_is_told_with_what_to_do() {
        let bench = Bench::of(&[".git"]);
        let mut noted = bench.repositories(&[]).remove(0).repository;
        // The path to the repository leads through a link by now.
        symlink(".", bench.workspace.join("way")).unwrap();
        noted.path = bench.workspace.join("way/.git");
        let why = take_away(&noted, None, &mut Vec::new()).unwrap_err().to_string();
        assert!(
            why.contains("links through which git would write") && why.contains("-type l -o -type p`"),
            "{why}"
        );
    }
}
