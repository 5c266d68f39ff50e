//! CPU affinity of child processes. A kernel may start a child on its parent's processor and leave it there until the parent sleeps,
//! although another processor is idle. A parent whose child is to run in parallel moves it.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Keeps a child off this process's current processor, if it has another. Best effort.
pub(crate) fn elsewhere(child: libc::pid_t) {
    let Some(child) = Pid::from_raw(child) else { return };
    let _ = sched_getaffinity(Some(child)).and_then(|allowed| match without(allowed, sched_getcpu()) {
        Some(others) => sched_setaffinity(Some(child), &others),
        None => Ok(()),
    });
}

/// Lets a child run on every processor that this process may use. The parent that waits for it leaves its processor free.
pub(crate) fn anywhere(child: libc::pid_t) {
    let Some(child) = Pid::from_raw(child) else { return };
    let _ = sched_getaffinity(None).and_then(|allowed| sched_setaffinity(Some(child), &allowed));
}

fn without(mut allowed: CpuSet, here: usize) -> Option<CpuSet> {
    allowed.unset(here);
    (allowed.count() > 0).then_some(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_always_a_processor_left() {
        let mut two = CpuSet::new();
        two.set(0);
        assert!(without(two, 0).is_none());
        two.set(5);
        let others = without(two, 5).unwrap();
        assert!(others.is_set(0) && others.count() == 1);
        assert_eq!(without(two, 9).map(|set| set.count()), Some(2));
    }
}
