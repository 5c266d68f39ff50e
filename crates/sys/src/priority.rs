//! Gives up a scheduling policy that goes before every ordinary process of the machine.

use std::io;

/// Makes this thread an ordinary one to the scheduler if it is a real-time one, sched(7). Every process may do that.
///
/// # Errors
/// When `sched_setscheduler(2)` fails.
pub fn leave_real_time() -> io::Result<()> {
    // SAFETY: takes and returns numbers.
    let policy = unsafe { libc::sched_getscheduler(0) };
    if !matches!(
        policy & !libc::SCHED_RESET_ON_FORK,
        libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE
    ) {
        return Ok(());
    }
    let ordinary = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads the one number of the structure, which outlives the call.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const ordinary) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_time_thread_becomes_an_ordinary_one() {
        // A policy is a thread's own.
        let policy = std::thread::spawn(|| {
            let first = libc::sched_param { sched_priority: 1 };
            // SAFETY: the kernel reads the one number of the structure, which outlives the call.
            let made = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const first) };
            // SAFETY: takes and returns numbers.
            let policy = || unsafe { libc::sched_getscheduler(0) };
            // Without root, or in a control group without real time, there is none to be had.
            assert!(made != 0 || policy() == libc::SCHED_FIFO);
            leave_real_time().unwrap();
            policy()
        });
        assert_eq!(policy.join().unwrap(), libc::SCHED_OTHER);
    }
}
