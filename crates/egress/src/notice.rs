//! Denials as they happen, told to whoever watches the run. Each target and guard is told once; all are counted in
//! the audit.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use policy::{Denial, Plane};
use rustix::net::SendFlags;
use serde::{Deserialize, Serialize};

use crate::llm::ModelUse;
use crate::tls::RunAuthority;

/// How many different denials are told. An agent that makes up names must not fill memory or a terminal.
const MOST: usize = 1000;
/// The longest text of a field.
const LONGEST: usize = 500;

/// One denial, for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// The way it came in.
    pub plane: String,
    /// What was asked for.
    pub target: String,
    /// The guard's code.
    pub guard: String,
    /// Why.
    pub reason: String,
    /// What would allow it.
    pub hint: Option<String>,
}

/// What a sidecar's exchanges came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Exchanges that were let through.
    pub allowed: u64,
    /// Exchanges that were refused.
    pub denied: u64,
    /// Exchanges that were let through and failed.
    pub failed: u64,
    /// What was used of models, if anything was.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub models: Option<ModelUse>,
}

/// What a sidecar tells whoever watches it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SidecarMessage {
    /// The first word, where TLS is opened: the certificate of the run's authority, in PEM.
    Authority(String),
    /// A denial, as it happens.
    Denied(Notice),
    /// The last word.
    Summary(Summary),
    /// The last word of a sidecar that ends because it cannot go on.
    Failed {
        /// Why; it reads on after "failed to".
        why: String,
        /// What the person can do about it, where that is known.
        remedy: Option<String>,
    },
}

impl SidecarMessage {
    /// Reads a message.
    #[must_use]
    pub fn parse(message: &[u8]) -> Option<Self> {
        serde_json::from_slice(message).ok()
    }
}

/// Tells the certificate of the run's authority, before anything else.
///
/// # Errors
/// When nobody listens any more.
pub fn send_authority(socket: BorrowedFd<'_>, authority: &RunAuthority) -> io::Result<()> {
    let message = serde_json::to_vec(&SidecarMessage::Authority(authority.certificate_pem().to_owned()))?;
    rustix::net::send(socket, &message, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Tells why a sidecar ends that was not told to. Nobody else hears it.
pub fn send_failure(socket: BorrowedFd<'_>, why: &str, remedy: Option<&str>) {
    let told = SidecarMessage::Failed { why: clipped(why), remedy: remedy.map(clipped) };
    send(socket, &told, SendFlags::DONTWAIT);
}

/// Where denials are told.
#[derive(Debug)]
pub(crate) struct Notices {
    socket: Option<OwnedFd>,
    told: HashSet<(String, &'static str)>,
}

impl Notices {
    pub(crate) fn to(socket: Option<OwnedFd>) -> Self {
        Self { socket, told: HashSet::new() }
    }

    /// Tells a denial, once for its target. A watcher that does not read misses it; the sidecar never waits.
    pub(crate) fn tell(&mut self, plane: Plane, target: &str, denial: &Denial) {
        let Some(socket) = &self.socket else { return };
        let target = clipped(target);
        if self.told.len() >= MOST || !self.told.insert((target.clone(), denial.guard.code())) {
            return;
        }
        let notice = Notice {
            plane: plane.as_str().into(),
            target,
            guard: denial.guard.code().into(),
            reason: clipped(&denial.reason),
            hint: denial.hint.as_deref().map(clipped),
        };
        send(socket, &SidecarMessage::Denied(notice), SendFlags::DONTWAIT);
    }

    /// Tells what it all came to.
    pub(crate) fn close(&mut self, summary: Summary) {
        if let Some(socket) = self.socket.take() {
            send(&socket, &SidecarMessage::Summary(summary), SendFlags::empty());
        }
    }
}

fn send(socket: impl AsFd, told: &SidecarMessage, flags: SendFlags) {
    if let Ok(message) = serde_json::to_vec(told) {
        // Nobody may be listening any more; what was asked for is in the audit all the same.
        let _ = rustix::net::send(socket, &message, flags | SendFlags::NOSIGNAL);
    }
}

/// Without control characters, and short: it goes to a terminal.
fn clipped(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(LONGEST).collect()
}
