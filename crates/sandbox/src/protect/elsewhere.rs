//! Refuses a workspace whose repository is elsewhere in the workspace. A `.git` file names a repository, and `commondir` the one whose
//! settings apply. Git runs what is there, and protected paths do not cover it. So neither may lead into the workspace, or through a
//! folder in it, which the command could replace.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::error::Error;
use crate::regular::open_regular;

/// The longest file that names a repository. It has one line, a path.
const LONGEST_LINE: u64 = 8 * 1024;

/// Refuses a workspace whose repository is elsewhere in it.
pub(super) fn refuse_repository_inside(workspace: &Path, open: &[PathBuf]) -> Result<(), Error> {
    let git = workspace.join(".git");
    if open.iter().any(|path| path == Path::new(".git")) {
        return Ok(());
    }
    // Only a regular file can name a repository.
    let file = read_line(&git).and_then(|text| leads_to(&text).map(Path::to_owned));
    let common = read_line(&git.join("commondir")).and_then(|text| line(&text).map(Path::to_owned));
    let leads_inside =
        |from: &Path, to: Option<PathBuf>| to.is_some_and(|to| leads_inside(workspace, from, &to));
    let (what, name) = if leads_inside(workspace, file) {
        (
            "the repository that `.git` leads to lies in the workspace, or its way there does",
            "hooks and settings",
        )
    } else if leads_inside(&git, common) {
        (
            "the repository that `.git/commondir` leads to lies in the workspace, or its way there does",
            "settings",
        )
    } else {
        return Ok(());
    };
    Err(Error::Refused {
        what: format!("{what}, where its {name} cannot be protected"),
        remedy: Some("use --workspace-mode overlay, or leave it to the command as it is: --open .git".into()),
    })
}

/// Reads the beginning of a file, as git does: any octets, blanks included.
fn read_line(path: &Path) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    open_regular(path).ok()??.take(LONGEST_LINE).read_to_end(&mut text).ok()?;
    Some(text)
}

/// Returns the path that a `.git` file names.
fn leads_to(text: &[u8]) -> Option<&Path> {
    line(text.strip_prefix(b"gitdir: ")?)
}

/// Returns the path in a text: up to a NUL, without trailing line ends.
fn line(text: &[u8]) -> Option<&Path> {
    let end = text.iter().rposition(|octet| !matches!(octet, b'\r' | b'\n'))?;
    let path = text[..=end].split(|octet| *octet == 0).next()?;
    Some(Path::new(OsStr::from_bytes(path)))
}

/// Whether a path from a folder leads below the workspace, at its end or on the way, even if nothing exists there yet.
fn leads_inside(workspace: &Path, from: &Path, to: &Path) -> bool {
    let mut here = from.to_owned();
    for part in to.components() {
        match part {
            Component::RootDir | Component::Prefix(_) => here = PathBuf::from("/"),
            Component::CurDir => continue,
            Component::ParentDir => {
                here.pop();
                continue;
            }
            Component::Normal(name) => here.push(name),
        }
        let is_inside = |path: &Path| path != workspace && path.starts_with(workspace);
        if is_inside(&here) {
            return true;
        }
        if let Ok(real) = here.canonicalize() {
            here = real;
            if is_inside(&here) {
                return true;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_leads_where_git_says() {
        for name in [&b"inner"[..], b" inner ", b"in\xffner"] {
            let folder = tempfile::tempdir().unwrap();
            let workspace = folder.path().canonicalize().unwrap();
            std::fs::create_dir(workspace.join(OsStr::from_bytes(name))).unwrap();
            for end in [&b""[..], b"\n", b"\r\n\n", b"\0elsewhere\n"] {
                std::fs::write(workspace.join(".git"), [b"gitdir: ", name, end].concat()).unwrap();
                let refused = refuse_repository_inside(&workspace, &[]);
                assert!(matches!(refused, Err(Error::Refused { .. })), "{:?}", name.escape_ascii());
                assert!(refuse_repository_inside(&workspace, &[".git".into()]).is_ok());
            }
        }
        assert_eq!(leads_to(b"gitdir: inner\n\0x\n"), Some(Path::new("inner\n")));
        assert!(leads_to(b"gitdir: \n").is_none() && leads_to(b"[core]").is_none());
    }

    #[test]
    fn the_way_to_a_repository_is_not_the_commands_to_lay() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let workspace = folder.join("w");
        for made in ["w/.git", "w/build", "outside/repo"] {
            std::fs::create_dir_all(folder.join(made)).unwrap();
        }
        symlink(folder.join("outside"), workspace.join("link")).unwrap();
        symlink(&workspace, folder.join("back")).unwrap();
        let refused = |common: &str| {
            std::fs::write(workspace.join(".git/commondir"), format!("{common}\n")).unwrap();
            refuse_repository_inside(&workspace, &[]).is_err()
        };
        let absolute = folder.join("outside/repo");
        for (path, expected) in [
            (".", false),
            ("../../outside/repo", false),
            (absolute.to_str().unwrap(), false),
            ("../build", true),
            ("../not/yet", true),
            ("../link/repo", true),
            ("../build/../../outside/repo", true),
            ("../../back/build", true),
        ] {
            assert_eq!(refused(path), expected, "{path}");
        }
        std::fs::remove_dir_all(workspace.join(".git")).unwrap();
        for (path, expected) in
            [("../outside/repo", false), ("not/yet", true), ("link/repo", true), ("../back/x", true)]
        {
            std::fs::write(workspace.join(".git"), format!("gitdir: {path}\n")).unwrap();
            assert_eq!(refuse_repository_inside(&workspace, &[]).is_err(), expected, "{path}");
        }
    }
}
