//! A companion before anything of it is made: its image, its ids, its plan. What can be refused is refused here.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use image::HealthCheck;
use policy::{Backend, Companion, EnvSpec, RunId, RunSpec, Terminal};
use sandbox::{Additions, Caller, EngineRun, Host, Plan};

use crate::error::{Error, plumbing};
use crate::images::{self, CommandOrigin, KeptImage};
use crate::random_ids::new_run_id;
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
    /// The digest of its image, of whichever store that is.
    pub(super) digest: String,
    /// The image's own way of telling health, where nothing else was declared.
    pub(super) image_health: Option<HealthCheck>,
    /// The signal by which its image wants to be asked to end.
    pub(super) stop: Option<i32>,
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
            why: error.sentence(),
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
        disk_asked: false,
        env: EnvSpec { set: companion.env.clone(), pass: Vec::new() },
        terminal: Terminal::Never,
        policy: companion.policy.clone(),
        setup: Vec::new(),
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
        Backend::Docker => {
            (None, take_from_engine(&mut spec, companion, (caller, state), command, &mut additions)?)
        }
        _ => {
            let (image, command) = images::take(&mut spec, caller, command, CommandOrigin::Companion)?;
            let image = image.ok_or_else(|| plumbing("take its image")(io::ErrorKind::NotFound.into()))?;
            let [_, written] = state.mounted(&own)?;
            additions.image = Some(images::root_of(&image.image));
            additions.ids = image.ids.as_ref().map(|ids| ids.range);
            additions.subordinate = image.subordinate;
            additions.written = Some(written);
            (Some(image), command)
        }
    };
    let mut companion = companion.clone();
    let of_image = image.as_ref().and_then(KeptImage::health);
    let image_health = if companion.probe.is_none() { of_image.cloned() } else { None };
    companion.probe = companion.probe.or_else(|| image_health.as_ref().map(|it| it.command.clone()));
    let stop = images::stop_signal(image.as_ref(), additions.engine.as_ref());
    let probe = companion.probe.clone().unwrap_or_default();
    let plan = sandbox::plan_companion(&spec, &probe, &own, caller, host, &additions)?;
    let of_engine = || additions.engine.map(|engine| engine.config.id).unwrap_or_default();
    let digest = image.as_ref().map_or_else(of_engine, KeptImage::digest);
    Ok(Ready { companion, spec, plan, command, image, digest, image_health, stop })
}

/// Looks the image of a companion up at the engine, and gives the whole command.
fn take_from_engine(
    spec: &mut RunSpec,
    companion: &Companion,
    (caller, state): (&Caller, &StateDirectory),
    command: Vec<OsString>,
    additions: &mut Additions,
) -> Result<Vec<OsString>, Error> {
    // It is shown no folder of anybody's, and takes no sidecar that waits for the command of a run.
    let engine = sandbox::find_engine(caller, &companion.image, Path::new("/"), state.engine_slots())?;
    let mut engine = EngineRun { pool: 0, ports: companion.ports.clone(), ..engine };
    images::find_account(&mut engine)?;
    let command = images::command_of(spec, &engine.config, command, CommandOrigin::Companion)?;
    additions.image = Some(images::root_at(&engine.config));
    additions.engine = Some(engine);
    Ok(command)
}
