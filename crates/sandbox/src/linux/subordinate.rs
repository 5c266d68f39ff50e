//! Maps subordinate ids: the parent runs the set-user-id programs that may, while the child waits for the result.
//!
//! ```text
//! parent ── newgidmap, newuidmap ──► user namespace of the child
//!    └───────── 'm' | '1' why ─────► child: goes on with all of them | with its own id alone
//! ```
//! The programs are started by their absolute path, with an empty environment, and with a timeout. If they refuse, nothing else is tried.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use sys::process::{self, Exit, Namespaces};
use sys::spawn::{Command, Streams};
use sys::{descriptor, privilege};

use crate::caller::Caller;
use crate::error::Error;
use crate::plan::ids::{Identity, MappedId};
use crate::subordinate::{SubordinateIds, programs};

/// The longest time for one of the programs, which takes a few milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest part of a program's output that is passed on.
const MOST_TOLD: usize = 300;
/// The messages: all ids are mapped; or the child maps its one id itself, with the reason.
const MAPPED: &[u8] = b"m";
const ALONE: u8 = b'1';
/// The caller's id inside a process that handles files and runs no command. No image has this id.
pub(super) const CALLER: u32 = SubordinateIds::INSIDE;

/// The parent's side: maps the ids of a run's init, and reports the result to it.
///
/// # Errors
/// When they cannot be mapped, and the image's files depend on them.
pub(super) fn map(init: Pid, identity: &Identity, hand: &OwnedFd) -> Result<(), Error> {
    let Some(ids) = identity.subordinate else { return Ok(()) };
    let mapped = map_all(init, ids, identity.uid, identity.gid);
    let told = match mapped {
        Ok(()) => descriptor::send(hand, MAPPED, &[]),
        Err(error) if identity.owners_kept => {
            return Err(Error::Refused {
                what: format!("the ids that own the image's files cannot be mapped: {error}"),
                remedy: Some("see what `lockgate doctor` says of subordinate ids".into()),
            });
        }
        Err(error) => descriptor::send(hand, &[&[ALONE], error.to_string().as_bytes()].concat(), &[]),
    };
    told.map_err(|source| Error::Handshake { whom: "init", source })
}

/// The child's side: waits until all ids are mapped. Returns the reason if they are not, and the child is to map its own id alone.
pub(super) fn await_maps(hand: &OwnedFd) -> io::Result<Result<(), String>> {
    let mut buffer = [0; MOST_TOLD * 4];
    match descriptor::receive(hand, &mut buffer)?.0 {
        MAPPED => Ok(Ok(())),
        [ALONE, why @ ..] => Ok(Err(String::from_utf8_lossy(why).into_owned())),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Runs `work` in a child with root's rights over the caller's subordinate ids, and no others, to handle files that belong to them. `work`
/// returns the child's exit status.
///
/// # Errors
/// When the ids cannot be mapped. `work` has not run then.
pub fn within_subordinate_ids(ids: SubordinateIds, work: impl FnOnce() -> i32) -> io::Result<Exit> {
    let (ours, theirs) = descriptor::message_pair()?;
    let child = process::clone(Namespaces::USER, None, move |_| {
        // A process with credentials is undumpable, so its ids cannot be mapped from outside. This copy is dumpable for the moment.
        let ready = process::die_with_parent().and_then(|()| privilege::dumpable());
        let told =
            ready.and_then(|()| descriptor::send(&theirs, MAPPED, &[])).and_then(|()| await_maps(&theirs));
        if privilege::undumpable().is_err() || !matches!(told, Ok(Ok(()))) {
            return 1;
        }
        drop(theirs);
        work()
    })?;
    let caller = |id| MappedId { inside: CALLER, outside: id };
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mapped = await_maps(&ours).and_then(|_| map_all(child.pid(), ids, caller(uid), caller(gid)));
    if let Err(error) = mapped.and_then(|()| descriptor::send(&ours, MAPPED, &[])) {
        let _ = child.signal(Signal::KILL);
        let _ = child.wait();
        return Err(error);
    }
    child.wait()
}

/// Removes a directory with files of subordinate ids by the given function.
pub(crate) fn remove(directory: &Path, remove: fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let ids = Caller::current().map(|caller| SubordinateIds::of(&caller));
    let Ok(Ok(ids)) = ids else { return Err(io::ErrorKind::PermissionDenied.into()) };
    let removed = within_subordinate_ids(ids, || i32::from(remove(directory).is_err()))?;
    if removed == Exit::Code(0) { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Maps all ids, groups first: if those are refused, nothing is mapped yet, and a single id still can be.
fn map_all(pid: Pid, ids: SubordinateIds, uid: MappedId, gid: MappedId) -> io::Result<()> {
    let search = std::env::var("PATH").unwrap_or_default();
    let [map_users, map_groups] = programs(&search).map_err(|missing| io::Error::other(missing.why))?;
    run(&map_groups, pid, &lines(ids.groups, gid))?;
    run(&map_users, pid, &lines(ids.users, uid))
}

/// Returns the lines of an id map: all ids are subordinate, except that of the caller.
fn lines(first: u32, MappedId { inside, outside }: MappedId) -> Vec<[u32; 3]> {
    let all = SubordinateIds::INSIDE;
    let below = [0, first, inside.min(all)];
    let after = inside.saturating_add(1);
    let above = [after, first.saturating_add(after), all.saturating_sub(after)];
    [below, [inside, outside, 1], above].into_iter().filter(|[.., count]| *count > 0).collect()
}

/// Runs one of the programs to its end.
fn run(program: &CStr, pid: Pid, map: &[[u32; 3]]) -> io::Result<()> {
    let numbers = map.iter().flatten().map(ToString::to_string);
    let words = [pid.as_raw_nonzero().to_string()].into_iter().chain(numbers);
    let arguments: Vec<CString> =
        [Ok(program.to_owned())].into_iter().chain(words.map(CString::new)).collect::<Result<_, _>>()?;
    let (said, says) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let streams = Streams::Descriptors([null.as_fd(), null.as_fd(), says.as_fd()]);
    let started = Command { program, arguments: &arguments, environment: &[], streams }.start()?;
    let succeeded = ended_well(started)?;
    if succeeded {
        return Ok(());
    }
    let mut buffer = [0; MOST_TOLD];
    let length = rustix::io::read(&said, &mut buffer).unwrap_or(0);
    let told: String =
        String::from_utf8_lossy(&buffer[..length]).chars().filter(|c| !c.is_control()).collect();
    let name = Path::new(std::ffi::OsStr::new(program.to_str().unwrap_or_default())).display();
    Err(io::Error::other(if told.is_empty() { format!("{name} refused") } else { told }))
}

/// Waits for the end of a program, and kills it if it takes too long. Returns whether it exited with 0.
fn ended_well(pid: Pid) -> io::Result<bool> {
    let opened = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    let deadline = Instant::now() + PATIENCE;
    let mut ready = 0;
    while ready == 0 && Instant::now() < deadline {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
        let mut gone = [PollFd::new(&opened, PollFlags::IN)];
        // After an interruption, wait again.
        ready = rustix::event::poll(&mut gone, left.as_ref()).unwrap_or(0);
    }
    if ready == 0 {
        let _ = rustix::process::pidfd_send_signal(&opened, Signal::KILL);
    }
    let status = rustix::process::waitpid(Some(pid), WaitOptions::empty())?;
    Ok(status.is_some_and(|(_, status)| status.exit_status() == Some(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caller_is_one_of_those_inside() {
        let lines = |first, inside, outside| lines(first, MappedId { inside, outside });
        assert_eq!(lines(100_000, 999, 1000), [[0, 100_000, 999], [999, 1000, 1], [1000, 101_000, 64_535]]);
        assert_eq!(lines(100_000, 1, 7), [[0, 100_000, 1], [1, 7, 1], [2, 100_002, 65_533]]);
        assert_eq!(lines(100_000, 65_534, 7), [[0, 100_000, 65_534], [65_534, 7, 1]]);
        assert_eq!(lines(100_000, CALLER, 7), [[0, 100_000, 65_535], [65_535, 7, 1]]);
        assert_eq!(lines(100_000, 1_234_567, 7), [[0, 100_000, 65_535], [1_234_567, 7, 1]]);
    }
}
