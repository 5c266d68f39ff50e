//! Refuses a workspace whose repository is elsewhere in the workspace. A `.git` file names a repository, and `commondir` the one whose
//! settings apply. Git runs what is there, and protected paths do not cover it. So neither may lead into the workspace, or through a
//! folder in it, which the command could replace.

use std::ffi::OsStr;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::error::Error;
use crate::regular::open_without_links;

/// The longest file that names a repository. It has one line, a path.
const LONGEST_LINE: u64 = 8 * 1024;

/// How many stores of objects that a repository names are looked for.
const MOST_STORES: usize = 4;

/// Refuses a workspace whose repository is elsewhere in it.
pub(super) fn refuse_repository_inside(workspace: &Path, open: &[PathBuf]) -> Result<(), Error> {
    let git = workspace.join(".git");
    if open.iter().any(|path| path == Path::new(".git")) {
        return Ok(());
    }
    // Only a regular file can name a repository.
    let file = read_line(&git)?.and_then(|text| leads_to(&text).map(Path::to_owned));
    let common = read_line(&git.join("commondir"))?.and_then(|text| line(&text).map(Path::to_owned));
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

/// Returns where the repository of a workspace is, if `.git` is a file that leads out of the workspace. A file that cannot be read is none:
/// whoever protects it says so.
pub(crate) fn repository_outside(workspace: &Path) -> Option<PathBuf> {
    let text = read_line(&workspace.join(".git")).ok()??;
    let there = workspace.join(leads_to(&text)?).canonicalize().ok()?;
    (!there.starts_with(workspace)).then_some(there)
}

/// Returns the first folder outside the workspace from which its repository borrows objects, and the path by which git looks for it:
/// gitrepository-layout(5). The command can write that file: a way through the workspace, where it can lay links, is not gone, and what
/// looks like no store of objects is none. Nor is what cannot be read: nothing depends on it.
pub(crate) fn objects_outside(workspace: &Path) -> Option<(PathBuf, PathBuf)> {
    let objects = workspace.join(".git/objects");
    let text = read_line(&objects.join("info/alternates")).ok()??;
    let outside = |named: &[u8]| {
        let named = without_parents(&objects.join(OsStr::from_bytes(named)));
        let there = (!named.starts_with(workspace)).then(|| named.canonicalize().ok())??;
        (!there.starts_with(workspace) && there.join("pack").is_dir()).then_some((there, named))
    };
    // A comment, and a path in quotes, which git writes for none that most people have.
    let is_path = |line: &&[u8]| !line.is_empty() && !line.starts_with(b"#") && !line.starts_with(b"\"");
    text.split(|octet| *octet == b'\n').filter(is_path).take(MOST_STORES).find_map(outside)
}

/// Returns a path as git makes one of it: `..` takes away what stands before it, whatever that is.
fn without_parents(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut so_far, part| {
        match part {
            Component::ParentDir => drop(so_far.pop()),
            part => so_far.push(part),
        }
        so_far
    })
}

/// Reads the beginning of a file, as git does: any octets, blanks included. `None` where there is no regular file.
fn read_line(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match std::fs::symlink_metadata(path) {
        Ok(about) if about.is_file() => {}
        Ok(_) => return Ok(None),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(unread(path, &error.to_string())),
    }
    let opened = open_without_links(path).map_err(|error| match error {
        Error::Source { why, .. } => unread(path, &why),
        other => other,
    });
    let Some(file) = opened? else { return Ok(None) };
    let mut text = Vec::new();
    match file.take(LONGEST_LINE).read_to_end(&mut text) {
        Ok(_) => Ok(Some(text)),
        Err(error) => Err(unread(path, &error.to_string())),
    }
}

/// The error for a file that may name a repository, and cannot be read.
fn unread(path: &Path, why: &str) -> Error {
    Error::Refused {
        what: format!("`.git` cannot be protected: `{}` cannot be read: {why}", path.display()),
        remedy: Some(
            "make it readable (chmod u+r), use --workspace-mode ro or overlay, or leave it to the command as it is: \
             --open .git"
                .into(),
        ),
    }
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
    fn a_file_that_cannot_be_read_is_refused_with_a_way_out() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path().canonicalize().unwrap();
        let told = |error: Error| (error.to_string(), error.remedy().unwrap_or_default());
        // No name of a file is that long.
        let (what, remedy) = told(read_line(&workspace.join("x".repeat(300))).unwrap_err());
        assert!(what.contains("`.git` cannot be protected") && remedy.contains("--open .git"), "{what}");
        if !rustix::process::geteuid().is_root() {
            std::fs::write(workspace.join(".git"), "gitdir: ../x\n").unwrap();
            std::fs::set_permissions(workspace.join(".git"), PermissionsExt::from_mode(0o000)).unwrap();
            let (what, remedy) = told(refuse_repository_inside(&workspace, &[]).unwrap_err());
            assert!(what.contains("cannot be read") && remedy.contains("chmod u+r"), "{what}");
        }
    }

    #[test]
    fn a_repository_outside_is_found_by_the_file_that_leads_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let workspace = folder.join("w");
        std::fs::create_dir_all(folder.join("main/.git/worktrees/w")).unwrap();
        std::fs::create_dir_all(workspace.join("inner")).unwrap();
        assert_eq!(repository_outside(&workspace), None);
        for (leads_to, expected) in [
            ("../main/.git/worktrees/w", Some(folder.join("main/.git/worktrees/w"))),
            ("inner", None),
            ("/nonesuch/repo", None),
        ] {
            std::fs::write(workspace.join(".git"), format!("gitdir: {leads_to}\n")).unwrap();
            assert_eq!(repository_outside(&workspace), expected, "{leads_to}");
        }
    }

    #[test]
    fn objects_that_are_borrowed_from_outside_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let (workspace, lent) = (folder.join("w"), folder.join("main/.git/objects"));
        let info = workspace.join(".git/objects/info");
        for made in
            [&info, &lent.join("pack"), &workspace.join("own/.git/objects/pack"), &folder.join("keys")]
        {
            std::fs::create_dir_all(made).unwrap();
        }
        symlink(folder.join("main"), folder.join("way")).unwrap();
        symlink(&lent, workspace.join("laid")).unwrap();
        assert_eq!(objects_outside(&workspace), None);
        let named = |path: &str| Some((lent.clone(), folder.join(path)));
        for (text, expected) in [
            ("../../../main/.git/objects\n".to_owned(), named("main/.git/objects")),
            (format!("# x\n\n/nonesuch\n{}\n", lent.display()), named("main/.git/objects")),
            (format!("{}/way/.git/objects", folder.display()), named("way/.git/objects")),
            ("../../own/.git/objects\n".into(), None),
            (format!("{}\n", folder.join("keys").display()), None),
            ("../../laid\n".into(), None),
            (format!("{}{}\n", "/nonesuch\n".repeat(MOST_STORES), lent.display()), None),
            (format!("\"{}\"\n", lent.display()), None),
            ("\0\n\n".into(), None),
        ] {
            std::fs::write(info.join("alternates"), &text).unwrap();
            assert_eq!(objects_outside(&workspace), expected, "{text}");
        }
        std::fs::write(folder.join("list"), lent.to_str().unwrap()).unwrap();
        std::fs::remove_file(info.join("alternates")).unwrap();
        symlink(folder.join("list"), info.join("alternates")).unwrap();
        assert_eq!(objects_outside(&workspace), None);
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
