//! Starts the sidecar of a run or of a companion while the backend makes its sandbox.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;

use egress::{NameRange, SidecarMessage};
use policy::{Backend, Hostname, RunId, RunSpec};
use sandbox::{Caller, Peers, Plan, Sidecar, SidecarStart, Started};

use crate::authorities;
use crate::engine::{self, PortsHere, StandInConfig};
use crate::error::Error;
use crate::key::audit_key;
use crate::locality::Locality;
use crate::platform::{History, Platform, Sources};
use crate::proxy_url::ProxyVariables;
use crate::sidecar::{self, AllowedPeer, SidecarConfig, SidecarEndpoints};
use crate::sidecar_messages::{self, LONGEST_START};
use crate::state::{StateDirectory, append};

/// The data from which the sidecar's questions are answered.
pub(crate) struct PlatformData {
    /// `None` where no credential is declared.
    pub(crate) sources: Option<Sources>,
    pub(crate) history: History,
}

/// Returns the one user who may use the proxy and the gateway, where the command shares loopback with everybody on this machine.
///
/// # Errors
/// When this kernel does not tell who owns a connection.
pub(crate) fn allowed_peer(plan: &Plan) -> Result<Option<AllowedPeer>, Error> {
    match plan.backend {
        Backend::Linux | Backend::Container | Backend::Docker => Ok(None),
        Backend::Process => {
            let remedy = match sandbox::is_in_a_run() {
                true => sandbox::NO_RUN_WITHIN,
                false => "have its module `tcp_diag` loaded, or use the backend `linux`",
            };
            let peers = Peers::open().map_err(|source| sandbox::Error::Refused {
                what: format!("this kernel does not tell whose a connection is, so others could use the proxy ({source})"),
                remedy: Some(remedy.into()),
            })?;
            Ok(Some(AllowedPeer { uid: rustix::process::getuid().as_raw(), peers }))
        }
    }
}

/// A sidecar that the backend starts at the moment that suits it. What the sidecar alone may know (the key of the audit, the token
/// for questions) is read at that moment, so that init never has it.
pub(crate) struct SidecarLaunch<'a> {
    pub(crate) spec: &'a RunSpec,
    pub(crate) plan: &'a Plan,
    /// The run that the records name.
    pub(crate) run: &'a RunId,
    /// The companion it serves, where it does not serve the command.
    pub(crate) companion: Option<&'a Hostname>,
    /// The file of its records.
    pub(crate) audit: PathBuf,
    pub(crate) caller: &'a Caller,
    pub(crate) directory: &'a StateDirectory,
    /// The proxy of the caller's environment, for a sidecar in a container, which does not have that environment.
    pub(crate) proxy: Option<&'a ProxyVariables>,
    pub(crate) notices: BorrowedFd<'a>,
    /// Why the sidecar failed, if it said so while its authority was waited for.
    pub(crate) failed: Option<Error>,
    pub(crate) state: LaunchState,
}

/// How far the launch of a sidecar is.
pub(crate) enum LaunchState {
    /// The backend has not asked for it yet.
    Waiting(Box<SidecarInputs>),
    /// It runs. `platform` answers its questions, where it may ask any.
    Running { sidecar: Sidecar, platform: Option<Box<Platform>> },
    /// It could not be started; the backend returns why, as [`sandbox::Error::Sidecar`].
    Failed,
}

/// A sandbox and the sidecar beside it.
pub(crate) struct StartedPair {
    pub(crate) sandbox: Started,
    pub(crate) sidecar: Sidecar,
    pub(crate) platform: Option<Box<Platform>>,
}

/// What a sidecar that is to be started is made of. This process closes its copies of the descriptors once the sidecar has them.
pub(crate) struct SidecarInputs {
    pub(crate) endpoints: SidecarEndpoints,
    pub(crate) platform_data: Option<PlatformData>,
    /// The ports that this machine opens, at an engine that would hide who connects.
    pub(crate) ports_here: Option<PortsHere>,
}

impl SidecarLaunch<'_> {
    /// Returns the sandbox and its sidecar once the backend is done, or ends the sidecar of a sandbox that could not be made. If the sidecar
    /// failed, what it said of that is the reason, and not what others saw of its end.
    ///
    /// # Errors
    /// When the sandbox or the sidecar could not be started.
    pub(crate) fn finish(self, started: Result<Started, sandbox::Error>) -> Result<StartedPair, Error> {
        match (started, self.state) {
            (Ok(sandbox), LaunchState::Running { sidecar, platform }) => {
                Ok(StartedPair { sandbox, sidecar, platform })
            }
            (Ok(_), _) => Err(Error::SidecarLost),
            (Err(error), state) => {
                if let LaunchState::Running { sidecar, .. } = state {
                    sidecar.end();
                }
                let failed = self.failed.or_else(|| sidecar_messages::told_failure(self.notices));
                Err(failed.unwrap_or_else(|| own(error)))
            }
        }
    }

    fn begin(&mut self, inputs: SidecarInputs) -> Result<LaunchState, Error> {
        let SidecarInputs { mut endpoints, platform_data, ports_here } = inputs;
        let mut platform = None;
        if let Some(PlatformData { sources, history }) = platform_data {
            let (answering, theirs) = Platform::pair(sources, &self.spec.policy, Some(history))?;
            endpoints.credentials.platform = Some(theirs);
            platform = Some(Box::new(answering));
        }
        let config = SidecarConfig {
            run: self.run.clone(),
            companion: self.companion.cloned(),
            policy: self.spec.policy.clone(),
            spending: self.spec.spending.clone(),
            identity: self.plan.identity,
            bundle: self.caller.variable(authorities::VARIABLE).map(str::to_owned),
            other_bundle: None,
            names: NameRange::of(self.plan.name_addresses, self.plan.wiring),
            audit: Arc::new(append(&self.audit)?),
            audit_path: Some(self.audit.clone()),
            key: audit_key(self.directory)?,
            endpoints,
            watcher_opens_files: true,
            machine: Vec::new(),
        };
        let sidecar = match Locality::of(self.plan) {
            Locality::Here => sidecar::start(&config)?,
            Locality::AtEngine => {
                let (layers, proxy) = (self.spec.layers.clone(), self.proxy.cloned());
                engine::start_stand_in(&StandInConfig { config, layers, proxy, ports_here })?
            }
        };
        Ok(LaunchState::Running { sidecar, platform })
    }
}

impl SidecarStart for SidecarLaunch<'_> {
    fn start(&mut self) -> Result<(), sandbox::Error> {
        match std::mem::replace(&mut self.state, LaunchState::Failed) {
            LaunchState::Waiting(inputs) => {
                self.state = self.begin(*inputs).map_err(|error| sandbox::Error::Sidecar(error.into()))?;
            }
            state => self.state = state,
        }
        Ok(())
    }

    fn authority(&mut self) -> io::Result<Vec<u8>> {
        match sidecar_messages::await_first(self.notices, LONGEST_START)? {
            Some(SidecarMessage::Authority(pem)) => Ok(pem.into_bytes()),
            Some(SidecarMessage::Failed { why, remedy }) => {
                self.failed = Some(Error::SidecarFailed { why, remedy });
                Err(io::Error::other("it failed"))
            }
            _ => Err(io::Error::other("it told something else than its authority")),
        }
    }
}

/// Takes an error of this crate's own out of one of the sandbox's, which a backend only passed on.
fn own(error: sandbox::Error) -> Error {
    match error {
        sandbox::Error::Sidecar(source) => match source.downcast::<Error>() {
            Ok(own) => *own,
            Err(other) => sandbox::Error::Sidecar(other).into(),
        },
        error => error.into(),
    }
}
