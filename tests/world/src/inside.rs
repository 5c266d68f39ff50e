//! The first process of the world: sets up the links, starts the servers, prepares the host, runs the command. It never returns to its
//! caller's code, which belongs to another process.
//!
//! ```text
//! settle ─► lend capabilities ─► links ─► host sockets ─► servers (a child) ─► files ─► drop capabilities ─► command
//! ```

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, set_parent_process_death_signal, setsid};

use crate::authority::Authority;
use crate::error::Error;
use crate::host::{HostSockets, socket_path};
use crate::links;
use crate::mounts;
use crate::namespaces::{Identity, Network, drop_capabilities, lend_capabilities};
use crate::options::Options;
use crate::process::{Forked, fork, own_group, unshare};
use crate::recorder::Recorder;
use crate::servers;
use crate::supervise;

/// Makes the world under `directory` and runs the command in it. `alive` is a pipe whose other end only the process outside holds.
pub(crate) fn run(
    options: Options,
    identity: Identity,
    directory: &Path,
    alive: &OwnedFd,
) -> Result<u8, Error> {
    supervise::hold_signals();
    let refused = |source: rustix::io::Errno| Error::Fork { source: source.into() };
    set_parent_process_death_signal(Some(supervise::PARENT_DIED)).map_err(refused)?;
    if closed(alive) {
        // The parent ended before it could be watched.
        let _ = fs::remove_dir_all(directory);
        return Ok(128 + 9);
    }
    mounts::settle()?;
    lend_capabilities(identity)?;

    let internet = Network::current("internet")?;
    let host = Network::fresh("host")?;
    links::connect(&host, &internet)?;
    let sockets = HostSockets::bind(directory)?;
    internet.enter()?;

    let authority = Authority::new()?;
    let ca_directory = options.ca_directory.clone().unwrap_or_else(|| directory.join("ca"));
    fs::create_dir_all(&ca_directory).map_err(Error::file(&ca_directory))?;
    authority.publish(&ca_directory)?;
    let pem = authority.pem().to_owned();
    let records = options.records.clone().unwrap_or_else(|| directory.join("records.jsonl"));
    let plan = servers::Plan {
        directory: directory.to_owned(),
        ca_directory: ca_directory.clone(),
        tables: options.tables.clone(),
        keys: options.keys.clone(),
        identity,
        authority,
        recorder: Recorder::open(&records)?,
        host: sockets,
    };
    let (servers, end) = start_servers(plan)?;
    host.enter()?;

    mounts::point_to_resolver(directory)?;
    let bundle = mounts::trust(directory, &ca_directory.join("ca.pem"), &pem)?;
    drop_capabilities(identity)?;
    let given = Given { records, authority: ca_directory.join("ca.pem"), bundle };
    let command = start_command(&options, directory, &given)?;
    let status = supervise::inside(command, servers, directory)?;
    drop(end);
    supervise::servers_end(servers);
    Ok(status)
}

/// Paths that the command's environment names.
struct Given {
    records: PathBuf,
    authority: PathBuf,
    bundle: PathBuf,
}

fn closed(alive: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(alive, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut watched, Some(&now)).is_ok_and(|count| count > 0)
        && watched[0].revents().contains(PollFlags::HUP)
}

/// Starts the servers in a process of their own, and returns once they listen. They end when the pipe is closed.
fn start_servers(plan: servers::Plan) -> Result<(Pid, OwnedFd), Error> {
    let refused = |source: rustix::io::Errno| Error::Fork { source: source.into() };
    let (listening, ready) = pipe_with(PipeFlags::CLOEXEC).map_err(refused)?;
    let (end, held) = pipe_with(PipeFlags::CLOEXEC).map_err(refused)?;
    match fork().map_err(|source| Error::Fork { source })? {
        Forked::Parent(pid) => {
            drop((ready, end, plan));
            let mut byte = [0];
            match rustix::io::retry_on_intr(|| rustix::io::read(&listening, &mut byte)) {
                Ok(1) => Ok((pid, held)),
                _ => Err(Error::Servers),
            }
        }
        Forked::Child => {
            drop((listening, held));
            crate::leave(become_servers(plan, ready, end).map(|()| 0))
        }
    }
}

/// Becomes the servers' process, detached from the terminal, the command's streams and its view of the files.
fn become_servers(plan: servers::Plan, ready: OwnedFd, end: OwnedFd) -> Result<(), Error> {
    let refused = |source: rustix::io::Errno| Error::Fork { source: source.into() };
    crate::process::block(&[]);
    setsid().map_err(refused)?;
    let nowhere =
        fs::File::options().read(true).write(true).open("/dev/null").map_err(Error::file("/dev/null"))?;
    rustix::stdio::dup2_stdin(&nowhere).map_err(refused)?;
    rustix::stdio::dup2_stdout(&nowhere).map_err(refused)?;
    unshare(libc::CLONE_NEWNS).map_err(|source| Error::Unshare { what: "mount", source })?;
    servers::run(plan, ready, end)
}

fn start_command(options: &Options, directory: &Path, given: &Given) -> Result<Pid, Error> {
    let mut command = Command::new(&options.program);
    command
        .args(&options.arguments)
        .env("SSL_CERT_FILE", &given.bundle)
        .env("WORLD_CA", &given.authority)
        .env("WORLD_DIR", directory)
        .env("WORLD_RECORDS", &given.records)
        .env("WORLD_UNIX_SOCKET", socket_path(directory));
    own_group(&mut command);
    let failed = |source| Error::Command { program: options.program.display().to_string(), source };
    let child = command.spawn().map_err(failed)?;
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(Error::Servers)
}
