//! Which rows of the list apply in one workspace, by what is in it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::bare::is_bare;
use super::held::Held;
use super::listed::rows_but;
use super::placeholder::is_free;
use super::row::{LEFT, Row, WhenAbsent};
use super::top_names::TopNames;
use crate::error::Error;
use crate::source;

/// Returns the rows that apply in one workspace. In a bare repository, the protected paths of a `.git` are at its top.
pub(super) fn rows_in(root: BorrowedFd<'_>, open: &[PathBuf], held: Held<'_>) -> Result<Vec<Row>, Error> {
    let bare = !open.iter().any(|path| path == Path::new(".git")) && is_bare(root, held)?;
    let at_top = |row: &Row| {
        let path = row.path.strip_prefix(".git").ok().filter(|rest| !rest.as_os_str().is_empty())?;
        Some(Row { path, ..*row })
    };
    let of_repository: Vec<Row> = rows_but(open).filter(|_| bare).filter_map(|row| at_top(&row)).collect();
    // A bare repository need not be kept from becoming one.
    let is_needless = |row: &Row| matches!(row.when_absent, WhenAbsent::HoldOne | WhenAbsent::HoldWithOne);
    let needed = rows_but(open).filter(|row| !(bare && is_needless(row)));
    needed.chain(of_repository).map(|row| as_beside(root, row)).collect()
}

/// Returns a row as it applies in a workspace, where what it is held beside may be absent.
fn as_beside(root: BorrowedFd<'_>, row: Row) -> Result<Row, Error> {
    let Some(beside) = row.beside else { return Ok(row) };
    match rustix::fs::statat(root, beside, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(row),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(Row { when_absent: WhenAbsent::Leave, ..row }),
        Err(errno) => Err(source::refused(beside, errno)),
    }
}

/// Returns the rows that may have something to cover. Of the rows of which one is held, only that one; and none in a folder that is not
/// there, or is held.
pub(super) fn rows_there(root: BorrowedFd<'_>, open: &[PathBuf], held: Held<'_>) -> Result<Vec<Row>, Error> {
    let mut folders: Vec<(&Path, bool)> = Vec::new();
    let mut is_within_something = |path: &'static Path| {
        let Some(folder) = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()).last()
        else {
            return Ok(true);
        };
        if let Some((_, is_there)) = folders.iter().find(|(known, _)| *known == folder) {
            return Ok(*is_there);
        }
        let found = rustix::fs::statat(root, folder, AtFlags::SYMLINK_NOFOLLOW);
        let is_absent = found.is_err_and(|errno| errno == Errno::NOENT);
        let is_there = !is_absent && !held.is(root, folder)?;
        folders.push((folder, is_there));
        Ok(is_there)
    };
    let is_there = |path: &Path| {
        let found = rustix::fs::statat(root, path, AtFlags::SYMLINK_NOFOLLOW);
        !matches!(found, Err(Errno::NOENT | Errno::NOTDIR))
    };
    let top = TopNames::of(root);
    let mut there = Vec::new();
    for row in rows_in(root, open, held)? {
        // One that is held must be there. What is not there needs no folder to stay in its place either.
        if row.when_absent == WhenAbsent::Leave && !(top.may_have(row.path) && is_there(row.path)) {
            continue;
        }
        if (row.when_absent != WhenAbsent::HoldOne || held.is(root, row.path)?)
            && is_within_something(row.path)?
        {
            there.push(row);
        }
    }
    Ok(there)
}

/// Returns the held name at or above a path of a workspace.
pub(crate) fn held_above(
    workspace: &Path,
    open: &[PathBuf],
    within: &Path,
) -> Result<Option<&'static Path>, Error> {
    let Some(root) = source::open_if_there(workspace)? else { return Ok(None) };
    for row in rows_but(open) {
        if row.when_absent != WhenAbsent::Leave
            && within.starts_with(row.path)
            && is_free(root.as_fd(), row.path).map_err(|errno| source::refused(row.path, errno))?
        {
            return Ok(Some(row.path));
        }
    }
    Ok(None)
}

/// Opens the folder in a protected one that is the command's, if it is one.
pub(super) fn open_left(root: BorrowedFd<'_>) -> Option<OwnedFd> {
    let found = source::open_beneath(root, Path::new(LEFT)).ok()??;
    source::is_directory(found.as_fd()).unwrap_or(false).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_repository_is_one_also_by_links_and_what_is_held_in_it_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let (workspace, elsewhere) = (folder.path().join("w"), folder.path().join("e"));
        for made in [&workspace, &elsewhere, &elsewhere.join("objects"), &elsewhere.join("refs")] {
            std::fs::create_dir(made).unwrap();
        }
        let bare = || is_bare(source::open(&workspace).unwrap().as_fd(), Held::Any).unwrap();
        let held = |within: &str| held_above(&workspace, &[], Path::new(within)).unwrap();
        assert!(!bare() && held("src/x").is_none());
        assert_eq!((held(".git/info/x"), held("refs")), (Some(Path::new(".git")), Some(Path::new("refs"))));
        assert!(held_above(&workspace, &[".git".into()], Path::new(".git/info")).unwrap().is_none());
        for (name, target) in
            [("HEAD", "refs/heads/main"), ("objects", "../e/objects"), ("refs", "../e/refs")]
        {
            assert!(!bare());
            std::os::unix::fs::symlink(target, workspace.join(name)).unwrap();
        }
        assert!(bare());
        std::fs::create_dir(workspace.join(".git")).unwrap();
        assert!(held(".git/info/x").is_none() && held(".git/hooks/x") == Some(Path::new(".git/hooks")));
    }
}
