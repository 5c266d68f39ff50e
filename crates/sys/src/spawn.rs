//! Starts a program by `posix_spawn(3)`, which shares memory with its parent until the exec, so its cost does not grow with the
//! parent's size.

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::process::Pid;

/// A program to start.
#[derive(Debug)]
pub struct Command<'a> {
    /// The absolute path of the program.
    pub program: &'a CStr,
    /// Its arguments, the program's name first.
    pub arguments: &'a [CString],
    /// Its environment, each entry `NAME=value`.
    pub environment: &'a [CString],
    /// Its standard streams.
    pub streams: Streams<'a>,
}

/// The standard streams of a program, which leads a session of its own in either case.
#[derive(Debug)]
pub enum Streams<'a> {
    /// Input, output and error.
    Descriptors([BorrowedFd<'a>; 3]),
    /// A terminal, which becomes the controlling one.
    Terminal {
        /// The path of the terminal.
        path: &'a CStr,
        /// The standard error, if it is not the terminal as well.
        errors: Option<BorrowedFd<'a>>,
    },
}

/// glibc's `POSIX_SPAWN_SETSID`, spawn.h.
const SETSID: libc::c_short = 0x80;

impl Command<'_> {
    /// Starts the program with every signal at its default disposition and none blocked.
    ///
    /// # Errors
    /// The error of the exec itself (`ENOENT`, `EACCES`, `ENOEXEC`, …), or of a step before it.
    pub fn start(&self) -> io::Result<Pid> {
        let arguments = pointers(self.arguments);
        let environment = pointers(self.environment);
        let mut actions = MaybeUninit::uninit();
        let mut attributes = MaybeUninit::uninit();
        let mut pid: libc::pid_t = 0;
        // SAFETY: both objects are initialised by their init functions before any other use and destroyed once; every
        // pointer handed over is a NUL-terminated string or list that lives until the call returns.
        let result = unsafe {
            libc::posix_spawn_file_actions_init(actions.as_mut_ptr());
            libc::posix_spawnattr_init(attributes.as_mut_ptr());
            let result = self.describe(actions.as_mut_ptr(), attributes.as_mut_ptr()).and_then(|()| {
                check(libc::posix_spawn(
                    &raw mut pid,
                    self.program.as_ptr(),
                    actions.as_ptr(),
                    attributes.as_ptr(),
                    arguments.as_ptr().cast(),
                    environment.as_ptr().cast(),
                ))
            });
            libc::posix_spawn_file_actions_destroy(actions.as_mut_ptr());
            libc::posix_spawnattr_destroy(attributes.as_mut_ptr());
            result
        };
        result?;
        Pid::from_raw(pid).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Writes descriptors, signals and session into the spawn objects.
    ///
    /// # Safety
    /// Both pointers must be to initialised objects.
    unsafe fn describe(
        &self,
        actions: *mut libc::posix_spawn_file_actions_t,
        attributes: *mut libc::posix_spawnattr_t,
    ) -> io::Result<()> {
        let mut all = MaybeUninit::uninit();
        let mut none = MaybeUninit::uninit();
        // SAFETY: the caller guarantees that the objects are initialised; the signal sets are initialised before they are read;
        // the terminal's path is NUL-terminated.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::sigemptyset(none.as_mut_ptr());
            let flags =
                libc::POSIX_SPAWN_SETSIGDEF as libc::c_short | libc::POSIX_SPAWN_SETSIGMASK as libc::c_short;
            check(libc::posix_spawnattr_setflags(attributes, flags | SETSID))?;
            check(libc::posix_spawnattr_setsigdefault(attributes, all.as_ptr()))?;
            check(libc::posix_spawnattr_setsigmask(attributes, none.as_ptr()))?;
            match &self.streams {
                Streams::Terminal { path, errors } => {
                    // A session leader's first open of a terminal makes it the controlling one.
                    check(libc::posix_spawn_file_actions_addopen(
                        actions,
                        0,
                        path.as_ptr(),
                        libc::O_RDWR,
                        0,
                    ))?;
                    check(libc::posix_spawn_file_actions_adddup2(actions, 0, 1))?;
                    let errors = errors.map_or(0, |errors| errors.as_raw_fd());
                    check(libc::posix_spawn_file_actions_adddup2(actions, errors, 2))?;
                }
                Streams::Descriptors(sources) => {
                    for (target, source) in (0..).zip(sources) {
                        check(libc::posix_spawn_file_actions_adddup2(actions, source.as_raw_fd(), target))?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn pointers(list: &[CString]) -> Vec<*const c_char> {
    list.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}
