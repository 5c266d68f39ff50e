//! The caller's own group of version 2, where it was delegated and holds nothing but the caller: groups are then made in it, and the limits of
//! who started the caller hold for them. A group that holds processes has no controllers to hand down, so the caller first steps into one
//! below; while it is there, nobody else can be put into its own (`EBUSY`), so it steps back once its groups are gone.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::{ROOT, write};
use crate::kernel_file;

/// The name of the group that the caller steps into.
const STEPPED_INTO: &str = "lockgate.caller";
/// What systemd marks a group with that it leaves to its unit (`Delegate=`). Root alone sees the first, and older versions write only that.
const MARKS: [&str; 2] = ["trusted.delegate", "user.delegate"];
/// How often the caller's processes are looked for, as one may be made meanwhile.
const LOOKS: u32 = 3;
/// How often, and with which pauses, it is tried to remove the group below.
const LAST_LOOKS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(1);

/// Whether a group was left to the processes in it. Who merely may write to it, as root to all, could break what its owner does in it.
/// A container's, at the root of its namespace, is its own; the root of all has no type.
pub(super) fn is_delegated(group: &Path) -> bool {
    let is_marked = |mark: &&str| {
        let mut value = [0; 1];
        rustix::fs::getxattr(group, *mark, &mut value) == Ok(1) && &value == b"1"
    };
    (group == Path::new(ROOT) && group.join("cgroup.type").exists()) || MARKS.iter().any(is_marked)
}

/// Whether a group holds this process and processes that it started, and nothing else.
pub(super) fn holds_nobody_else(group: &Path) -> bool {
    processes(group).is_some_and(|all| !all.is_empty() && all.iter().all(|process| is_ours(*process)))
}

/// Moves this process and those that it started into a group below, and hands down the controllers.
///
/// # Errors
/// When somebody else came meanwhile, or the kernel refuses.
pub(super) fn step_below(group: &Path) -> io::Result<()> {
    let below = group.join(STEPPED_INTO);
    match std::fs::create_dir(&below) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let mut handed = super::hand_down_all(group);
    for _ in 0..LOOKS {
        if handed.is_ok() {
            break;
        }
        for process in processes(group).unwrap_or_default().into_iter().filter(|process| is_ours(*process)) {
            // One that has ended meanwhile is not there to be moved.
            let _ = write(&below, "cgroup.procs", &process.to_string());
        }
        handed = super::hand_down_all(group);
    }
    handed
}

/// Takes the controllers back and moves this process and those that it started back, if it had stepped below. Does nothing while another
/// run's group is there, which needs them.
pub(super) fn step_back(group: &Path) {
    let below = group.join(STEPPED_INTO);
    if !below.exists()
        || !is_delegated(group)
        || write(group, "cgroup.subtree_control", "-memory -cpu -pids").is_err()
    {
        return;
    }
    for _ in 0..LAST_LOOKS {
        for process in processes(&below).unwrap_or_default().into_iter().filter(|process| is_ours(*process)) {
            let _ = write(group, "cgroup.procs", &process.to_string());
        }
        // One that is just ending may still be in it.
        match std::fs::remove_dir(&below) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::sleep(PAUSE),
            _ => return,
        }
    }
}

/// Returns the processes in a group. One that this process cannot see is 0.
fn processes(group: &Path) -> Option<Vec<u32>> {
    let list = kernel_file::read(group.join("cgroup.procs")).ok()?;
    list.lines().map(|line| line.parse().ok()).collect()
}

fn is_ours(process: u32) -> bool {
    let own = std::process::id();
    process == own || parent(process) == Some(own)
}

/// Returns the parent of a process, from the fourth field of `/proc/PID/stat`: the second is a name in parentheses, with anything in it.
fn parent(process: u32) -> Option<u32> {
    let stat = kernel_file::read(format!("/proc/{process}/stat")).ok()?;
    let (_, behind) = stat.rsplit_once(')')?;
    behind.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_caller_and_its_children_are_ours() {
        let group = tempfile::tempdir().unwrap();
        let holds = |list: String| {
            std::fs::write(group.path().join("cgroup.procs"), list).unwrap();
            holds_nobody_else(group.path())
        };
        let (own, above) = (std::process::id(), parent(std::process::id()).unwrap());
        assert!(holds(format!("{own}\n")));
        assert!(!holds(format!("{own}\n{above}\n")) && !holds(format!("{above}\n")));
        assert!(!holds(String::new()), "it is not even the caller's");
        assert!(!holds(format!("0\n{own}\n")), "one of another namespace");
    }
}
