//! `engine [--podman | --docker-of USER:GROUP | --podman-of USER:GROUP] [--here] [--archive FILE]… [--as VARIABLE] -- CMD ARGS…`: a separate
//! engine, Docker or Podman, rootful or rootless, for as long as the command runs, which finds its address in the variable, `DOCKER_HOST`
//! unless another is named. The program needs root, and touches neither the machine's engine, if there is one, nor its network.
//!
//! ```text
//! engine ─┬─ command
//!         └─ namespaces ── the first process of them ── dockerd ── containerd ── containers
//! ```
//!
//! The daemon has separate mounts and processes, and with `--here` the caller's network (that of `world -- engine …`), otherwise an empty
//! one. Each archive becomes an image named as the file. However this program ends, a pipe closes, and the first process ends all the
//! others and removes what they left.

mod archives;
mod daemon;
mod error;
mod folder;
mod groups;
mod inside;
mod options;
mod podman;
#[path = "../../process.rs"]
mod process;
mod rootless;
mod start;
mod stored;

use std::error::Error as _;
use std::io::Write;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};

use crate::error::Error;
use crate::folder::{Base, Folder};
use crate::options::Options;
use crate::start::Engine;
use crate::stored::Stored;

/// Signals passed on to the command.
const SIGNALS: [Signal; 4] = [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT];

fn main() -> ExitCode {
    ExitCode::from(status_of(Options::parse(std::env::args_os().skip(1)).and_then(run)))
}

fn run(options: Options) -> Result<u8, Error> {
    let base = Base::lock()?;
    base.sweep();
    // An engine that maps ids cannot use files of root's: it imports its images itself.
    let stored = match options.kind.account() {
        Some(_) => None,
        None => Some(Stored::of(&base, options.kind, &options.archives)?),
    };
    let folder = Folder::make(&base)?;
    // Released before anything forks: a copy of a descriptor holds its lock.
    drop(base);
    let engine = Engine::start(&folder, options.kind, stored.as_ref(), options.network)?;
    let to_take_in = if stored.is_none() { &options.archives[..] } else { &[] };
    let taken = to_take_in.iter().try_for_each(|archive| archives::take_in(&folder.socket(), archive));
    let ended = taken.and_then(|()| command(&options, &folder));
    engine.stop();
    ended
}

/// Runs the command to its end, and returns its exit status in a shell's form.
fn command(options: &Options, folder: &Folder) -> Result<u8, Error> {
    let watched: Vec<_> = SIGNALS.into_iter().chain([Signal::CHILD]).map(Signal::as_raw).collect();
    process::block(&watched);
    let mut command = Command::new(&options.program);
    command.args(&options.arguments).env(&options.variable, folder.host());
    process::own_group(&mut command);
    let failed = |source| Error::Command { program: options.program.display().to_string(), source };
    let child = command.spawn().map_err(failed)?;
    let child = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(Error::Inside)?;
    loop {
        match waitpid(Some(child), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => return Ok(code(status)),
            Ok(None) => {}
            Err(source) => return Err(Error::Wait { source: source.into() }),
        }
        let number = process::next_signal(&watched);
        if let Some(signal) = SIGNALS.into_iter().find(|signal| signal.as_raw() == number) {
            // A command that has just ended needs no signal.
            let _ = kill_process(child, signal);
        }
    }
}

fn code(status: WaitStatus) -> u8 {
    let code = status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// Ends a forked process without unwinding into its parent's code.
fn leave(result: Result<u8, Error>) -> ! {
    std::process::exit(status_of(result).into())
}

fn status_of(result: Result<u8, Error>) -> u8 {
    result.unwrap_or_else(|error| {
        let mut message = format!("engine: failed to {error}");
        let mut cause = error.source();
        while let Some(source) = cause {
            message += &format!(": {source}");
            cause = source.source();
        }
        // The reader may be gone.
        let _ = writeln!(std::io::stderr(), "{message}");
        error.status()
    })
}
