//! Reads what running processes use: their descendants, processor time and memory.
//!
//! It reads `/proc` only; a process that has ended counts as nothing.

use std::collections::BTreeMap;
use std::fs;

/// Returns a process and all its descendants, itself first.
pub(crate) fn tree(root: u32) -> Vec<u32> {
    let parents = parents();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, of)| **of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

/// Returns the direct children of a process.
pub(crate) fn children(of: u32) -> Vec<u32> {
    parents().into_iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| pid).collect()
}

fn parents() -> BTreeMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, parent(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?)))
        .collect()
}

/// Returns the fourth field of `/proc/PID/stat`; the second is a name in parentheses that may hold anything, proc(5).
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Returns a process's name.
pub(crate) fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// Returns the processor time of all threads of these processes, in microseconds: the first field of `schedstat`, which counts
/// nanoseconds where `stat` counts hundredths of a second.
pub(crate) fn busy(pids: &[u32]) -> f64 {
    let threads = pids.iter().flat_map(|pid| {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks.filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok())
    });
    threads.filter_map(|text| text.split(' ').next()?.parse::<f64>().ok()).sum::<f64>() / 1000.0
}

/// Memory of several processes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    /// Private pages that no file backs, in MiB.
    pub(crate) anonymous: f64,
    /// The proportional share of all pages they use, in MiB: a page shared by n processes counts one nth for each.
    pub(crate) proportional: f64,
}

/// Returns the memory of these processes together, or nothing if one of them cannot be read.
pub(crate) fn memory(pids: &[u32]) -> Option<Memory> {
    let mut all = Memory::default();
    for pid in pids {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        all.anonymous += field(&text, "Anonymous:")?;
        all.proportional += field(&text, "Pss:")?;
    }
    Some(all)
}

/// Returns a field of `smaps_rollup`, which is in KiB, in MiB.
fn field(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_a_parenthesis() {
        assert_eq!(parent("12 (a) b (c) S 7 12 12 0 -1"), Some(7));
        assert_eq!(parent("nonsense"), None);
    }

    #[test]
    fn our_own_process_is_busy_and_has_memory() {
        let own = std::process::id();
        assert!(busy(&[own]) > 0.0);
        let memory = memory(&[own]).unwrap();
        assert!(memory.anonymous > 0.0 && memory.proportional > 0.0);
        let mut child = std::process::Command::new("sleep").arg("5").spawn().unwrap();
        assert!(tree(own).contains(&child.id()) && children(own).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_cannot_be_looked_into_is_no_figure() {
        assert!(memory(&[u32::MAX]).is_none());
        assert!(busy(&[u32::MAX]).abs() < f64::EPSILON);
    }
}
