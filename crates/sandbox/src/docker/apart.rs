//! Work with an engine in a process of its own, for one that forks later: an asynchronous runtime leaves descriptors behind that a
//! copy of the process would have to know.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::pipe::PipeFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sys::{descriptor, process};

use crate::error::Error;

/// The longest answer.
const LONGEST: u64 = 4 << 20;

/// What went wrong, and what would help.
type Trouble = (String, Option<String>);

/// Carries work out to its end in a process of its own; what it came to is told by a pipe.
///
/// # Errors
/// What the work gives, by its name, and when there can be no such process.
pub(super) fn apart<T, W>(work: impl FnOnce() -> W) -> Result<T, Error>
where
    T: Serialize + DeserializeOwned,
    W: Future<Output = Result<T, Error>>,
{
    let fail = |source: io::Error| Error::Start { what: "the engine's client", source };
    let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|errno| fail(errno.into()))?;
    let child = process::fork(|| {
        let tied = process::die_with_parent().and_then(|()| descriptor::close_all_but(&[theirs.as_fd()]));
        i32::from(tied.and_then(|()| answer(&theirs, work)).is_err())
    })
    .map_err(fail)?;
    drop(theirs);
    let mut told = Vec::new();
    let read = File::from(ours).take(LONGEST).read_to_end(&mut told);
    child.wait().map_err(fail)?;
    read.map_err(fail)?;
    let answer: Result<T, Trouble> = serde_json::from_slice(&told).map_err(|error| fail(error.into()))?;
    answer.map_err(|(what, remedy)| Error::Refused { what, remedy })
}

fn answer<T: Serialize, W: Future<Output = Result<T, Error>>>(
    to: &OwnedFd,
    work: impl FnOnce() -> W,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(async { work().await }).map_err(|error| match error {
        Error::Refused { what, remedy } => (what, remedy),
        other => (other.to_string(), other.remedy().map(str::to_owned)),
    });
    File::from(to.try_clone()?).write_all(&serde_json::to_vec(&answer)?)
}
