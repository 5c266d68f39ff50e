//! Removes the control groups that a killed daemon leaves: one of its own in every hierarchy, and its containers' in it. It
//! only ever removes directories, and only beneath the name it is given.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

const ROOT: &str = "/sys/fs/cgroup";
/// A group can be removed a moment after its last process has ended.
const PATIENCE: Duration = Duration::from_secs(2);

/// Removes `name` in the one hierarchy of version 2, or in each of version 1.
pub(crate) fn remove(name: &str) {
    let deadline = Instant::now() + PATIENCE;
    let hierarchies = fs::read_dir(ROOT).into_iter().flatten().flatten().map(|entry| entry.path());
    for group in hierarchies.chain([ROOT.into()]).map(|hierarchy| hierarchy.join(name)) {
        while !remove_tree(&group) && Instant::now() < deadline {
            sleep(Duration::from_millis(10));
        }
    }
}

/// Whether nothing of it is there any more.
fn remove_tree(group: &Path) -> bool {
    let within = fs::read_dir(group).into_iter().flatten().flatten();
    for entry in within.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_tree(&entry.path());
    }
    let _ = fs::remove_dir(group);
    !group.exists()
}
