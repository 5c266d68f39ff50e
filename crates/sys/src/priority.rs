//! Gives up a scheduling policy that goes before every ordinary process of the machine.

use std::io;

/// `IOPRIO_WHO_PROCESS`, linux/ioprio.h. It means one thread.
const OF_A_THREAD: libc::c_int = 1;
/// The place of the class in a priority, and the class of real time, linux/ioprio.h.
const CLASS_SHIFT: u32 = 13;
const REAL_TIME: libc::c_long = 1;

/// Makes this thread an ordinary one to the scheduler and to disks if it is a real-time one, sched(7), ioprio_set(2). Every process may do
/// that.
///
/// # Errors
/// When `sched_setscheduler(2)` or `ioprio_set(2)` fails.
pub fn leave_real_time() -> io::Result<()> {
    // SAFETY: takes and returns numbers.
    let policy = unsafe { libc::sched_getscheduler(0) };
    if matches!(policy & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE)
    {
        let ordinary = libc::sched_param { sched_priority: 0 };
        // SAFETY: the kernel reads the one number of the structure, which outlives the call.
        done(unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const ordinary) }.into())?;
    }
    // What the scheduler's policy gives a thread at disks is gone by now. A kernel without disks has no such call.
    // SAFETY: takes and returns numbers.
    let at_disks = unsafe { libc::syscall(libc::SYS_ioprio_get, OF_A_THREAD, 0) };
    if at_disks >> CLASS_SHIFT == REAL_TIME {
        // SAFETY: takes and returns numbers.
        done(unsafe { libc::syscall(libc::SYS_ioprio_set, OF_A_THREAD, 0, 0) })?;
    }
    Ok(())
}

fn done(result: libc::c_long) -> io::Result<()> {
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

    #[test]
    fn a_real_time_thread_at_disks_becomes_an_ordinary_one() {
        // A priority is a thread's own.
        let class = std::thread::spawn(|| {
            // SAFETY: takes and returns numbers.
            let made =
                unsafe { libc::syscall(libc::SYS_ioprio_set, OF_A_THREAD, 0, REAL_TIME << CLASS_SHIFT) };
            // SAFETY: takes and returns numbers.
            let class = || unsafe { libc::syscall(libc::SYS_ioprio_get, OF_A_THREAD, 0) } >> CLASS_SHIFT;
            // Without root there is none to be had.
            assert!(made != 0 || class() == REAL_TIME);
            leave_real_time().unwrap();
            class()
        });
        assert_ne!(class.join().unwrap(), REAL_TIME);
    }
}
