//! Refuses a workspace whose repository keeps its references in tables. Beside a held `commondir` git takes a repository for a linked
//! worktree, whose own tables are then the repository's: it locks the same ones twice, inside and outside, and no commit succeeds.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use super::placeholder::stat;
use super::row::{Row, WhenAbsent};
use crate::error::Error;
use crate::source;

/// The folder of the tables: gitrepository-layout(5).
const TABLES: &str = "reftable";

/// What a repository with tables says in its settings (`extensions.refStorage`). The command can make the folder, and not those settings.
const SAYS: &[u8] = b"reftable";
/// The most that is read of them.
const LONGEST: u64 = 1 << 20;

/// Refuses a workspace with such a repository, if one of the names to be held would stop its commits.
pub(super) fn refuse_tables(root: BorrowedFd<'_>, to_hold: &[Row]) -> Result<(), Error> {
    for row in to_hold.iter().filter(|row| row.when_absent == WhenAbsent::HoldByFile) {
        let tables = row.path.with_file_name(TABLES);
        let is_there = stat(root, &tables).map_err(|errno| source::refused(&tables, errno))?.is_some();
        if is_there && says_tables(root, &row.path.with_file_name("config"))? {
            return Err(refused(&tables, row.path));
        }
    }
    Ok(())
}

fn says_tables(root: BorrowedFd<'_>, settings: &Path) -> Result<bool, Error> {
    let Some(opened) = source::open_beneath(root, settings)? else { return Ok(false) };
    let refused = |errno| source::refused(settings, errno);
    let mut text = Vec::new();
    let file = File::from(source::reopen(opened.as_fd()).map_err(refused)?);
    file.take(LONGEST)
        .read_to_end(&mut text)
        .map_err(|error| Error::Source { path: settings.into(), why: error.to_string() })?;
    Ok(text.windows(SAYS.len()).any(|part| part.eq_ignore_ascii_case(SAYS)))
}

fn refused(tables: &Path, held: &Path) -> Error {
    // At the top of a bare repository the list's path is that of a `.git`.
    let is_at_top = held.components().count() == 1;
    let listed = if is_at_top { Path::new(".git").join(held) } else { held.into() };
    Error::Refused {
        what: format!(
            "git keeps its references in tables (`{}`), and could make no commit, inside and outside, while a run keeps `{}` from the \
             command",
            tables.display(),
            held.display()
        ),
        remedy: Some(format!(
            "use --workspace-mode overlay, or leave that file to the command, if you trust it: --open {}",
            listed.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::hold_absent;
    use super::*;
    use crate::undo::UndoLog;

    #[test]
    fn a_repository_that_keeps_references_in_tables_is_refused_with_a_way_out() {
        for (made, repository, listed) in [
            (&[".git"][..], ".git", ".git/commondir"),
            (&["objects", "refs"], "", ".git/commondir"),
            (&[".jj/repo/store/git"], ".jj/repo/store/git", ".jj/repo/store/git/commondir"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            made.iter().for_each(|path| std::fs::create_dir_all(folder.path().join(path)).unwrap());
            std::fs::write(folder.path().join(repository).join("HEAD"), "ref: refs/heads/.invalid\n")
                .unwrap();
            let held = |open: &[&str]| {
                let open: Vec<_> = open.iter().map(Into::into).collect();
                let mut undo = UndoLog::in_memory();
                let held = hold_absent(folder.path(), &open, &mut undo).map(drop);
                undo.unwind();
                held
            };
            held(&[]).unwrap();
            std::fs::create_dir(folder.path().join(repository).join(TABLES)).unwrap();
            // A command may have made it.
            let config = folder.path().join(repository).join("config");
            std::fs::write(&config, "[core]\n\trepositoryformatversion = 0\n").unwrap();
            held(&[]).unwrap();
            std::fs::write(&config, "[extensions]\n\trefStorage = RefTable\n").unwrap();
            let error = held(&[]).unwrap_err();
            let (what, remedy) = (error.to_string(), error.remedy().unwrap_or_default());
            assert!(
                what.contains("no commit") && remedy.ends_with(&format!("--open {listed}")),
                "{what} {remedy}"
            );
            held(&[listed]).unwrap();
            // What is there holds its name itself.
            std::fs::write(folder.path().join(repository).join("commondir"), "/srv/repository\n").unwrap();
            held(&[]).unwrap();
        }
    }
}
