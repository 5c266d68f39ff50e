//! Finds the processes of a run from outside: those beneath its command line, and its sidecar among them.

/// Returns the process ids beneath `parent`, at any depth.
///
/// # Panics
/// Without /proc.
#[must_use]
pub fn descendants(parent: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let id = entry.file_name().to_string_lossy().parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((id, stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?))
        })
        .collect();
    let mut found = vec![parent];
    let mut at = 0;
    while at < found.len() {
        let next = found[at];
        found.extend(parents.iter().filter(|(_, above)| *above == next).map(|(id, _)| *id));
        at += 1;
    }
    found.split_off(1)
}

/// Returns the sidecar of the only run of the process `id`, a command line.
///
/// # Panics
/// When no process, or several, can be it.
#[must_use]
pub fn sidecar(id: u32) -> u32 {
    // The sidecar is the process beneath the command line that is in no PID namespace of its own.
    let candidates = || -> Vec<u32> {
        descendants(id).into_iter().filter(|id| depth(*id) == depth(std::process::id())).collect()
    };
    let mut sidecars = candidates();
    // The command may have begun before the helpers of its start were gone.
    for _ in 0..100 {
        if sidecars.len() == 1 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        sidecars = candidates();
    }
    assert!(sidecars.len() == 1, "which of {sidecars:?} is the sidecar?");
    sidecars[0]
}

/// Returns how many PID namespaces, seen from here, contain a process; none when it has ended.
fn depth(id: u32) -> usize {
    ids(id).len()
}

/// Returns the id of a process in its innermost PID namespace.
#[must_use]
pub fn innermost(id: u32) -> Option<u32> {
    ids(id).last().copied()
}

/// Returns the ids of a process, from the outermost seen from here to the innermost.
fn ids(id: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    line.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}
