//! Keeps what the agent's container sends on the run's network. The network's bridge is a link of the engine's machine, which takes what
//! comes by it for any of its own addresses, unless it is told to look where packets come from (`rp_filter`). No route leads there, but a
//! datagram can name its link, and a broadcast needs no route.
//!
//! So the container's init drops what would go elsewhere, before it reads anything. It begins with the capabilities for that, and gives
//! them up:
//!
//! - Docker gives capabilities to root alone, so there it begins as root, and then becomes the command's user.
//! - Podman gives its volumes to whoever the container begins as, and capabilities to any user: there it is the command's from the start.

use std::io;
use std::net::Ipv4Addr;

use sys::privilege;

use crate::plan::engine::EngineKind;
use crate::run_network::RunNetwork;

/// What the init of an agent's container does first.
#[derive(Clone, Copy, Debug)]
pub struct FirstSteps {
    /// An address of the run's network.
    pub network: Ipv4Addr,
    /// The user and the group of the command, if it begins as root.
    pub user: Option<(u32, u32)>,
}

/// How a container begins that takes these steps.
pub(super) struct Beginning {
    /// The user and group, as an engine takes them.
    pub(super) user: String,
    pub(super) capabilities: Vec<String>,
    /// The arguments of our init.
    pub(super) arguments: Vec<String>,
}

impl Beginning {
    /// Returns how the container of a command with this user and group begins.
    pub(super) fn of(kind: EngineKind, (uid, gid): (u32, u32), network: RunNetwork) -> Self {
        let network = network.agent().to_string();
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        match kind {
            EngineKind::Docker => Self {
                user: "0:0".into(),
                capabilities: owned(&["NET_ADMIN", "SETPCAP", "SETUID", "SETGID"]),
                arguments: vec![network, uid.to_string(), gid.to_string()],
            },
            EngineKind::Podman => Self {
                user: format!("{uid}:{gid}"),
                capabilities: owned(&["NET_ADMIN", "SETPCAP"]),
                arguments: vec![network],
            },
        }
    }
}

impl FirstSteps {
    /// Drops what this container would send elsewhere, and goes on as the command's user, without any capability.
    ///
    /// # Errors
    /// The kernel refuses one of these steps, and nothing may be begun.
    pub(super) fn take(self) -> io::Result<()> {
        sys::nftables::keep_within(self.network).map_err(|error| {
            let why = format!(
                "failed to keep what is sent on the run's network: {error}; the kernel of the engine's machine needs nftables: \
                 `modprobe nf_tables` there"
            );
            io::Error::new(error.kind(), why)
        })?;
        privilege::drop_bounding_set()?;
        if let Some((uid, gid)) = self.user {
            privilege::become_user(uid, gid)?;
        }
        privilege::drop_capabilities()
    }
}
