//! `world`: a small internet in network namespaces, and a command that runs in it.
//!
//! It makes two networks without privilege: the internet's, whose servers are ours and record who reached them, and a host's, from which
//! the command reaches them. Nothing of it touches the machine's network or outlives the command.

mod addresses;
mod archive;
mod authority;
mod dns;
mod echoes;
mod error;
mod forms;
mod git;
mod grpc;
mod host;
mod http;
mod http1;
mod http2;
mod inside;
mod links;
mod models;
mod mounts;
mod names;
mod namespaces;
mod options;
mod paths;
mod process;
mod public;
mod recorder;
mod registries;
mod response;
mod routes;
mod servers;
mod ssh;
mod supervise;
mod tap;
mod tools;
mod websocket;
mod wire;

use std::error::Error as _;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::error::Error;
use crate::options::Options;
use crate::process::{Forked, fork};

fn main() -> ExitCode {
    ExitCode::from(status_of(Options::parse(std::env::args_os().skip(1)).and_then(run)))
}

/// The process outside: makes the namespaces and a folder, and cleans up.
fn run(options: Options) -> Result<u8, Error> {
    let parent = std::env::temp_dir();
    // Open to all: the command may start others as another user, and keys have modes of their own.
    let open_to_all = Permissions::from_mode(0o755);
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("lockgate-world-").permissions(open_to_all);
    let directory = builder.tempdir_in(&parent).map_err(Error::file(parent))?;
    let identity = namespaces::leave()?;
    let (alive, held) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|source| Error::Fork { source: source.into() })?;
    match fork().map_err(|source| Error::Fork { source })? {
        Forked::Parent(world) => supervise::outside(world),
        Forked::Child => {
            drop(held);
            let directory = directory.keep();
            leave(inside::run(options, identity, &directory, &alive))
        }
    }
}

/// Ends a forked process without unwinding into its parent's code.
fn leave(result: Result<u8, Error>) -> ! {
    std::process::exit(status_of(result).into())
}

fn status_of(result: Result<u8, Error>) -> u8 {
    result.unwrap_or_else(|error| {
        let mut message = format!("world: failed to {error}");
        let mut cause = error.source();
        while let Some(source) = cause {
            message += &format!(": {source}");
            cause = source.source();
        }
        eprintln!("{message}");
        error.status()
    })
}
