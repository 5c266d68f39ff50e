//! The first process of the agent's container: our own binary, from a volume that holds nothing else. It takes its
//! [`FirstSteps`], by which it gives up what the container began with, and waits for the brief, which comes once the sidecar
//! serves. Then it confines itself, starts the command, and sends the shim the command's output and how it ends.
//!
//! It is PID 1, so the command can neither end nor stop it, and it is not dumpable. One thread sets up and supervises, as the
//! init of a `linux` sandbox does; the other is the [`Relay`] between the shim and the command.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use policy::agreed::CA_BUNDLES;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use sys::landlock::{self, Right};
use sys::{descriptor, privilege};

use super::brief::{Brief, Shown};
use super::limit_check;
use super::mux::{CHUNK, Channel, Frames, LONGEST_FRAME};
use super::network_filter::FirstSteps;
use super::podman::OPEN;
use super::relay::{AfterEnd, CommandPipes, Relay, ShimStreams, SupervisorLinks};
use crate::confine::restrict_files;
use crate::environment::{AUTHORITY, BUNDLE};
use crate::failure::Failure;
use crate::init_loop::{self, Supervised};
use crate::launch::Stdio;
use crate::oom_score::OomScore;
use crate::spawn::open_terminal;
use crate::supervise::{self, FurtherGroups, Ready};
use crate::{seccomp, source};

/// The largest bundle of certification authorities that is copied from the image.
const LARGEST_BUNDLE: u64 = 8 << 20;
/// The longest brief: with all files it may bring, however much of them JSON escapes.
const LONGEST_BRIEF: usize = 64 << 20;

/// Runs as the first process of the agent's container, and returns its exit status.
#[must_use]
pub fn run_engine_agent(first: FirstSteps) -> i32 {
    match live(first) {
        Ok(()) => 0,
        Err(error) => {
            // The shim reads this.
            let _ = writeln!(io::stderr(), "{error}");
            125
        }
    }
}

fn live(first: FirstSteps) -> io::Result<()> {
    // Before it becomes another user, and not dumpable. Without it the kernel may end init first, and the engine tells why.
    let oom_score = OomScore::open().ok();
    first.take()?;
    privilege::undumpable()?;
    let (input, output) = (own(0)?, own(1)?);
    let mut frames = Frames::default();
    let brief = await_brief(&input, &mut frames)?;
    // In every thread, from its start. The kernel drops signals for which PID 1 has no handler, but not while one of its threads
    // has them blocked, as a thread that starts a command does for a moment: a thread without the block would take the signal, and
    // the command could end its init. Our own signals come as frames, and children are waited for.
    sys::signal::block_all()?;
    let (control, control_inside) = descriptor::message_pair()?;
    let (sidecar, sidecar_inside) = descriptor::message_pair()?;
    // The shim sends the brief only once the sidecar serves.
    crate::handshake::report_ready(sidecar.as_fd())?;
    // A companion's health can be asked for on this pair.
    let brokers = (!brief.launch.probe.is_empty()).then(descriptor::message_pair).transpose()?;
    let (broker, broker_inside) = brokers.unzip();
    let (stdio, pipes) = match brief.terminal {
        Some(size) => (Stdio::Terminal { size, errors: None }, None),
        None => {
            let (theirs, ours) = pipes()?;
            (Stdio::Descriptors(theirs), Some(ours))
        }
    };
    let shim = ShimStreams { input, output, frames };
    let mut relay = Relay::new(shim, SupervisorLinks { control, sidecar, broker }, pipes);
    relay.limits.clone_from(&brief.limits);
    let after_end = if brief.lingers { AfterEnd::Linger } else { AfterEnd::Leave };
    let relaying = std::thread::Builder::new().spawn(move || relay.run(after_end))?;
    let it = Supervised {
        launch: &brief.launch,
        stdio: &stdio,
        control: control_inside.as_fd(),
        sidecar: sidecar_inside.as_fd(),
        broker: broker_inside.as_ref(),
        end_rest: init_loop::end_rest,
        oom_score,
    };
    supervise::run(&it, prepare(&brief, &stdio));
    // Copies of the command's ends of the pipes would keep the relay waiting.
    drop(stdio);
    drop(control_inside);
    drop(broker_inside);
    relaying.join().unwrap_or_else(|_| Err(io::Error::other("the relay panicked")))
}

/// Duplicates a standard stream as a close-on-exec, non-blocking descriptor.
fn own(number: i32) -> io::Result<OwnedFd> {
    let stream = match number {
        0 => rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?,
        _ => rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?,
    };
    rustix::io::ioctl_fionbio(&stream, true)?;
    Ok(stream)
}

/// Makes the pipes of the command: its ends, and the relay's, which do not block.
fn pipes() -> io::Result<([OwnedFd; 3], CommandPipes)> {
    let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
    let ((input, input_ours), (output_ours, output), (errors_ours, errors)) = (pipe()?, pipe()?, pipe()?);
    for ours in [&input_ours, &output_ours, &errors_ours] {
        rustix::io::ioctl_fionbio(ours, true)?;
    }
    let ours = CommandPipes { input: input_ours, output: output_ours, errors: errors_ours };
    Ok(([input, output, errors], ours))
}

/// Reads the brief from the first frames. If none comes, the container's maker ends it.
fn await_brief(input: &OwnedFd, frames: &mut Frames) -> io::Result<Brief> {
    let mut buffer = [0; CHUNK];
    let mut brief = Vec::new();
    loop {
        if let Some((channel, payload)) = frames.next_frame()? {
            match channel {
                Channel::Alive => {}
                Channel::Begin => {
                    brief.extend(payload);
                    // A frame of full length is followed by another.
                    if payload.len() < LONGEST_FRAME {
                        return serde_json::from_slice(&brief).map_err(io::Error::from);
                    }
                    if brief.len() >= LONGEST_BRIEF {
                        return Err(io::ErrorKind::FileTooLarge.into());
                    }
                }
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
            continue;
        }
        super::relay::await_readable(input)?;
        match rustix::io::read(input, &mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => frames.feed(&buffer[..length]),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Checks the container and sets it up, then gives up the process's privileges: all steps between the brief and the command.
fn prepare(brief: &Brief, stdio: &Stdio) -> Result<Ready, Failure> {
    must_not_be_root().map_err(Failure::at("become another user than root"))?;
    must_be_no_links(brief).map_err(Failure::at("use places of its own"))?;
    for shown in &brief.shown {
        must_be(shown).map_err(Failure::at("show what was declared"))?;
    }
    for overlay in &brief.overlays {
        overlay.must_hold().map_err(Failure::at("keep apart what is written"))?;
    }
    for (path, mode) in &brief.directories {
        set_mode(path, *mode).map_err(|e| Failure::new(format!("make {}", path.display()), e))?;
    }
    let mut notices = brief.notices.clone();
    if let Some(limits) = &brief.limits {
        limit_check::look(limits, &mut notices)?;
    }
    for (from, to) in &brief.copies {
        copy(from, to).map_err(|e| Failure::new(format!("copy to {}", to.display()), e))?;
    }
    let laid_out = brief.brought.lay_out(&mut notices);
    laid_out.map_err(|(path, e)| Failure::new(format!("write {}", path.display()), e))?;
    if let Some(authority) = &brief.authority {
        trust(authority.as_bytes()).map_err(Failure::at("trust the run's own authority"))?;
    }
    let terminal = match stdio {
        Stdio::Terminal { size, .. } => Some(open_terminal(*size).map_err(Failure::at("open a terminal"))?),
        Stdio::Descriptors(_) => None,
    };
    privilege::drop_capabilities()
        .and_then(|()| privilege::no_new_privileges())
        .map_err(Failure::at("drop privileges"))?;
    restrict(&brief.writable).map_err(Failure::at("restrict files by Landlock"))?;
    sys::seccomp::install(&seccomp::AGENT).map_err(Failure::at("install the system-call filter"))?;
    Ok(Ready { notices, shown: None, terminal, groups: FurtherGroups::Callers })
}

/// Refuses to go on as a user who is root outside as well. At a rootless Docker root inside is the engine's user.
fn must_not_be_root() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let map = std::fs::read_to_string("/proc/self/uid_map").map_err(|error| error.to_string())?;
    match is_root_outside(&map) {
        true => Err("the engine runs as root, and root here would be root on its machine".into()),
        false => Ok(()),
    }
}

/// Whether a map of ids, user_namespaces(7), makes root of the user who is root inside, or does not tell.
fn is_root_outside(map: &str) -> bool {
    let mut ranges = map.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>());
    ranges
        .find(|range| range.first() == Some(&"0"))
        .is_none_or(|range| range.get(1).is_none_or(|outside| *outside == "0"))
}

/// Refuses an image that has a link where something of ours is mounted: it would be read or written elsewhere than the engine mounted it.
fn must_be_no_links(brief: &Brief) -> Result<(), String> {
    let copies = brief.copies.iter().map(|(place, _)| place.as_path());
    let overlays = brief.overlays.iter().flat_map(|it| [it.below.as_path(), &it.place]);
    let authority = brief.authority.iter().map(|_| Path::new(AUTHORITY));
    let ours = copies.chain(overlays).chain(authority).map(|path| path.components().take(2).collect());
    let is_ours = |path: &PathBuf| path.as_os_str().as_bytes().starts_with(b"/.lockgate");
    match ours.filter(is_ours).find(|path| path.is_symlink()) {
        None => Ok(()),
        Some(path) => {
            Err(format!("the image has a link at {}, which is this program's own name", path.display()))
        }
    }
}

/// Gives a private directory its mode: an engine takes that of the image's directory instead. One on whose path the image has a link is
/// left alone: it may be a shown folder. So is one that its user cannot get to, and another's that is for everybody to write, as a later
/// Podman makes it.
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut parent = rustix::fs::open("/", flags, Mode::empty())?;
    let mut names = path.strip_prefix("/").unwrap_or(path).iter().peekable();
    while let Some(name) = names.next() {
        let directory = match rustix::fs::openat(&parent, name, flags, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => return Ok(()),
            opened => opened?,
        };
        let about = rustix::fs::fstat(&directory)?;
        let is_open = about.st_mode & 0o7777 == OPEN && about.st_uid != rustix::process::geteuid().as_raw();
        if names.peek().is_none() && !is_open && about.st_mode & 0o7777 != mode {
            rustix::fs::chmodat(&parent, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
        }
        parent = directory;
    }
    Ok(())
}

/// Refuses a bind mount of another file than the shim's parent opened: the engine looks its path up later.
fn must_be(shown: &Shown) -> Result<(), String> {
    let stat = rustix::fs::lstat(&shown.target)
        .map_err(|errno| format!("{}: {}", shown.target.display(), io::Error::from(errno)))?;
    if (stat.st_dev, stat.st_ino) == (shown.device, shown.inode) {
        return Ok(());
    }
    Err(format!(
        "{} is not what was declared: it was exchanged while the run began, or the engine is on another machine",
        shown.target.display()
    ))
}

/// Copies a file or a tree, without following a link at `from`.
fn copy(from: &Path, to: &Path) -> Result<(), source::CopyError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let source = rustix::fs::open(from, flags, Mode::empty())?;
    let parent = to.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(parent)?;
    let parent = rustix::fs::open(parent, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let name = to.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    source::copy_into(source.as_fd(), parent.as_fd(), Path::new(name))
}

/// Writes the run's authority, and a bundle of it and the image's authorities, to the paths in the command's environment.
fn trust(authority: &[u8]) -> io::Result<()> {
    std::fs::write(AUTHORITY, authority)?;
    let mut all = CA_BUNDLES.iter().find_map(|path| bundle_at(Path::new(path)).ok()).unwrap_or_default();
    all.push(b'\n');
    all.extend(authority);
    std::fs::write(BUNDLE, all)
}

/// Reads a bundle of the image, which may have put anything there: a named pipe would never be opened, and a device never read to its end.
fn bundle_at(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let about = file.metadata()?;
    if !about.is_file() || about.len() > LARGEST_BUNDLE {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut bundle = Vec::new();
    file.take(LARGEST_BUNDLE).read_to_end(&mut bundle)?;
    Ok(bundle)
}

/// Restricts this process and the command by Landlock: everything is readable, `writable` is writable.
fn restrict(writable: &[PathBuf]) -> Result<(), String> {
    if !landlock::version().is_ok_and(|version| version >= landlock::MOVES_FILES) {
        return Ok(());
    }
    let named = |path: &str, right| (PathBuf::from(path), right);
    let mut trees = vec![named("/", Right::Read), named("/proc", Right::Use), named("/dev", Right::Use)];
    trees.extend(["/dev/shm", "/dev/pts", "/dev/mqueue"].map(|path| named(path, Right::Write)));
    trees.extend(writable.iter().map(|path| (path.clone(), Right::Write)));
    let opened: Vec<(OwnedFd, Right)> = trees
        .into_iter()
        .filter_map(|(path, right)| {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            rustix::fs::open(&path, flags, Mode::empty()).ok().map(|fd| (fd, right))
        })
        .collect();
    let rules: Vec<_> = opened.iter().map(|(fd, right)| (fd.as_fd(), *right)).collect();
    restrict_files(&rules)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn a_directory_gets_its_mode_unless_a_link_leads_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let [own, shown] = ["own", "shown"].map(|name| folder.path().join(name));
        for path in [&own, &shown] {
            std::fs::create_dir(path).unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o500)).unwrap();
        }
        std::os::unix::fs::symlink(&shown, folder.path().join("link")).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
        for (path, changed, expected) in [("own", &own, 0o1777), ("link", &shown, 0o500)] {
            set_mode(&folder.path().join(path), 0o1777).unwrap();
            assert_eq!(mode(changed), expected, "{path}");
        }
    }

    #[test]
    fn a_bundle_is_a_file_of_a_bounded_size() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("bundle"), "pem").unwrap();
        std::os::unix::fs::symlink("bundle", at("link")).unwrap();
        assert_eq!(bundle_at(&at("link")).unwrap(), b"pem");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), kind, Mode::RUSR, 0).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("endless")).unwrap();
        File::create(at("large")).unwrap().set_len(LARGEST_BUNDLE + 1).unwrap();
        for name in ["pipe", "endless", "large", "absent"] {
            assert!(bundle_at(&at(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn root_of_the_machine_is_told_from_a_rootless_engines() {
        let rootless = "         0       1000          1\n         1     100000      65536\n";
        for (map, is_root) in [
            ("         0          0 4294967295\n", true),
            (rootless, false),
            ("1000 1000 1\n0 0 1\n", true),
            ("1 100000 65536\n", true),
            ("", true),
            ("0\n", true),
        ] {
            assert_eq!(is_root_outside(map), is_root, "{map}");
        }
    }
}
