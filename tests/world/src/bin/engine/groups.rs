//! Removes the control groups that a killed daemon leaves: its own in every hierarchy, and its containers' in that. It removes only
//! directories, and only beneath the given name.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

const ROOT: &str = "/sys/fs/cgroup";
/// How long a group may take to become removable after its last process has ended.
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

/// Removes a group's tree, and returns whether nothing of it is left.
fn remove_tree(group: &Path) -> bool {
    let within = fs::read_dir(group).into_iter().flatten().flatten();
    for entry in within.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_tree(&entry.path());
    }
    let _ = fs::remove_dir(group);
    !group.exists()
}
