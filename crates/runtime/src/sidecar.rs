//! Sidecar processes: the one beside each run, and the one that stands alone for those who bring their own sandbox.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use credential::Secret;
use egress::{Files, Gate, GateOptions, Listeners, SigningKey};
use policy::{Policy, RunId};
use sandbox::{Identity, Sidecar};

use crate::error::Error;

/// What a run's sidecar is given.
pub(crate) struct Errand {
    pub(crate) run: RunId,
    pub(crate) policy: Policy,
    pub(crate) identity: Identity,
    pub(crate) bundle: Option<String>,
    pub(crate) audit: File,
    pub(crate) key: Secret,
    /// The socket on which listeners come, and whose end is the run's end.
    pub(crate) link: OwnedFd,
    /// Where it tells denials.
    pub(crate) notices: OwnedFd,
}

/// Starts the sidecar of a run. It waits for its listeners.
pub(crate) fn start(errand: &Errand) -> Result<Sidecar, Error> {
    let keep = [errand.audit.as_fd(), errand.link.as_fd(), errand.notices.as_fd()];
    Ok(sandbox::start_sidecar(&keep, || i32::from(serve(errand).is_err()))?)
}

/// The life of a run's sidecar: open what it needs, shut itself in, wait for its sockets, serve.
fn serve(errand: &Errand) -> Result<(), Error> {
    let files = Files::open(errand.bundle.as_deref());
    let key = SigningKey::from_pkcs8(&errand.key).map_err(plumbing("read the audit's key"))?;
    let audit = errand.audit.try_clone().map_err(plumbing("open the audit"))?;
    let notices = errand.notices.try_clone().map_err(plumbing("open the notices"))?;
    sandbox::confine_sidecar(errand.identity).map_err(plumbing("shut the sidecar in"))?;
    let gate = Gate::open(GateOptions {
        policy: errand.policy.clone(),
        run: errand.run.clone(),
        files,
        answers: None,
        audit: Some((audit, key)),
        notices: Some(notices),
    })?;
    let Some(set) =
        sandbox::receive_listeners(errand.link.as_fd()).map_err(plumbing("receive the listeners"))?
    else {
        gate.close();
        return Ok(());
    };
    let listeners = Listeners {
        transparent: set.transparent,
        forward: set.forward,
        dns_udp: set.dns_udp,
        dns_tcp: set.dns_tcp,
    };
    let stop = errand.link.try_clone().map_err(plumbing("watch the run"))?;
    egress::serve(gate, listeners, stop, || sandbox::report_ready(errand.link.as_fd()))?;
    Ok(())
}

fn plumbing(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Plumbing { what, source }
}

/// A sidecar without a run of ours.
#[derive(Debug)]
pub struct Standalone {
    /// The rules.
    pub policy: Policy,
    /// Where the explicit proxy listens.
    pub forward: SocketAddr,
    /// Where DNS is answered, over UDP and TCP.
    pub dns: Option<SocketAddr>,
    /// Where records go, and the key that signs them.
    pub audit: Option<(File, Secret)>,
    /// The name its records carry.
    pub run: RunId,
    /// What `SSL_CERT_FILE` names.
    pub bundle: Option<String>,
}

/// Serves in this process until it is told to end. `listening` is told once every socket is served.
///
/// # Errors
/// When an address cannot be bound, or serving fails.
pub fn serve_standalone(sidecar: Standalone, stop: OwnedFd, listening: impl FnOnce()) -> Result<(), Error> {
    let files = Files::open(sidecar.bundle.as_deref());
    let mut listeners = Listeners { forward: Some(egress::bind(sidecar.forward)?), ..Listeners::default() };
    if let Some(address) = sidecar.dns {
        listeners.dns_tcp = Some(egress::bind(address)?);
        listeners.dns_udp = Some(egress::bind_udp(address)?);
    }
    let audit = match sidecar.audit {
        Some((file, document)) => {
            Some((file, SigningKey::from_pkcs8(&document).map_err(plumbing("read the audit's key"))?))
        }
        None => None,
    };
    let gate = Gate::open(GateOptions {
        policy: sidecar.policy,
        run: sidecar.run,
        files,
        answers: None,
        audit,
        notices: None,
    })?;
    egress::serve(gate, listeners, stop, || {
        listening();
        Ok(())
    })?;
    Ok(())
}
