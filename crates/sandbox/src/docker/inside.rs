//! The first process of the agent's container: our own binary, from a volume that holds nothing else. It waits for the word to
//! begin, which comes once the sidecar serves, shuts itself in, starts the command, and tells over the line what it writes and
//! how it ends.
//!
//! It is PID 1 there, so the command can neither end nor stop it, and it cannot be looked into. One thread carries out and
//! supervises, as the init of a sandbox of ours does; the other moves octets between the line and the command.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;
use serde::{Deserialize, Serialize};
use sys::landlock::{self, Right};
use sys::{descriptor, privilege};

use super::mux::{CHUNK, Channel, Frames, LONGEST_FRAME};
use super::relay::Relay;
use super::tool_files::Brought;
use super::{limit_check, overlay_check};
use crate::environment::{AUTHORITY, BUNDLE};
use crate::failure::Failure;
use crate::host::BUNDLES;
use crate::launch::{Launch, Stdio};
use crate::spawn::open_terminal;
use crate::supervise::{self, Ready};
use crate::watch::{self, Supervised};
use crate::{seccomp, source};

/// The largest bundle of certification authorities that is taken over.
const LARGEST_BUNDLE: u64 = 8 << 20;
/// The longest word to begin: with all the files that may be brought, however much of them is escaped.
const LONGEST_BRIEF: usize = 64 << 20;

/// What the container is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Brief {
    pub(crate) launch: Launch,
    /// Whether the command gets a terminal of its own.
    pub(crate) terminal: bool,
    /// What the engine was asked to show, and what it must be: the path is looked up by the engine, later than by us.
    pub(crate) shown: Vec<Shown>,
    /// What is copied: from where it is shown for that, to where it belongs.
    pub(crate) copies: Vec<(PathBuf, PathBuf)>,
    /// What is shown with what is written kept apart.
    pub(super) overlays: Vec<overlay_check::Asked>,
    /// Files and links of the home.
    pub(super) brought: Brought,
    /// Where the command may write.
    pub(crate) writable: Vec<PathBuf>,
    /// The certificate of the run's authority, where TLS is opened.
    pub(crate) authority: Option<String>,
    /// Whether it waits to be let go once it has told how it ended.
    pub(crate) lingers: bool,
    /// The limits that the engine was asked for.
    pub(crate) limits: Option<limit_check::Asked>,
    /// What turned out weaker than planned.
    pub(crate) notices: Vec<String>,
}

/// A path inside, and the file it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shown {
    pub(crate) target: PathBuf,
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// The life of the agent's container, and the status it ends with.
#[must_use]
pub fn run_engine_agent() -> i32 {
    match live() {
        Ok(()) => 0,
        Err(error) => {
            // Read by the shim, if there is one.
            let _ = writeln!(io::stderr(), "{error}");
            125
        }
    }
}

fn live() -> io::Result<()> {
    privilege::undumpable()?;
    let (input, output) = (own(0)?, own(1)?);
    let mut frames = Frames::default();
    let brief = await_brief(&input, &mut frames)?;
    // In every thread, and from its first moment. The kernel spares the first process of a namespace what it does not wait for, but
    // not while one of its threads has a signal blocked, as whoever starts a command has for a moment: another that has not would
    // take it, and the command could end its init. What is for us comes over the line, and the end of a child is asked for.
    sys::signal::block_all()?;
    let (control, control_inside) = descriptor::message_pair()?;
    let (sidecar, sidecar_inside) = descriptor::message_pair()?;
    // The word to begin comes when the sidecar serves.
    crate::handshake::report_ready(sidecar.as_fd())?;
    // Where its health can be asked for.
    let brokers = (!brief.launch.probe.is_empty()).then(descriptor::message_pair).transpose()?;
    let (broker, broker_inside) = brokers.unzip();
    let (stdio, relay) = if brief.terminal {
        (Stdio::Terminal, Relay::new(input, output, frames, control, sidecar, broker, None))
    } else {
        let (theirs, ours) = pipes()?;
        (Stdio::Descriptors(theirs), Relay::new(input, output, frames, control, sidecar, broker, Some(ours)))
    };
    let lingers = brief.lingers;
    let relaying = std::thread::Builder::new().spawn(move || relay.run(lingers))?;
    let it = Supervised {
        launch: &brief.launch,
        stdio: &stdio,
        control: control_inside.as_fd(),
        sidecar: sidecar_inside.as_fd(),
        broker: broker_inside.as_ref(),
        end_rest: watch::end_rest,
    };
    supervise::run(&it, prepare(&brief, &stdio));
    // The command's own ends of the pipes: what is left of them here would keep the relay waiting.
    drop(stdio);
    drop(control_inside);
    drop(broker_inside);
    relaying.join().unwrap_or_else(|_| Err(io::Error::other("the relay panicked")))
}

/// One of the standard streams, close-on-exec under a number of its own, and never waited for.
fn own(number: i32) -> io::Result<OwnedFd> {
    let stream = match number {
        0 => rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?,
        _ => rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?,
    };
    rustix::io::ioctl_fionbio(&stream, true)?;
    Ok(stream)
}

/// The command's ends, and ours.
fn pipes() -> io::Result<([OwnedFd; 3], [OwnedFd; 3])> {
    let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
    let ((input, input_ours), (output_ours, output), (errors_ours, errors)) = (pipe()?, pipe()?, pipe()?);
    for ours in [&input_ours, &output_ours, &errors_ours] {
        rustix::io::ioctl_fionbio(ours, true)?;
    }
    Ok(([input, output, errors], [input_ours, output_ours, errors_ours]))
}

/// Waits for the first frames. Whoever made the container ends it where none will come.
fn await_brief(input: &OwnedFd, frames: &mut Frames) -> io::Result<Brief> {
    let mut buffer = [0; CHUNK];
    let mut brief = Vec::new();
    loop {
        if let Some((channel, payload)) = frames.next_frame()? {
            match channel {
                Channel::Alive => {}
                Channel::Begin => {
                    brief.extend(payload);
                    // One that is as long as a frame may be has another behind it.
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

/// Everything between the word to begin and the command.
fn prepare(brief: &Brief, stdio: &Stdio) -> Result<Ready, Failure> {
    let fail = |step: &str, cause: String| Failure::new(step, cause);
    for shown in &brief.shown {
        must_be(shown).map_err(|cause| fail("show what was declared", cause))?;
    }
    for overlay in &brief.overlays {
        overlay.must_hold().map_err(|cause| fail("keep apart what is written", cause))?;
    }
    let mut notices = brief.notices.clone();
    if let Some(limits) = &brief.limits {
        limit_check::look(limits, &mut notices)?;
    }
    for (from, to) in &brief.copies {
        copy(from, to).map_err(|e| fail(&format!("copy to {}", to.display()), e.to_string()))?;
    }
    let laid_out = brief.brought.lay_out(&mut notices);
    laid_out.map_err(|(path, e)| fail(&format!("write {}", path.display()), e.to_string()))?;
    if let Some(authority) = &brief.authority {
        trust(authority.as_bytes()).map_err(|e| fail("trust the run's own authority", e.to_string()))?;
    }
    let terminal = match stdio {
        Stdio::Terminal => Some(open_terminal().map_err(|e| fail("open a terminal", e.to_string()))?),
        Stdio::Descriptors(_) => None,
    };
    privilege::drop_capabilities()
        .and_then(|()| privilege::no_new_privileges())
        .map_err(|e| fail("drop privileges", e.to_string()))?;
    restrict(&brief.writable).map_err(|cause| fail("restrict files by Landlock", cause))?;
    sys::seccomp::install(&seccomp::AGENT)
        .map_err(|e| fail("install the system-call filter", e.to_string()))?;
    Ok(Ready { notices, terminal })
}

/// The engine looks a source up by its path, after we did: what it found is what we opened, or nothing runs.
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

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let source = rustix::fs::open(from, flags, Mode::empty())?;
    let parent = to.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(parent)?;
    let parent = rustix::fs::open(parent, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let name = to.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(source::copy_into(source.as_fd(), parent.as_fd(), Path::new(name))?)
}

/// The authority alone, and together with those of the image, where the environment says they are.
fn trust(authority: &[u8]) -> io::Result<()> {
    std::fs::write(AUTHORITY, authority)?;
    let readable = |path: &&&str| std::fs::metadata(path).is_ok_and(|m| m.len() <= LARGEST_BUNDLE);
    let theirs = BUNDLES.iter().find(readable).and_then(|path| std::fs::read(path).ok());
    let mut all = theirs.unwrap_or_default();
    all.push(b'\n');
    all.extend(authority);
    std::fs::write(BUNDLE, all)
}

fn restrict(writable: &[PathBuf]) -> Result<(), String> {
    if landlock::version().is_none() {
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
    landlock::restrict(&rules).map(drop).map_err(|e| e.to_string())
}
