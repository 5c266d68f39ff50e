//! An inventory of this machine: processes by a word in their command line, mounts, control groups, files.
//! It only looks; a test compares only names that the test made up.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Returns every readable command line on the machine, with its process id.
#[must_use]
pub fn command_lines() -> Vec<(u32, String)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let id = entry.file_name().to_string_lossy().parse().ok()?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            Some((id, String::from_utf8_lossy(&line).replace('\0', " ")))
        })
        .collect()
}

/// Returns the processes whose command line contains `word`.
#[must_use]
pub fn processes_named(word: &str) -> Vec<(u32, String)> {
    command_lines().into_iter().filter(|(_, line)| line.contains(word)).collect()
}

/// Returns the mounts of this namespace whose line contains `word`.
#[must_use]
pub fn mount_points(word: &str) -> Vec<String> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter(|line| line.contains(word)).map(str::to_owned).collect()
}

/// Returns the directories under `/sys/fs/cgroup` whose own name contains `word`.
#[must_use]
pub fn control_groups(word: &str) -> Vec<PathBuf> {
    let mut waiting = vec![(PathBuf::from("/sys/fs/cgroup"), 0)];
    let mut found = Vec::new();
    while let Some((path, depth)) = waiting.pop() {
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().contains(word) {
                    found.push(entry.path());
                }
                if depth < 6 {
                    waiting.push((entry.path(), depth + 1));
                }
            }
        }
    }
    found.sort();
    found
}

/// Returns every file, socket and directory under `root`, as paths relative to it.
#[must_use]
pub fn files_under(root: &Path) -> Vec<PathBuf> {
    let mut waiting = vec![root.to_owned()];
    let mut found = Vec::new();
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push(path.clone());
            }
            found.extend(path.strip_prefix(root).map(Path::to_owned));
        }
    }
    found.sort();
    found
}

/// Returns whether `there` becomes true within `patience`.
#[must_use]
pub fn within(patience: Duration, there: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        if there() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns whether every process whose command line contains `word` is gone within `patience`.
#[must_use]
pub fn vanishes(word: &str, patience: Duration) -> bool {
    within(patience, || processes_named(word).is_empty())
}
