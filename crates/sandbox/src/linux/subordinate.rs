//! Mapping subordinate ids: the parent has it done by the programs that may, while whoever is to have them waits for word of it.
//!
//! ```text
//! parent ── newgidmap, newuidmap ──► user namespace of the child
//!    └───────── 'm' | '1' why ─────► child: goes on with all of them | with its own id alone
//! ```
//! The programs are started by their whole path, with nothing in their environment, and for a bounded time. What they refuse is
//! not tried in another way.

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

/// How long one of the programs may take; it takes a few milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// How much of what it says is passed on.
const MOST_TOLD: usize = 300;
/// The messages: all are mapped; only the one id is for the child to map, and why.
const MAPPED: &[u8] = b"m";
const ALONE: u8 = b'1';
/// The id inside that stands for the caller where files are looked after, and not a run: an image has none of that number.
pub(super) const CALLER: u32 = SubordinateIds::INSIDE;

/// The parent's side: maps the ids of a run's init, and tells it. Where files depend on them, a run without them is none.
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

/// The child's side: waits until all ids are mapped; why they are not, where it is to map its own alone.
pub(super) fn await_maps(hand: &OwnedFd) -> io::Result<Result<(), String>> {
    let mut buffer = [0; MOST_TOLD * 4];
    match descriptor::receive(hand, &mut buffer)?.0 {
        MAPPED => Ok(Ok(())),
        [ALONE, why @ ..] => Ok(Err(String::from_utf8_lossy(why).into_owned())),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Does something as one who may use all the ids of this caller: look after files that belong to them. Its result is an exit
/// status. It has the rights of root over those ids and nobody else's.
///
/// # Errors
/// When they cannot be mapped; then nothing was done.
pub fn within_subordinate_ids(ids: SubordinateIds, work: impl FnOnce() -> i32) -> io::Result<Exit> {
    let (ours, theirs) = descriptor::message_pair()?;
    let child = process::clone(Namespaces::USER, None, move || {
        // A process that answers for credentials may not be looked into, and so not mapped either: this copy may be, for that moment.
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

/// Removes a directory in which things belong to subordinate ids, in the way that is given.
pub(crate) fn remove(directory: &Path, remove: fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let ids = Caller::current().map(|caller| SubordinateIds::of(&caller));
    let Ok(Ok(ids)) = ids else { return Err(io::ErrorKind::PermissionDenied.into()) };
    let removed = within_subordinate_ids(ids, || i32::from(remove(directory).is_err()))?;
    if removed == Exit::Code(0) { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Groups first: where those are refused nothing is mapped yet, and a single id still can be.
fn map_all(pid: Pid, ids: SubordinateIds, uid: MappedId, gid: MappedId) -> io::Result<()> {
    let search = std::env::var("PATH").unwrap_or_default();
    let [map_users, map_groups] = programs(&search).map_err(|missing| io::Error::other(missing.why))?;
    run(&map_groups, pid, &lines(ids.groups, gid))?;
    run(&map_users, pid, &lines(ids.users, uid))
}

/// The map of a user namespace: everybody but one is lent, and that one is the caller.
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

/// Waits for the end of a program, which is ended where it takes too long.
fn ended_well(pid: Pid) -> io::Result<bool> {
    let opened = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    let deadline = Instant::now() + PATIENCE;
    let mut ready = 0;
    while ready == 0 && Instant::now() < deadline {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
        let mut gone = [PollFd::new(&opened, PollFlags::IN)];
        // Interrupted or not: it is looked at again.
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
