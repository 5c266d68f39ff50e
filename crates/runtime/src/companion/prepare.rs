//! Prepares companions: their images, ids and plans. What can be refused is refused here, before anything is made.

use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use image::HealthCheck;
use policy::{Backend, Companion, EnvSpec, Hostname, RunId, RunSpec, Terminal};
use sandbox::{Additions, Caller, EngineRun, Host, Plan};

use crate::authorities;
use crate::error::{Error, plumbing};
use crate::launch::{LaunchState, SidecarInputs, SidecarLaunch};
use crate::proxy_url::ProxyVariables;
use crate::random_ids::new_run_id;
use crate::state::StateDirectory;
use crate::taken_image::{self, CommandOrigin, TakenImage};

/// The run that companions belong to, and this machine.
pub(crate) struct RunContext<'a> {
    pub(crate) run: &'a RunId,
    pub(crate) caller: &'a Caller,
    pub(crate) state: &'a StateDirectory,
    pub(crate) host: &'a Host,
    /// The proxy of the caller's environment, for sidecars at an engine.
    pub(crate) proxy: Option<&'a ProxyVariables>,
}

impl<'a> RunContext<'a> {
    /// Returns the launch of a companion's sidecar, or of the command's where none is named.
    pub(crate) fn launch(
        &self,
        spec: &'a RunSpec,
        plan: &'a Plan,
        companion: Option<&'a Hostname>,
        notices: BorrowedFd<'a>,
        inputs: SidecarInputs,
    ) -> SidecarLaunch<'a> {
        let audit = match companion {
            Some(name) => self.state.audit_of(self.run, name),
            None => self.state.audit(self.run),
        };
        SidecarLaunch {
            spec,
            plan,
            run: self.run,
            companion,
            audit,
            caller: self.caller,
            directory: self.state,
            proxy: self.proxy,
            notices,
            failed: None,
            state: LaunchState::Waiting(Box::new(inputs)),
        }
    }
}

/// Companions that can be started: what could be refused has been.
#[derive(Default)]
pub(crate) struct PreparedCompanions(pub(super) Vec<PreparedCompanion>);

/// A companion that can be started.
pub(super) struct PreparedCompanion {
    pub(super) companion: Companion,
    pub(super) spec: RunSpec,
    pub(super) plan: Plan,
    pub(super) command: Vec<OsString>,
    pub(super) image: TakenImage,
    /// The image's own health check, where nothing else was declared.
    pub(super) image_health: Option<HealthCheck>,
}

/// Prepares every companion of a run: its image, its ids, its plan.
///
/// # Errors
/// When one of them cannot run on this machine.
pub(crate) fn prepare(spec: &RunSpec, context: &RunContext<'_>) -> Result<PreparedCompanions, Error> {
    let one = |companion: &Companion| {
        refuse_proxy(companion)?;
        let named = |error: Error| Error::Companion {
            name: companion.name.to_string(),
            why: error.sentence(),
            remedy: error.remedy(),
        };
        prepare_one(spec, companion, context).map_err(named)
    };
    spec.companions.iter().map(one).collect::<Result<_, _>>().map(PreparedCompanions)
}

/// Refuses a companion whose requests would go through a proxy that asks for a credential: its sidecar is given none, and no request
/// may go around the proxy.
fn refuse_proxy(companion: &Companion) -> Result<(), Error> {
    let Some(proxy) = companion.policy.proxy_with_credential() else { return Ok(()) };
    Err(Error::Companion {
        name: companion.name.to_string(),
        why: format!(
            "its requests would go through the proxy `{}`, which needs a credential, and a companion is given none",
            proxy.id
        ),
        remedy: Some(
            "with `egress = {}` it reaches nothing outside; `egress.no_proxy` names hosts that are reached without the proxy"
                .into(),
        ),
    })
}

fn prepare_one(
    of: &RunSpec,
    companion: &Companion,
    context: &RunContext<'_>,
) -> Result<PreparedCompanion, Error> {
    let mut spec = spec_of(companion, of);
    let command = companion.command.iter().flatten().map(OsString::from).collect();
    // It has a run id of its own: what is made for it is not the run's.
    let own = new_run_id()?;
    let (image, command) = take_image(&mut spec, companion, context, command)?;
    let mut additions = Additions {
        authorities: authorities::further(&spec, ""),
        environment: vec![("LOCKGATE_RUN_ID".into(), context.run.to_string())],
        ..Additions::default()
    };
    image.add_to(&mut additions);
    if matches!(image, TakenImage::Stored(_)) {
        let [_, written] = context.state.mounted(&own)?;
        additions.written = Some(written);
    }
    let mut companion = companion.clone();
    let image_health = if companion.probe.is_none() { image.health()?.cloned() } else { None };
    companion.probe = companion.probe.or_else(|| image_health.as_ref().map(|it| it.command.clone()));
    let probe = companion.probe.clone().unwrap_or_default();
    context.host.narrow(&mut spec);
    let plan = sandbox::plan_companion(&spec, &probe, &own, context.caller, context.host, &additions)?;
    Ok(PreparedCompanion { companion, spec, plan, command, image, image_health })
}

/// Returns the run spec of a companion: that of its run, but for what is declared of the companion.
fn spec_of(companion: &Companion, of: &RunSpec) -> RunSpec {
    let mut spec = RunSpec {
        backend: if of.backend == Backend::Docker { Backend::Docker } else { Backend::Container },
        image: Some(companion.image.clone()),
        directory: None,
        limits: companion.limits.clone(),
        limits_asked: companion.limits_asked,
        disk_asked: companion.disk_asked,
        env: EnvSpec { set: companion.env.clone(), pass: Vec::new() },
        terminal: Terminal::Never,
        policy: companion.policy.clone(),
        setup: Vec::new(),
        companions: Vec::new(),
        inbound: Vec::new(),
        ..of.clone()
    };
    spec.limits.enforcement = of.limits.enforcement;
    spec
}

/// Takes the image of a companion, and returns it with the whole command.
fn take_image(
    spec: &mut RunSpec,
    companion: &Companion,
    RunContext { caller, state, .. }: &RunContext<'_>,
    command: Vec<OsString>,
) -> Result<(TakenImage, Vec<OsString>), Error> {
    if spec.backend != Backend::Docker {
        let (image, command) = taken_image::take(spec, caller, command, CommandOrigin::Companion)?;
        let image = image.ok_or_else(|| plumbing("take its image")(io::ErrorKind::NotFound.into()))?;
        return Ok((image, command));
    }
    // It is shown no folder of the caller's, and takes no sidecar of the pool, which waits for the command of a run.
    let engine = sandbox::find_engine(caller, &companion.image, Path::new("/"), state.engine_slots())?;
    let mut engine = EngineRun { pool: 0, ports: companion.ports.clone(), ..engine };
    taken_image::find_account(&mut engine)?;
    let command = taken_image::command_of(spec, &engine.config, command, CommandOrigin::Companion)?;
    Ok((TakenImage::AtEngine(Box::new(engine)), command))
}
