//! Starts a child inside existing namespaces, and in a new pid namespace below them.
//!
//! ```text
//! parent ── clone(VM, VFORK) ──► go-between: setns(user, net, ipc, uts)
//!    │ waits                         └── clone3(PARENT, NEWPID) ──► child, the parent's own
//! ```
//! This process cannot enter a user namespace and come back. So a go-between that shares its memory enters the namespace, and
//! from there makes a child that has a copy of the memory. `CLONE_PARENT` makes this process the child's parent.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::process::Pid;

use crate::holder::Holder;
use crate::process::{Child, CloneArgs, Forked, Namespaces, refuse_threads, run_and_exit, wait_for};

/// The size of the child's stack, as large as that of a process's first thread. The kernel allocates pages as they are used.
const STACK: usize = 8 << 20;
/// The size of the guard below the stack: an overflow faults instead of writing to other memory.
const GUARD: usize = 4 << 10;

/// The go-between's task and its answer.
struct Errand<F> {
    child: Option<F>,
    namespaces: RawFd,
    entered: libc::c_int,
    args: CloneArgs,
    answer: Result<i32, i32>,
}

/// Starts a child in the held namespaces, in a new pid namespace, and in a cgroup of version 2 if one is given. The child runs
/// `child`, which receives the namespaces that are left to unshare.
///
/// # Errors
/// When this process has more than one thread, the namespaces could not be made, or they cannot be entered. The error comes with
/// `child`, which has not run.
pub fn clone_into<F: FnOnce(Namespaces, Forked) -> i32>(
    holder: &Holder,
    cgroup: Option<BorrowedFd<'_>>,
    child: F,
) -> Result<Child, (io::Error, F)> {
    let ready = refuse_threads().and_then(|()| holder.made()).and_then(|()| Stack::map());
    let stack = match ready {
        Ok(stack) => stack,
        Err(error) => return Err((error, child)),
    };
    let mut args = CloneArgs::new(Namespaces::PID, cgroup);
    // With CLONE_PARENT the child's exit signal is that of the go-between.
    args.flags |= libc::CLONE_PARENT as u64;
    let namespaces = holder.pidfd().as_raw_fd();
    let entered = libc::CLONE_NEWUSER | Namespaces::AHEAD.bits();
    let mut errand = Errand { child: Some(child), namespaces, entered, args, answer: Err(libc::EIO) };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: this process, which has one thread, waits until the go-between has ended; the go-between has a stack of its own and
    // touches only the errand, and this thread's `errno`; the child has a copy of all memory, the stack included.
    let between = unsafe { libc::clone(go_between::<F>, stack.top(), flags, (&raw mut errand).cast()) };
    if let Some(between) = Pid::from_raw(between).filter(|_| between > 0) {
        wait_for(between);
    } else {
        errand.answer = Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    }
    drop(stack);
    let born = errand
        .answer
        .map_err(io::Error::from_raw_os_error)
        .and_then(|pid| Child::of(Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?));
    match (born, errand.child) {
        (Err(error), Some(child)) => Err((error, child)),
        (Err(error), None) => unreachable!("only the child takes it, from its own memory: {error}"),
        (Ok(born), _) => Ok(born),
    }
}

/// The go-between's main function, in which the child begins as well.
extern "C" fn go_between<F: FnOnce(Namespaces, Forked) -> i32>(errand: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the errand's owner waits for this process, and touches the errand only afterwards.
    let errand = unsafe { &mut *errand.cast::<Errand<F>>() };
    // SAFETY: the call takes a descriptor, and flags that name namespaces.
    if unsafe { libc::setns(errand.namespaces, errand.entered) } != 0 {
        errand.answer = Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
        return 0;
    }
    // SAFETY: without CLONE_VM the child is a copy with its own memory, this stack included, so it can use the same stack.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const errand.args, size_of::<CloneArgs>()) };
    match pid {
        -1 => errand.answer = Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        0 => match errand.child.take() {
            Some(child) => run_and_exit(|| child(Namespaces::MOUNTS, Forked(()))),
            None => return 1,
        },
        pid => errand.answer = i32::try_from(pid).map_err(|_| libc::EIO),
    }
    0
}

/// Memory for a stack, with a guard at its lower end.
struct Stack(*mut libc::c_void);

impl Stack {
    fn map() -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::STACK;
        // SAFETY: the mapping is new, at an address of the kernel's choice; the guard is its lowest part.
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
        // SAFETY: `map` mapped it, and nothing in this process uses it as a stack any more.
        let _ = unsafe { rustix::mm::munmap(self.0, STACK) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threaded_process_is_refused_and_gets_its_child_back() {
        // The test harness runs this in a thread beside its main one.
        let holder = Holder::begin(Namespaces::AHEAD, Vec::new()).unwrap();
        let Err((error, child)) = clone_into(&holder, None, |_, _| 7) else { panic!("it was made") };
        assert!(error.to_string().contains("several threads"));
        assert_eq!(child(Namespaces::NONE, Forked(())), 7);
    }
}
