//! The sidecar alone, for those who bring their own sandbox: it serves in this process, on addresses it is told.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use credential::{Placeholder, Secret, Vault};
use egress::{
    Files, Gate, GateError, GateOptions, Listeners, PlatformPlace, RunAuthority, SigningKey, Wallet,
};
use policy::{Policy, RunId, Spending};
use sandbox::Caller;

use crate::error::Error;
use crate::platform::{History, Platform, Sources};
use crate::run::placeholders;
use crate::state::{StateDirectory, state};

/// The variables by which a platform tells a sidecar of itself. S0.23, S0.41
const TOKEN: &str = "RUN_TOKEN";
const PLATFORM: &str = "PLATFORM_API_URL";
const CONFIGURE: &str = "CONFIG_SECRET";

/// A sidecar without a run of ours.
#[derive(Debug)]
pub struct Standalone {
    /// The rules.
    pub policy: Policy,
    /// What may be spent on models.
    pub spending: Spending,
    /// Where the explicit proxy listens.
    pub forward: SocketAddr,
    /// Where the gateway listens.
    pub gateway: Option<SocketAddr>,
    /// Where the gateway listens as a Unix socket.
    pub gateway_socket: Option<PathBuf>,
    /// Where DNS is answered, over UDP and TCP.
    pub dns: Option<SocketAddr>,
    /// Gets the certificate of this sidecar's authority; without it no TLS is opened.
    pub authority: Option<PathBuf>,
    /// Gets the placeholders, as lines of `NAME=VALUE`.
    pub environment: Option<PathBuf>,
    /// Where records go, and the key that signs them.
    pub audit: Option<(File, Secret)>,
    /// The name its records carry.
    pub run: RunId,
}

/// Serves in this process until it is told to end. `listening` is told once every socket is served.
///
/// # Errors
/// When an address cannot be bound, a file cannot be written, or serving fails.
pub fn serve_standalone(
    sidecar: Standalone,
    caller: &mut Caller,
    directory: &StateDirectory,
    stop: OwnedFd,
    listening: impl FnOnce(),
) -> Result<(), Error> {
    // Nobody may look into a process that holds credentials.
    let _ = sandbox::undumpable();
    let files = Files::open(caller.variable("SSL_CERT_FILE"));
    let mut listeners = Listeners { forward: Some(egress::bind(sidecar.forward)?), ..Listeners::default() };
    if let Some(address) = sidecar.gateway {
        listeners.gateway = Some(egress::bind(address)?);
    }
    if let Some(path) = &sidecar.gateway_socket {
        listeners.gateway_socket = Some(egress::bind_socket(path)?);
    }
    if let Some(address) = sidecar.dns {
        listeners.dns_tcp = Some(egress::bind(address)?);
        listeners.dns_udp = Some(egress::bind_udp(address)?);
    }
    let audit = match sidecar.audit {
        Some((file, document)) => {
            let read = |source| Error::Plumbing { what: "read the audit's key", source };
            Some((file, SigningKey::from_pkcs8(&document).map_err(read)?))
        }
        None => None,
    };
    let wallet = wallet(&sidecar.policy, caller, directory, sidecar.environment.as_deref())?;
    let authority = match &sidecar.authority {
        Some(path) => {
            let authority = RunAuthority::make().map_err(GateError::Authority)?;
            std::fs::write(path, authority.certificate_pem()).map_err(|source| state(path, source))?;
            Some(authority)
        }
        None => None,
    };
    let gate = Gate::open(GateOptions {
        policy: sidecar.policy,
        spending: sidecar.spending,
        run: sidecar.run,
        files,
        answers: None,
        audit,
        notices: None,
        authority,
        wallet,
    })?;
    egress::serve(gate, listeners, stop, || {
        listening();
        Ok(())
    })?;
    if let Some(path) = &sidecar.gateway_socket {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// A platform that the environment names; one that `/configure` will name; or else the person's own vault.
fn wallet(
    policy: &Policy,
    caller: &mut Caller,
    directory: &StateDirectory,
    environment: Option<&Path>,
) -> Result<Wallet, Error> {
    let placeholders = placeholders(policy)?;
    if let Some(path) = environment {
        write_environment(policy, &placeholders, path)?;
    }
    let placeholders: Vec<_> =
        placeholders.into_iter().map(|(p, provider)| (p, provider.id().clone())).collect();
    let secret =
        |name: &str| caller.variable(name).filter(|v| !v.is_empty()).map(|v| Secret::from_text(v.to_owned()));
    let mut wallet = Wallet { placeholders, configure_once: secret(CONFIGURE), ..Wallet::default() };
    if let (Some(token), Some(address)) = (secret(TOKEN), caller.variable(PLATFORM)) {
        wallet.platform = Some((PlatformPlace::Address(address.to_owned()), token));
    } else if wallet.configure_once.is_none() {
        let sources = Sources::prepare(caller, directory)?;
        wallet.generation = Some(Vault::generation_file(&directory.vault())?);
        let history = History { directory: directory.clone(), workspace: caller.directory.clone() };
        let (mut platform, (socket, token)) = Platform::pair(sources, policy, history)?;
        wallet.platform = Some((PlatformPlace::Inherited(UnixStream::from(socket)), token));
        // It ends with this process, or when the sidecar closes its side.
        std::thread::spawn(move || while platform.wait() && platform.answer() {});
    }
    Ok(wallet)
}

/// What a sandbox of one's own is to be given.
fn write_environment(
    policy: &Policy,
    placeholders: &[(Placeholder, std::sync::Arc<policy::Provider>)],
    path: &Path,
) -> Result<(), Error> {
    let mut lines = String::new();
    for (placeholder, provider) in placeholders {
        for name in provider.environment() {
            lines.push_str(&format!("{name}={placeholder}\n"));
        }
    }
    debug_assert_eq!(policy.providers().count(), placeholders.len());
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(lines.as_bytes())).map_err(|source| state(path, source))
}
