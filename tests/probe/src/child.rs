//! Runs one attempt in a forked child, so that its changes and crashes stay there, and reads how it ended.
//! The parent waits for a limited time and never leaves the child behind.

use std::io;
use std::time::{Duration, Instant};

/// How the child ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The attempt returned this value; a negative one is an errno, as the kernel gives it.
    Value(i64),
    /// The child was killed by this signal before it could answer.
    Signal(i32),
    /// It gave no answer in time and was killed.
    Silent,
}

/// Calls `attempt` in a child and reports what it returned. `attempt` must only make system calls.
pub(crate) fn attempt(patience: Duration, attempt: impl FnOnce() -> i64) -> io::Result<End> {
    let mut ends = [0; 2];
    // SAFETY: `ends` is a valid array of two descriptors for the kernel to fill.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the probe is single-threaded when it comes here, so the child is an ordinary copy.
    let child = unsafe { libc::fork() };
    if child < 0 {
        let error = io::Error::last_os_error();
        close(ends[0]);
        close(ends[1]);
        return Err(error);
    }
    if child == 0 {
        let value = attempt().to_ne_bytes();
        // SAFETY: the buffer is eight valid bytes; `_exit` ends the child without running the parent's clean-up.
        unsafe {
            libc::write(ends[1], value.as_ptr().cast(), value.len());
            libc::_exit(0);
        }
    }
    close(ends[1]);
    let end = wait(child, ends[0], patience);
    close(ends[0]);
    end
}

/// Makes a raw system call; a failure comes back as the negative errno.
pub(crate) fn syscall(number: i64, arguments: [i64; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the callers choose arguments the kernel must reject or that touch nothing of this process.
    let value = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if value == -1 { -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { value }
}

/// Waits for `child` at most `patience`, then kills it. Returns its raw wait status, or `None` when it was killed.
pub(crate) fn reap(child: libc::pid_t, patience: Duration) -> io::Result<Option<i32>> {
    let deadline = Instant::now() + patience;
    let mut status = 0;
    loop {
        // SAFETY: `status` is a valid place for the wait status.
        match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } {
            -1 => return Err(io::Error::last_os_error()),
            0 if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            0 => {
                // SAFETY: `child` is our own unreaped child, so its id cannot belong to another process.
                unsafe {
                    libc::kill(child, libc::SIGKILL);
                    libc::waitpid(child, &mut status, 0);
                }
                return Ok(None);
            }
            _ => return Ok(Some(status)),
        }
    }
}

fn wait(child: libc::pid_t, answer: i32, patience: Duration) -> io::Result<End> {
    let Some(status) = reap(child, patience)? else { return Ok(End::Silent) };
    if libc::WIFSIGNALED(status) {
        return Ok(End::Signal(libc::WTERMSIG(status)));
    }
    let mut value = [0u8; 8];
    // SAFETY: the buffer holds eight bytes; the child has ended, so this cannot block.
    let read = unsafe { libc::read(answer, value.as_mut_ptr().cast(), value.len()) };
    if read == 8 { Ok(End::Value(i64::from_ne_bytes(value))) } else { Ok(End::Silent) }
}

fn close(descriptor: i32) {
    // SAFETY: the descriptor was made here and is closed once.
    unsafe { libc::close(descriptor) };
}
