//! Keeps what the agent's container sends on the run's network. The network's bridge is a link of the engine's machine, which takes what
//! comes by it for any of its own addresses, unless it is told to look where packets come from (`rp_filter`). No route leads there, but a
//! datagram can name its link, and a broadcast needs no route.
//!
//! So the agent's container drops what would go elsewhere, before there is a command:
//!
//! - Docker's begins as root with the rights for it, and its init makes the rules and becomes the command's user before it reads anything.
//!   (Docker executes a privileged program in a container only if the engine itself has every right there is.)
//! - Podman's begins as the command's user, to whom Podman gives its volumes. It is Podman that executes our own binary in it once, with
//!   the rights for it.

use std::io::{self, Write};
use std::net::Ipv4Addr;

use bollard::container::LogOutput;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use futures_util::StreamExt;
use sys::privilege;

use super::engine::Engine;
use super::engine_error::{error_text, printable};
use super::names::binary_at;
use crate::run_network::RunNetwork;

/// The argument by which our binary knows that it makes the rules in a container of Podman's.
pub const INSIDE_FILTER: &str = "engine-filter";
/// How many octets of its complaint are kept.
const COMPLAINT: usize = 2000;

/// What the init of Docker's container does first.
#[derive(Clone, Copy, Debug)]
pub struct FirstSteps {
    /// An address of the run's network.
    pub network: Ipv4Addr,
    /// The user and the group of the command.
    pub user: (u32, u32),
}

impl FirstSteps {
    /// What they are for a run on this network, as arguments.
    pub(super) fn arguments((uid, gid): (u32, u32), network: RunNetwork) -> [String; 3] {
        [network.agent().to_string(), uid.to_string(), gid.to_string()]
    }

    /// Drops what this container would send elsewhere, and becomes the command's user without any capability.
    pub(super) fn take(self) -> io::Result<()> {
        sys::nftables::keep_within(self.network).map_err(unfiltered)?;
        let (uid, gid) = self.user;
        privilege::drop_bounding_set()?;
        privilege::become_user(uid, gid)?;
        privilege::drop_capabilities()
    }
}

/// Drops what the container of this process would send elsewhere than to itself and to this network. Returns an exit status.
#[must_use]
pub fn filter_network(network: Ipv4Addr) -> i32 {
    match sys::nftables::keep_within(network).map_err(unfiltered) {
        Ok(()) => 0,
        Err(error) => {
            // The shim reads this.
            let _ = write!(io::stderr(), "{error}");
            1
        }
    }
}

fn unfiltered(error: io::Error) -> io::Error {
    let why = format!(
        "failed to keep what is sent on the run's network: {error}; the kernel of the engine's machine needs nftables: `modprobe nf_tables` there"
    );
    io::Error::new(error.kind(), why)
}

impl Engine {
    /// Has a container, in which nothing but our own init runs yet, send nothing elsewhere than to the run's network. `place` is where it
    /// has our own binary.
    pub(super) async fn filter_network(
        &self,
        container: &str,
        place: &str,
        network: RunNetwork,
    ) -> Result<(), String> {
        let options = CreateExecOptions {
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(vec![binary_at(place), INSIDE_FILTER.into(), network.agent().to_string()]),
            privileged: Some(true),
            user: Some("0:0".into()),
            working_dir: Some("/".into()),
            ..CreateExecOptions::default()
        };
        let made = self.api.create_exec(container, options).await.map_err(|e| error_text(&e))?;
        let started = self.api.start_exec(&made.id, None::<StartExecOptions>).await;
        let mut complaint = String::new();
        if let StartExecResults::Attached { mut output, .. } = started.map_err(|e| error_text(&e))? {
            while let Some(Ok(piece)) = output.next().await {
                if let LogOutput::StdErr { message } | LogOutput::StdOut { message } = piece
                    && complaint.len() < COMPLAINT
                {
                    complaint.push_str(&String::from_utf8_lossy(&message));
                }
            }
        }
        let ended = self.api.inspect_exec(&made.id).await.map_err(|e| error_text(&e))?;
        match ended.exit_code {
            Some(0) => Ok(()),
            _ if complaint.is_empty() => Err("the engine does not say why".into()),
            _ => Err(printable(&complaint)),
        }
    }
}
