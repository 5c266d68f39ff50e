//! Refuses to show the top of a mergerfs for writing. In its control file, which no list shows, its server takes orders by attributes: the
//! command could have it merge any folder that the server may enter, and so reach that.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD};

use super::Plan;
use super::refused::{shown_for_writing, untold};
use crate::error::Error;
use crate::mounted::{Mounts, MountsOnceRead};
use crate::path_identity::resolved;

/// Where the server takes orders, at the top of each of its mounts.
const CONTROL_FILE: &str = ".mergerfs";

pub(super) fn refuse(plan: &Plan, mounts: &MountsOnceRead) -> Result<(), Error> {
    let mut writable = plan.steps.iter().filter_map(shown_for_writing).map(|(path, _)| path).peekable();
    if writable.peek().is_none() {
        return Ok(());
    }
    let mounts = mounts.get().map_err(|error| untold(&plan.workspace, &error))?;
    if !mounts.have_mergerfs() {
        return Ok(());
    }
    match writable.find_map(|path| Some((path, first_steered(&mounts, path)?))) {
        None => Ok(()),
        Some((path, control)) => Err(Error::Refused {
            what: format!(
                "`{}` cannot be shown for writing: by `{}` the command could have mergerfs show it any folder",
                path.display(),
                control.display()
            ),
            remedy: Some(
                "show a folder below the mount point, or use --workspace-mode ro or --mount …:ro".into(),
            ),
        }),
    }
}

/// Returns the first control file at or below a path to which this process may write.
fn first_steered(mounts: &Mounts, path: &Path) -> Option<PathBuf> {
    let folder = resolved(path);
    let may_be_written =
        |file: &Path| rustix::fs::accessat(CWD, file, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
    mounts.of_mergerfs_in(&folder).map(|top| top.join(CONTROL_FILE)).find(|file| may_be_written(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::planned;

    #[test]
    fn what_has_the_control_file_is_not_shown_for_writing() {
        let folder = tempfile::tempdir().unwrap();
        let pool = folder.path().join("pool");
        std::fs::create_dir(&pool).unwrap();
        let told = |shown: &Path, mode: &str, kind: &str| {
            let mount = format!("[[mount]]\nsource = '{}'\ntarget = '/m'\nmode = '{mode}'", shown.display());
            let list = format!(
                "22 1 0:21 / / rw - ext4 /dev/x rw\n99 22 0:9 / {} rw - {kind} x rw\n",
                pool.display()
            );
            refuse(&planned(&mount).unwrap(), &MountsOnceRead::of(&list)).map_err(|error| error.to_string())
        };
        assert_eq!(told(&pool, "rw", "fuse.mergerfs"), Ok(()), "it has none, or not here");
        std::fs::write(pool.join(CONTROL_FILE), "").unwrap();
        for shown in [pool.as_path(), folder.path()] {
            let why = told(shown, "rw", "fuse.mergerfs").unwrap_err();
            assert!(why.contains("pool/.mergerfs"), "{why}");
            assert_eq!(told(shown, "ro", "fuse.mergerfs"), Ok(()));
            assert_eq!(told(shown, "rw", "ext4"), Ok(()));
        }
        assert_eq!(told(&pool.join("below"), "rw", "fuse.mergerfs"), Ok(()));
    }
}
