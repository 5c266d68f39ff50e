//! The namespaces of an engine and their first process: it mounts what the daemon needs, starts it, reports when it answers, and waits for
//! the pipe to close. Then it ends everything there and removes what is left on the machine.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{WaitOptions, setsid, wait, waitpid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::daemon::Daemon;
use crate::error::Error;
use crate::folder::Folder;
use crate::options::{Kind, Network};
use crate::podman;
use crate::process::{Forked, end_all_others, fork, unshare};
use crate::rootless;
use crate::stored::Stored;

/// Written to the pipe when the data is to be kept, so that the daemon ends in order.
pub(crate) const SETTLE: u8 = b's';

/// Folders of the machine in which a daemon makes files regardless of its arguments, and one in which it looks for configuration.
const OF_THE_MACHINE: [&str; 3] = ["/run/containerd", "/run/docker", "/etc/docker"];
/// The interval for reaping orphans of containers.
const PAUSE: Duration = Duration::from_millis(50);
/// The time limit for a daemon to end in order, and for killed processes to go.
const SETTLED: Duration = Duration::from_secs(15);
const KILLED: Duration = Duration::from_secs(5);

/// A message from the pipe.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// Nothing yet.
    None,
    /// [`SETTLE`].
    Settle,
    /// The pipe is closed: everything must end.
    End,
}

/// Makes the namespaces, and waits for their first process.
pub(crate) fn run(
    folder: &Folder,
    kind: Kind,
    stored: Option<&Stored>,
    network: Network,
    ready: OwnedFd,
    end: OwnedFd,
) -> Result<u8, Error> {
    let path = "/proc/self/ns/mnt";
    let mounts = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| Error::file(path)(error.into()))?;
    let rooms = libc::CLONE_NEWNS | libc::CLONE_NEWPID;
    let rooms = if network == Network::Own { rooms | libc::CLONE_NEWNET } else { rooms };
    unshare(rooms).map_err(|source| Error::Unshare { source })?;
    match fork().map_err(|source| Error::Fork { source })? {
        Forked::Parent(first) => {
            drop((ready, end));
            let _ = rustix::io::retry_on_intr(|| waitpid(Some(first), WaitOptions::empty()));
            Ok(0)
        }
        Forked::Child => {
            let served = serve(folder, kind, stored, network, ready, &end);
            end_all_others();
            wait_for_all();
            if !kind.is_docker() {
                podman::remove_groups(folder);
            }
            // The folder is removed in the machine's mount namespace: here, the containers' roots are still mounted in it.
            let left = move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount));
            if left.is_ok() && !matches!(served, Ok(Word::Settle)) {
                folder.remove();
            }
            crate::leave(served.map(|_| 0))
        }
    }
}

/// Serves from the first mount to the message that ends it.
fn serve(
    folder: &Folder,
    kind: Kind,
    stored: Option<&Stored>,
    network: Network,
    ready: OwnedFd,
    end: &OwnedFd,
) -> Result<Word, Error> {
    let refused = |source: rustix::io::Errno| Error::Fork { source: source.into() };
    setsid().map_err(refused)?;
    let null = "/dev/null";
    let nowhere = fs::File::options().read(true).write(true).open(null).map_err(Error::file(null))?;
    rustix::stdio::dup2_stdin(&nowhere).map_err(refused)?;
    rustix::stdio::dup2_stdout(&nowhere).map_err(refused)?;
    mount_all(kind)?;
    if kind.account().is_some() {
        rootless::open_taps(folder)?;
    }
    if let Some(stored) = stored {
        // Databases are synced to the disk with each change, which takes seconds on a busy machine.
        mount_memory(&folder.files(), MountFlags::empty())?;
        stored.fill(folder, kind)?;
    }
    let mut daemon = Daemon::start(folder, kind, network, stored)?;
    loop {
        if daemon.answers()? {
            break;
        }
        if word(end, Duration::from_millis(5)) == Word::End {
            return Ok(Word::End);
        }
    }
    // A pipe without a reader is noticed below.
    let _ = rustix::io::write(&ready, b"r");
    drop(ready);
    loop {
        match word(end, PAUSE) {
            Word::None => while matches!(wait(WaitOptions::NOHANG), Ok(Some(_))) {},
            Word::End => return Ok(Word::End),
            Word::Settle => {
                daemon.end(SETTLED);
                return Ok(Word::Settle);
            }
        }
    }
}

/// Reads a message from the pipe within `patience`.
fn word(end: &OwnedFd, patience: Duration) -> Word {
    let mut watched = [PollFd::new(end, PollFlags::IN)];
    let patience = Timespec { tv_sec: 0, tv_nsec: i64::from(patience.subsec_nanos()) };
    let mut byte = [0];
    match poll(&mut watched, Some(&patience)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => Word::None,
        Ok(_) => match rustix::io::read(end, &mut byte) {
            Ok(1) => Word::Settle,
            _ => Word::End,
        },
        Err(_) => Word::End,
    }
}

/// Receives the machine's mounts from now on, and sends it none.
fn mount_all(kind: Kind) -> Result<(), Error> {
    let at = |what, target: &Path| {
        let target = target.to_owned();
        move |source: rustix::io::Errno| Error::Mount { what, target, source: source.into() }
    };
    let root = Path::new("/");
    mount_change(root, MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(at("a tree of its own", root))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None).map_err(at("proc", Path::new("/proc")))?;
    let of_kind = if kind.is_docker() { &OF_THE_MACHINE[..] } else { &podman::OF_THE_MACHINE[..] };
    for folder in of_kind.iter().map(Path::new) {
        fs::create_dir_all(folder).map_err(Error::file(folder))?;
        mount_memory(folder, flags)?;
    }
    Ok(())
}

fn mount_memory(folder: &Path, flags: MountFlags) -> Result<(), Error> {
    mount("tmpfs", folder, "tmpfs", flags, None).map_err(|source| Error::Mount {
        what: "an empty folder",
        target: folder.to_owned(),
        source: source.into(),
    })
}

/// Waits for all processes: a control group is empty once they are gone.
fn wait_for_all() {
    let deadline = Instant::now() + KILLED;
    while Instant::now() < deadline {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            Err(_) => return,
        }
    }
}
