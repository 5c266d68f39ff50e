//! The sidecar of a run, from what it is given to its process.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

use egress::{CompanionChain, Entrance, InboundPorts, NameRange};
use policy::{Backend, Hostname, RunId, RunSpec, Wiring};
use sandbox::{Caller, Peers, Plan, Sidecar, SidecarStart};

use crate::engine::{self, Carried, PortsHere};
use crate::error::Error;
use crate::key::audit_key;
use crate::last_word::first_word;
use crate::platform::{History, Platform, Sources};
use crate::sidecar::{self, SidecarConfig, SidecarCredentials};
use crate::state::{StateDirectory, append};

/// What the sidecar's questions are answered from.
pub(crate) struct PlatformData {
    /// Nothing where no credential is declared.
    pub(crate) sources: Option<Sources>,
    pub(crate) history: History,
}

/// Where the command shares loopback with everybody on this machine, only its own user may use the proxy and the gateway.
pub(crate) fn peers(plan: &Plan) -> Result<Option<(u32, Peers)>, Error> {
    match plan.backend {
        Backend::Linux | Backend::Container | Backend::Docker => Ok(None),
        Backend::Process => {
            let peers = Peers::open().map_err(|source| sandbox::Error::Refused {
                what: format!("this kernel does not tell whose a connection is, so others could use the proxy ({source})"),
                remedy: Some("have its module `tcp_diag` loaded, or use the backend `linux`".into()),
            })?;
            Ok(Some((rustix::process::getuid().as_raw(), peers)))
        }
    }
}

/// The sidecar of a run, from what it is given to its process. What it alone is to know (the key of the audit, the token for
/// questions) is read when it is started, so that init has never had it.
pub(crate) struct SidecarLaunch<'a> {
    pub(crate) spec: &'a RunSpec,
    pub(crate) plan: &'a Plan,
    /// The run it is for.
    pub(crate) run: &'a RunId,
    /// The companion it is for, where it is not for the command.
    pub(crate) companion: Option<&'a Hostname>,
    /// Where its records go.
    pub(crate) audit: PathBuf,
    pub(crate) caller: &'a Caller,
    pub(crate) state: &'a StateDirectory,
    /// The proxy of the caller's environment, for a sidecar that has not this one.
    pub(crate) proxy: Option<(String, String)>,
    pub(crate) endpoints: Option<SidecarEndpoints>,
    pub(crate) notices: BorrowedFd<'a>,
    pub(crate) sidecar: Option<Sidecar>,
    pub(crate) platform: Option<Platform>,
    /// Why it could not be started, where that is not for the sandbox to say.
    pub(crate) failed: Option<Error>,
}

/// What is made before the sandbox, and closed here once the sidecar has it.
pub(crate) struct SidecarEndpoints {
    pub(crate) credentials: SidecarCredentials,
    pub(crate) platform_data: Option<PlatformData>,
    pub(crate) link: OwnedFd,
    pub(crate) notices: OwnedFd,
    pub(crate) peers: Option<(u32, Peers)>,
    /// The ways to companions.
    pub(crate) entrances: Vec<(Hostname, Entrance)>,
    /// What may be reached from outside.
    pub(crate) inbound: Option<InboundPorts>,
    /// The companions that its audit names: those of the run, where it is the command's.
    pub(crate) chains: Vec<CompanionChain>,
    /// The same at an engine that would hide who connects: the ports are this machine's.
    pub(crate) ports_here: Option<PortsHere>,
}

impl SidecarLaunch<'_> {
    fn begin(&mut self) -> Result<(), Error> {
        let Some(given) = self.endpoints.take() else { return Ok(()) };
        let SidecarEndpoints {
            mut credentials,
            platform_data,
            link,
            notices,
            peers,
            entrances,
            inbound,
            chains,
            ports_here,
        } = given;
        if let Some(PlatformData { sources, history }) = platform_data {
            let (platform, theirs) = Platform::pair(sources, &self.spec.policy, Some(history))?;
            credentials.platform = Some(theirs);
            self.platform = Some(platform);
        }
        let is_engine = self.plan.engine.is_some();
        let config = SidecarConfig {
            run: self.run.clone(),
            policy: self.spec.policy.clone(),
            spending: self.spec.spending.clone(),
            identity: self.plan.identity,
            bundle: self.caller.variable("SSL_CERT_FILE").map(str::to_owned),
            other_bundle: None,
            names: match self.plan.wiring {
                Wiring::Redirect => NameRange::default(),
                Wiring::Veth => NameRange::of_ipv4(),
            },
            audit: append(&self.audit)?,
            audit_path: Some(self.audit.clone()),
            key: audit_key(self.state)?,
            link,
            notices,
            credentials,
            peers,
            companions: entrances,
            inbound,
            chains,
            machine: Vec::new(),
        };
        self.sidecar = Some(if is_engine {
            let (layers, proxy) = (self.spec.layers.clone(), self.proxy.take());
            engine::carry(&Carried { config, layers, proxy, companion: self.companion.cloned(), ports_here })?
        } else {
            sidecar::start(&config)?
        });
        Ok(())
    }
}

impl SidecarStart for SidecarLaunch<'_> {
    fn start(&mut self) -> Result<(), sandbox::Error> {
        self.begin().map_err(|error| {
            let source = std::io::Error::other(error.to_string());
            self.failed = Some(error);
            sandbox::Error::Start { what: "the sidecar", source }
        })
    }

    fn authority(&mut self) -> std::io::Result<Vec<u8>> {
        first_word(self.notices)
    }
}
