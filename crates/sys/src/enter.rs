//! A child that is born into namespaces which are there already, and into a pid namespace of its own below them.
//!
//! ```text
//! parent ── clone(VM, VFORK) ──► go-between: setns(user, net, ipc, uts)
//!    │ waits                         └── clone3(PARENT, NEWPID) ──► child, the parent's own
//! ```
//! This process cannot enter a user namespace and come back. So somebody enters it who shares its memory, and makes from there a
//! child with a copy of it, whose parent this process is.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

use crate::held::Held;
use crate::process::{Child, CloneArgs, Namespaces, refuse_threads, run_and_exit};

/// Room for the child, as a process has for its first thread; nothing is taken before it is used.
const STACK: usize = 8 << 20;
/// Below it: whoever needs more meets a fault and not somebody's memory.
const GUARD: usize = 4 << 10;

/// What the go-between is told, and what it answers.
struct Errand<F> {
    child: Option<F>,
    namespaces: RawFd,
    entered: libc::c_int,
    args: CloneArgs,
    answer: Result<i32, i32>,
}

/// Starts a child in the namespaces that are held, in a new pid namespace, and in a cgroup of version 2 where one is given; runs
/// `child` in it, which is told what is left to unshare. Where that cannot be done, `child` is given back, and of it nothing runs.
///
/// # Errors
/// When this process has more than one thread, the namespaces could not be made, or one cannot enter them.
pub fn clone_into<F: FnOnce(Namespaces) -> i32>(
    held: &Held,
    cgroup: Option<BorrowedFd<'_>>,
    child: F,
) -> Result<Child, (io::Error, F)> {
    let ready = refuse_threads().and_then(|()| held.made()).and_then(|()| Stack::map());
    let stack = match ready {
        Ok(stack) => stack,
        Err(error) => return Err((error, child)),
    };
    let mut args = CloneArgs::new(Namespaces::PID, cgroup);
    // The end of such a child is told as the go-between's own is.
    args.flags |= libc::CLONE_PARENT as u64;
    let namespaces = held.pidfd().as_raw_fd();
    let entered = libc::CLONE_NEWUSER | Namespaces::AHEAD.bits();
    let mut errand = Errand { child: Some(child), namespaces, entered, args, answer: Err(libc::EIO) };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: this process waits until the go-between has ended, which has a stack of its own and touches only the errand; the
    // child has a copy of all memory, the stack included, and one thread as this process has.
    let between = unsafe { libc::clone(go_between::<F>, stack.top(), flags, (&raw mut errand).cast()) };
    if let Some(between) = Pid::from_raw(between).filter(|_| between > 0) {
        wait_for(between);
    } else {
        errand.answer = Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    }
    drop(stack);
    let born = errand.answer.map_err(io::Error::from_raw_os_error).and_then(|pid| {
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
        // Not waited for yet, so the number is still its own.
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Child::of(pid, pidfd)),
            Err(errno) => {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
                wait_for(pid);
                Err(errno.into())
            }
        }
    });
    match (born, errand.child) {
        (Err(error), Some(child)) => Err((error, child)),
        (Err(error), None) => unreachable!("only the child takes it, from its own memory: {error}"),
        (Ok(born), _) => Ok(born),
    }
}

fn wait_for(child: Pid) {
    while let Err(rustix::io::Errno::INTR) = rustix::process::waitpid(Some(child), WaitOptions::empty()) {}
}

/// The go-between's life, and the beginning of the child's.
extern "C" fn go_between<F: FnOnce(Namespaces) -> i32>(errand: *mut libc::c_void) -> libc::c_int {
    // SAFETY: its owner waits for this process, and touches it afterwards only.
    let errand = unsafe { &mut *errand.cast::<Errand<F>>() };
    // SAFETY: a descriptor and flags that name namespaces.
    if unsafe { libc::setns(errand.namespaces, errand.entered) } != 0 {
        errand.answer = Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
        return 0;
    }
    // SAFETY: without CLONE_VM the child is a copy with its own memory, this stack included, so that the stack may stay the same.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const errand.args, size_of::<CloneArgs>()) };
    match pid {
        -1 => errand.answer = Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        0 => match errand.child.take() {
            Some(child) => run_and_exit(|| child(Namespaces::MOUNTS)),
            None => return 1,
        },
        pid => errand.answer = i32::try_from(pid).map_err(|_| libc::EIO),
    }
    0
}

/// Memory for a stack, with a guard below it.
struct Stack(*mut libc::c_void);

impl Stack {
    fn map() -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::STACK;
        // SAFETY: new memory, anywhere; the guard is its own lowest part.
        unsafe {
            let read_write = ProtFlags::READ | ProtFlags::WRITE;
            let at = rustix::mm::mmap_anonymous(std::ptr::null_mut(), STACK, read_write, flags)?;
            let stack = Self(at);
            rustix::mm::mprotect(at, GUARD, MprotectFlags::empty())?;
            Ok(stack)
        }
    }

    fn top(&self) -> *mut libc::c_void {
        self.0.wrapping_byte_add(STACK)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nobody is on it in this process.
        let _ = unsafe { rustix::mm::munmap(self.0, STACK) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threaded_process_is_refused_and_gets_its_child_back() {
        // The test harness runs this in a thread beside its main one.
        let held = Held::begin(Namespaces::AHEAD, Vec::new()).unwrap();
        let Err((error, child)) = clone_into(&held, None, |_| 7) else { panic!("it was made") };
        assert!(error.to_string().contains("several threads"));
        assert_eq!(child(Namespaces::NONE), 7);
    }
}
