//! A process of its own under a filter that refuses one system call, for the tests of what is done without it.

use std::io;

use super::super::{Action, Filter, Profile, Rule, Verdict, install};
use crate::process::Exit;

/// The exit codes for `true` and `false`, above every error number.
const HOLDS: i32 = 200;
const DOES_NOT: i32 = 201;

/// Runs `child` where this call fails with this error, and returns what it returns, or its error's number.
pub(crate) fn refusing(
    number: libc::c_long,
    errno: i32,
    child: impl FnOnce() -> io::Result<bool>,
) -> Result<bool, i32> {
    let verdict = Verdict::Always(Action::Errno(errno as u16));
    let filter = Filter::compile(&Profile {
        unknown: Action::Allow,
        rules: &[Rule { number: number as u32, verdict }],
    });
    // SAFETY: the C library's own fork keeps its locks consistent in the copy, which has one thread, and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", io::Error::last_os_error());
    if pid == 0 {
        let code = match install(&filter).and_then(|()| child()) {
            Ok(true) => HOLDS,
            Ok(false) => DOES_NOT,
            Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
        };
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above; `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    match Exit::of(
        libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
    ) {
        Some(Exit::Code(HOLDS)) => Ok(true),
        Some(Exit::Code(DOES_NOT)) => Ok(false),
        Some(Exit::Code(errno)) => Err(errno),
        other => panic!("{other:?}"),
    }
}
