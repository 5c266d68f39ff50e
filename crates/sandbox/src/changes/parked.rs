//! Overlayfs work directories of runs at an engine. The engine mounts the overlay as root, so the kernel's directory belongs to root,
//! and an unprivileged caller can neither read nor remove it. Its parent directory is moved aside and used by the next run at an
//! engine: the kernel empties it first.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// The work directory, in the directory of a run's changes.
pub(crate) const WORK: &str = "work";
/// The directory of parked work directories, beside those of the runs.
const PARKED: &str = ".parked";
/// The kernel's directory in it.
const OF_KERNEL: &str = "work";
/// The most parked directories that a run tries. Other runs take them at the same time.
const TRIES: usize = 64;

/// Moves the work directory out of the directory of a run. It belongs to the caller, whatever is in it.
pub(super) fn put_aside(directory: &Path) -> io::Result<()> {
    let (Some(beside), Some(name)) = (directory.parent(), directory.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // The owner of the parent can remove an empty directory.
    if std::fs::remove_dir(directory.join(WORK).join(OF_KERNEL)).is_ok() {
        return Ok(());
    }
    let parked = beside.join(PARKED);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&parked)?;
    match std::fs::rename(directory.join(WORK), parked.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        moved => moved,
    }
}

/// Replaces the empty work directory of a run by a parked one, if there is one.
pub(crate) fn take_over(directory: &Path) {
    let parked = directory.parent().map(|beside| beside.join(PARKED));
    let left = parked.and_then(|parked| std::fs::read_dir(parked).ok());
    let mut left = left.into_iter().flatten().flatten().take(TRIES);
    let _ = left.any(|one| std::fs::rename(one.path(), directory.join(WORK)).is_ok());
}

#[cfg(test)]
mod tests {
    use super::super::Changes;
    use super::*;

    #[test]
    fn what_was_put_aside_is_taken_over_once() {
        let state = tempfile::tempdir().unwrap();
        let at = |name: &str| state.path().join(name);
        Changes::make_layers(&at("first")).unwrap();
        std::fs::create_dir(at("first").join(WORK).join("roots")).unwrap();
        put_aside(&at("first")).unwrap();
        assert!(!at("first").join(WORK).exists());
        for (name, has_it) in [("second", true), ("third", false)] {
            Changes::make_layers(&at(name)).unwrap();
            take_over(&at(name));
            assert_eq!(at(name).join(WORK).join("roots").exists(), has_it, "{name}");
            assert!(at(name).join(WORK).is_dir(), "{name}");
        }
        // A work directory that was never made is not moved.
        put_aside(&at("first")).unwrap();
    }
}
