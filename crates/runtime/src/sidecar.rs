//! The sidecar process of a run.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use credential::{Placeholder, Secret};
use egress::{
    CompanionChain, Companions, CredentialConfig, Entrance, Files, Gate, GateError, GateOptions, Generation,
    InboundPorts, Listeners, NameRange, PeerFilter, PlatformPlace, RunAuthority, StrangePeer,
};
use policy::{Hostname, OrganisationName, Policy, ProviderId, RunId, Spending};
use sandbox::{Identity, KeepsOpen, Peers, Sidecar};

use crate::error::{Error, plumbing};
use crate::gate::{base_options, open_gate, signed_audit};
use crate::generation_file::GenerationFile;
use crate::name_files;
use crate::platform::PlatformLink;
use crate::state::state_error;

/// The inputs of a run's sidecar.
pub(crate) struct SidecarConfig {
    pub(crate) run: RunId,
    /// The companion whose sidecar it is; `None` for the command's.
    pub(crate) companion: Option<Hostname>,
    pub(crate) policy: Policy,
    pub(crate) spending: Spending,
    pub(crate) identity: Identity,
    pub(crate) bundle: Option<String>,
    /// The certification authorities of another machine, used instead of this one's.
    pub(crate) other_bundle: Option<File>,
    /// The addresses that stand for names.
    pub(crate) names: NameRange,
    pub(crate) audit: Arc<File>,
    /// The path of that file, for messages; `None` if its lines go to another machine.
    pub(crate) audit_path: Option<PathBuf>,
    pub(crate) key: Secret,
    pub(crate) endpoints: SidecarEndpoints,
    /// Whether the process at the other end of `notices` opens the files of names when they have changed.
    pub(crate) watcher_opens_files: bool,
    /// The addresses of the machine, if the sidecar's kernel has others.
    pub(crate) machine: Vec<IpAddr>,
}

/// A sidecar's ends of all that leads to others, and how they are known.
pub(crate) struct SidecarEndpoints {
    /// The socket to init, over which listeners come, and whose end is the run's end.
    pub(crate) init: OwnedFd,
    /// The socket on which it tells denials.
    pub(crate) notices: OwnedFd,
    /// Its access to credentials.
    pub(crate) credentials: SidecarCredentials,
    /// The one user whose connections are taken, where others of this machine could connect.
    pub(crate) allowed_peer: Option<AllowedPeer>,
    /// The ways to the companions.
    pub(crate) companions: Vec<(Hostname, Entrance)>,
    /// The ports that may be reached from outside, and the way to the command.
    pub(crate) inbound: Option<InboundPorts>,
    /// The companions that its audit names: those of the run, for the command's sidecar.
    pub(crate) chains: Vec<CompanionChain>,
}

impl SidecarEndpoints {
    /// Returns the endpoints of a companion's sidecar, which injects no credentials and is reached by nobody from outside.
    pub(crate) fn without_credentials(
        init: OwnedFd,
        notices: OwnedFd,
        companions: Vec<(Hostname, Entrance)>,
    ) -> Self {
        Self {
            init,
            notices,
            credentials: SidecarCredentials::default(),
            allowed_peer: None,
            companions,
            inbound: None,
            chains: Vec::new(),
        }
    }
}

/// The one user of this machine whose connections a sidecar takes.
pub(crate) struct AllowedPeer {
    pub(crate) uid: u32,
    /// Asks the kernel who owns a connection.
    pub(crate) peers: Peers,
}

impl AllowedPeer {
    /// Returns a filter that lets in the connections of this user, and none whose owner the kernel does not tell.
    fn filter(&self) -> std::io::Result<PeerFilter> {
        let (uid, peers) = (self.uid, self.peers.try_clone()?);
        Ok(PeerFilter::new(move |theirs, ours| match peers.owner(theirs, ours) {
            Ok(Some(owner)) if owner == uid => Ok(()),
            owner => Err(StrangePeer(owner.ok().flatten())),
        }))
    }
}

/// A sidecar's access to credentials.
#[derive(Debug, Default)]
pub(crate) struct SidecarCredentials {
    pub(crate) platform: Option<PlatformLink>,
    /// Answers for the credentials that are this program's own, where the platform is elsewhere.
    pub(crate) own: Option<PlatformLink>,
    pub(crate) generation: Option<File>,
    /// The directory of that file, for a process that waits for it to change.
    pub(crate) vault: Option<PathBuf>,
    pub(crate) placeholders: Vec<(Placeholder, ProviderId)>,
    /// The credentials that the command is given by value.
    pub(crate) exposed: Vec<(ProviderId, Secret)>,
    /// The organisation whose credentials they are, if not the person's own.
    pub(crate) organisation: Option<OrganisationName>,
}

impl SidecarCredentials {
    /// Returns the descriptors that must stay open in the sidecar.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let sockets = self.platform.iter().chain(&self.own).map(|link| link.socket.as_fd());
        sockets.chain(self.generation.as_ref().map(AsFd::as_fd))
    }

    /// Returns the file of the vault's generation, to be read. Its descriptor is a duplicate.
    pub(crate) fn generation_file(&self) -> std::io::Result<Option<GenerationFile>> {
        Ok(self.generation.as_ref().map(File::try_clone).transpose()?.map(GenerationFile::new))
    }

    /// Returns the configuration for the gate. Its descriptors are duplicates, shared with those of this process.
    pub(crate) fn credential_config(&self) -> std::io::Result<CredentialConfig> {
        let inherited = |link: &PlatformLink| {
            Ok::<_, std::io::Error>((UnixStream::from(link.socket.try_clone()?), link.token.clone()))
        };
        let platform = self.platform.as_ref().map(inherited).transpose()?;
        let platform = platform.map(|(socket, token)| PlatformPlace::Inherited(socket, token));
        let told_by = |file: GenerationFile| Generation::told_by(move || file.now());
        let generation = self.generation_file()?.map(told_by).unwrap_or_default();
        let Self { placeholders, exposed, organisation, .. } = self;
        Ok(CredentialConfig {
            platform,
            own: self.own.as_ref().map(inherited).transpose()?,
            generation,
            placeholders: placeholders.clone(),
            exposed: exposed.clone(),
            organisation: organisation.clone(),
            configure_once: None,
        })
    }
}

/// Starts the sidecar of a run. It waits for its listeners.
pub(crate) fn start(config: &SidecarConfig) -> Result<Sidecar, sandbox::Error> {
    sandbox::start_sidecar(config, |config| ended(|| serve(config), config.endpoints.notices.as_fd()))
}

impl KeepsOpen for SidecarConfig {
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let Self { audit, endpoints, other_bundle, .. } = self;
        let mut keep = vec![audit.as_fd(), endpoints.init.as_fd(), endpoints.notices.as_fd()];
        keep.extend(endpoints.credentials.descriptors());
        keep.extend(other_bundle.as_ref().map(AsFd::as_fd));
        keep.extend(endpoints.companions.iter().filter_map(|(_, entrance)| entrance.descriptor()));
        keep.extend(endpoints.inbound.iter().flat_map(InboundPorts::descriptors));
        keep.extend(endpoints.allowed_peer.as_ref().map(|allowed| allowed.peers.as_fd()));
        keep
    }

    fn tell_failure(&self, error: std::io::Error) {
        let failed = || Err(plumbing("shut the sidecar off from this process")(error));
        ended(failed, self.endpoints.notices.as_fd());
    }
}

/// Serves a run, and returns the exit code. A failure and a panic are sent over `notices`: only the run's own process speaks to the person.
pub(crate) fn ended(serve: impl FnOnce() -> Result<(), Error>, notices: BorrowedFd<'_>) -> i32 {
    egress::tell_panics(notices);
    match serve() {
        Ok(()) => 0,
        Err(error) => {
            egress::send_failure(notices, &error.to_string(), error.remedy().as_deref());
            1
        }
    }
}

/// Opens what a run's sidecar needs, confines the process, waits for the listeners, and serves.
fn serve(config: &SidecarConfig) -> Result<(), Error> {
    let endpoints = &config.endpoints;
    let gate = open_confined(config)?;
    gate.name_companions(&endpoints.chains);
    let Some(set) =
        sandbox::receive_listeners(endpoints.init.as_fd()).map_err(plumbing("receive the listeners"))?
    else {
        // The summary tells which records could not be written.
        let _ = gate.close();
        return Ok(());
    };
    let inbound = endpoints.inbound.as_ref().map(InboundPorts::try_clone).transpose();
    let peer_filter = endpoints.allowed_peer.as_ref().map(AllowedPeer::filter).transpose();
    let listeners = Listeners {
        transparent: set.transparent,
        forward: set.forward,
        gateway: set.gateway,
        gateway_socket: set.gateway_socket,
        dns_udp: set.dns_udp,
        dns_tcp: set.dns_tcp,
        undelivered_v4: set.undelivered_v4,
        undelivered_v6: set.undelivered_v6,
        inbound: inbound.map_err(plumbing("open the declared ports"))?,
        peer_filter: peer_filter.map_err(plumbing("know who connects"))?,
    };
    let stop = endpoints.init.try_clone().map_err(plumbing("watch the run"))?;
    let ready = || sandbox::report_ready(endpoints.init.as_fd());
    match egress::serve(gate, listeners, stop, ready, sandbox::trim_heap) {
        // The summary has told which records could not be written.
        Ok(()) | Err(GateError::Unwritten { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Opens the files of the gate, confines this process, and opens the gate.
fn open_confined(config: &SidecarConfig) -> Result<Rc<Gate>, Error> {
    let endpoints = &config.endpoints;
    let mut files = Files::open(config.bundle.as_deref())?;
    if let Some(bundle) = &config.other_bundle {
        files = files.trusting(bundle.try_clone().map_err(plumbing("open the bundle"))?);
    }
    if config.watcher_opens_files {
        let opener = name_files::opener(endpoints.notices.as_fd()).map_err(plumbing("open the notices"))?;
        files = files.reopened_by(opener);
    }
    let audit = signed_audit(&config.audit, &config.key)?;
    let authority = match config.policy.may_open() {
        true => {
            let authority = RunAuthority::make().map_err(GateError::Authority)?;
            egress::send_authority(endpoints.notices.as_fd(), &authority)
                .map_err(plumbing("tell the authority"))?;
            Some(authority)
        }
        false => None,
    };
    let notices = endpoints.notices.try_clone().map_err(plumbing("open the notices"))?;
    sandbox::confine_sidecar(Some(config.identity)).map_err(plumbing("shut the sidecar in"))?;
    let way = |(name, entrance): &(Hostname, Entrance)| Ok((name.clone(), entrance.try_clone()?));
    let companions = endpoints.companions.iter().map(way).collect::<std::io::Result<_>>();
    let options = GateOptions {
        companion: config.companion.clone(),
        names: config.names,
        audit: Some(audit),
        authority,
        credential_config: endpoints
            .credentials
            .credential_config()
            .map_err(plumbing("reach the platform"))?,
        companions: Companions::new(companions.map_err(plumbing("reach the companions"))?),
        machine: config.machine.clone(),
        ..base_options(&config.policy, &config.spending, &config.run, files, notices)
    };
    open_gate(options, |source| match &config.audit_path {
        Some(path) => state_error(path, source),
        None => GateError::Audit(source).into(),
    })
}
