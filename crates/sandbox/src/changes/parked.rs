//! What the kernel works with, where an engine mounted the overlay: it is root's then, and stays root's when the run is over, for
//! whoever is not root can neither look into it nor take it away. The directory that it is in is moved aside, and the next run
//! at an engine has its overlay mounted with that one: the kernel empties it first.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// What the kernel works with, in the directory of a run's changes.
pub(crate) const WORK: &str = "work";
/// StagedFile the directories of the runs.
const PARKED: &str = ".parked";
/// What the kernel makes there.
const OF_KERNEL: &str = "work";
/// How many are tried: others take them over at the same time.
const TRIES: usize = 64;

/// Moves what the kernel worked with out of the directory of a run. Its own directory is the caller's, whatever is in it.
pub(super) fn put_aside(directory: &Path) -> io::Result<()> {
    let (Some(beside), Some(name)) = (directory.parent(), directory.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // Where nothing is in it whoever has the directory around it may take it away.
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

/// Puts one that was left in the place of the empty one of a run. Where there is none, that one will do.
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
        Changes::prepare(&at("first")).unwrap();
        std::fs::create_dir(at("first").join(WORK).join("roots")).unwrap();
        put_aside(&at("first")).unwrap();
        assert!(!at("first").join(WORK).exists());
        for (name, has_it) in [("second", true), ("third", false)] {
            Changes::prepare(&at(name)).unwrap();
            take_over(&at(name));
            assert_eq!(at(name).join(WORK).join("roots").exists(), has_it, "{name}");
            assert!(at(name).join(WORK).is_dir(), "{name}");
        }
        // One that was never made is none to move.
        put_aside(&at("first")).unwrap();
    }
}
