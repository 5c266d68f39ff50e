//! A companion before anything of it is made: its image, its ids, its plan. What can be refused is refused here.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use policy::{Backend, Companion, EnvSpec, RunId, RunSpec, Terminal};
use sandbox::{Additions, Caller, EngineRun, Host, Plan};

use crate::error::{Error, plumbing};
use crate::images::{self, KeptImage};
use crate::run::new_run_id;
use crate::state::StateDirectory;

/// Companions that can be started: what could be refused has been.
#[derive(Default)]
pub(crate) struct Prepared(pub(super) Vec<Ready>);

/// One of them.
pub(super) struct Ready {
    pub(super) companion: Companion,
    pub(super) spec: RunSpec,
    pub(super) plan: Plan,
    pub(super) command: Vec<OsString>,
    /// Its image, where that is of our own store.
    pub(super) image: Option<KeptImage>,
}

/// Looks at every companion of a run: its image, its ids, its plan.
///
/// # Errors
/// When one of them cannot be on this machine.
pub(crate) fn prepare(
    spec: &RunSpec,
    run: &RunId,
    caller: &Caller,
    state: &StateDirectory,
    host: &Host,
) -> Result<Prepared, Error> {
    let one = |companion: &Companion| {
        let named = |error: Error| Error::Companion {
            name: companion.name.to_string(),
            why: error.to_string(),
            remedy: error.remedy(),
        };
        ready(spec, companion, run, caller, state, host).map_err(named)
    };
    spec.companions.iter().map(one).collect::<Result<_, _>>().map(Prepared)
}

fn ready(
    of: &RunSpec,
    companion: &Companion,
    run: &RunId,
    caller: &Caller,
    state: &StateDirectory,
    host: &Host,
) -> Result<Ready, Error> {
    let mut spec = RunSpec {
        backend: if of.backend == Backend::Docker { Backend::Docker } else { Backend::Container },
        image: Some(companion.image.clone()),
        directory: None,
        limits: companion.limits.clone(),
        limits_asked: companion.limits_asked,
        env: EnvSpec { set: companion.env.clone(), pass: Vec::new() },
        terminal: Terminal::Never,
        policy: companion.policy.clone(),
        companions: Vec::new(),
        inbound: Vec::new(),
        ..of.clone()
    };
    spec.limits.enforcement = of.limits.enforcement;
    let command = companion.command.iter().flatten().map(OsString::from).collect();
    // A name of its own: what is made for it is not the run's.
    let own = new_run_id()?;
    let mut additions = Additions {
        opens_tls: spec.policy.may_open(),
        environment: vec![("LOCKGATE_RUN_ID".into(), run.to_string())],
        ..Additions::default()
    };
    let (image, command) = match spec.backend {
        Backend::Docker => (None, take_from_engine(&mut spec, companion, caller, command, &mut additions)?),
        _ => {
            let (image, command) = images::take(&mut spec, caller, command)?;
            let image = image.ok_or_else(|| plumbing("take its image")(io::ErrorKind::NotFound.into()))?;
            let [_, written] = state.mounted(&own)?;
            additions.image = Some(images::root_of(&image.image));
            additions.ids = image.ids.as_ref().map(|ids| ids.range);
            additions.written = Some(written);
            (Some(image), command)
        }
    };
    let probe = companion.probe.clone().unwrap_or_default();
    let plan = sandbox::plan_companion(&spec, &probe, &own, caller, host, &additions)?;
    Ok(Ready { companion: companion.clone(), spec, plan, command, image })
}

/// Looks the image of a companion up at the engine, and gives the whole command.
fn take_from_engine(
    spec: &mut RunSpec,
    companion: &Companion,
    caller: &Caller,
    command: Vec<OsString>,
    additions: &mut Additions,
) -> Result<Vec<OsString>, Error> {
    // It is shown no folder of anybody's, and takes no sidecar that waits for the command of a run.
    let engine = sandbox::find_engine(caller, &companion.image, Path::new("/"))?;
    let engine = EngineRun { pool: 0, ports: companion.ports.clone(), ..engine };
    let command = images::command_of(spec, &engine.config, command)?;
    additions.image = Some(images::root_at(&engine.config));
    additions.engine = Some(engine);
    Ok(command)
}
