//! Runs work in a short-lived child process, so that what it reads is never in the memory that a sandbox is cloned from. Only its answer
//! comes back.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;

use rustix::pipe::{PipeFlags, pipe_with};
use sys::privilege;
use sys::process::{self, Exit};

use crate::error::Error;

/// The largest answer that is read.
const LARGEST: u64 = 32 << 20;

/// Runs `work` in a fork of this process and returns its answer.
///
/// # Errors
/// When the fork fails, or the child ends before it has answered.
pub fn apart(what: &'static str, work: impl FnOnce() -> Vec<u8>) -> Result<Vec<u8>, Error> {
    let fail = |source| Error::Start { what, source };
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| fail(errno.into()))?;
    let child = process::fork(|forked| {
        let shut = process::die_with_parent()
            .and_then(|()| privilege::undumpable())
            .and_then(|()| forked.close_all_but(&[write.as_fd()]));
        let told = shut.and_then(|()| File::from(write.try_clone()?).write_all(&work()));
        i32::from(told.is_err())
    })
    .map_err(fail)?;
    drop(write);
    let mut answer = Vec::new();
    let heard = File::from(read).take(LARGEST).read_to_end(&mut answer);
    let ended = child.wait().map_err(fail)?;
    heard.map_err(fail)?;
    match ended {
        Exit::Code(0) => Ok(answer),
        _ => Err(fail(io::ErrorKind::UnexpectedEof.into())),
    }
}
