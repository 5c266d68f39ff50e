//! Plans a run. What can be refused is refused here, before the run is on record. What is made already is given back when the plan is
//! dropped: listening ports, claimed ids, the hold on an image.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use credential::Vault;
use policy::agreed::{GATEWAY_PORT, plane_url};
use policy::{Backend, Inbound, RunId, RunSpec, WorkspaceMode};
use sandbox::{Additions, Ahead, Caller, EngineRun, Host, MountsOnceRead, Plan};

use crate::companion::{self, PreparedCompanions, RunContext};
use crate::error::Error;
use crate::expose::{self, Exposed};
use crate::homes::refuse_home;
use crate::launch::PlatformData;
use crate::own_places::refuse_own_state;
use crate::platform::{History, Sources};
use crate::proxy_url::ProxyVariables;
use crate::random_ids::{new_run_id, placeholders};
use crate::sidecar::SidecarCredentials;
use crate::state::StateDirectory;
use crate::taken_image::{self, CommandOrigin, TakenImage};
use crate::vault::refuse_missing;
use crate::{authorities, builtin, inbound, named_policy, obeyed, proxy_url};

/// A run that somebody asks for.
#[derive(Debug)]
pub struct RunRequest {
    /// The run and its rules.
    pub spec: RunSpec,
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// Who asks.
    pub caller: Caller,
    /// Where it is recorded.
    pub state: StateDirectory,
    /// The policy file that was named, if one was.
    pub policy: Option<PathBuf>,
    /// Namespaces for its sandbox, if they were created early.
    pub ahead: Option<Ahead>,
}

/// A run that can be executed.
pub(crate) struct PlannedRun {
    pub(crate) spec: RunSpec,
    /// The whole command: of an image, with its entry point.
    pub(crate) command: Vec<OsString>,
    pub(crate) caller: Caller,
    pub(crate) state: StateDirectory,
    pub(crate) host: Host,
    pub(crate) plan: Plan,
    /// Keeps the image's files and the claimed ids until everything of the run is given back.
    pub(crate) image: Option<TakenImage>,
}

impl PlannedRun {
    /// Whether what the command writes in its workspace is kept apart.
    pub(crate) fn keeps_apart(&self) -> bool {
        self.spec.workspace_mode == WorkspaceMode::Overlay
    }
}

/// The inputs that the execution of a run consumes.
pub(crate) struct RunInputs {
    pub(crate) credentials: SidecarCredentials,
    pub(crate) platform_data: PlatformData,
    /// The credentials that the command is given by value.
    pub(crate) exposed: Exposed,
    /// The proxy of the caller's environment without its user, and what goes past it.
    pub(crate) proxy: Option<ProxyVariables>,
    pub(crate) companions: PreparedCompanions,
    /// The ports of this machine by which the command is reached.
    pub(crate) ports: Vec<(OwnedFd, Inbound)>,
    pub(crate) ahead: Option<Ahead>,
}

/// Plans a run.
///
/// # Errors
/// When this host cannot carry it out, or it must not be: no sandbox or sidecar has been started then.
pub(crate) fn plan_run(request: RunRequest) -> Result<(PlannedRun, RunInputs), Error> {
    sandbox::refuse_foreign_process_files()?;
    let RunRequest { mut spec, command, mut caller, state, policy, ahead } = request;
    let run = new_run_id()?;
    refuse_missing(&spec, &state)?;
    let mounts = MountsOnceRead::default();
    if let Some(file) = &policy {
        named_policy::keep(&mut spec, file, &caller, &mounts)?;
    }
    let host = Host::detect(&caller);
    host.narrow(&mut spec);
    let proxy = proxy_url::without_user(&caller);
    let Provided { credentials, platform_data, environment } = provide(&spec, &run, &mut caller, &state)?;
    let callers_authorities = authorities::callers(&caller)?;
    let authorities = authorities::further(&spec, &callers_authorities);
    let mut additions = Additions { authorities, environment, ..Additions::default() };
    let vault = platform_data.sources.as_ref().and_then(|sources| sources.vault.as_ref());
    let exposed = vault.map(|vault| Exposed::take(&spec, vault)).transpose()?.unwrap_or_default();
    builtin::bring(&mut spec, &caller, &credentials.placeholders, &mut additions)?;
    let (image, command) = take_image(&mut spec, &caller, &state, command)?;
    if let Some(image) = &image {
        image.add_to(&mut additions);
    }
    add_directories(&mut additions, image.as_ref(), &spec, &state, &run)?;
    let mut plan = sandbox::plan(&spec, &run, &caller, &host, &additions, &mounts)?;
    plan.notices.extend(authorities::written_inside(&plan, &caller));
    plan.notices.extend(obeyed::written_inside(&plan, &caller));
    plan.notices.extend(expose::private_keys(&spec, &plan));
    refuse_own_state(&plan, &state, &caller, &mounts)?;
    refuse_home(&plan, &caller)?;
    let context =
        RunContext { run: &run, caller: &caller, state: &state, host: &host, proxy: proxy.as_ref() };
    let companions = companion::prepare(&spec, &context)?;
    let is_published = plan.engine.as_ref().is_some_and(|engine| engine.at.publishes());
    let ports = if is_published { Vec::new() } else { inbound::listen(&spec.inbound)? };
    let inputs = RunInputs { credentials, platform_data, exposed, proxy, companions, ports, ahead };
    Ok((PlannedRun { spec, command, caller, state, host, plan, image }, inputs))
}

/// Refuses a folder that no run may have for its workspace, as far as that is known without making one.
///
/// # Errors
/// When it would be refused.
pub(crate) fn refuse_unfit(spec: RunSpec, caller: &Caller, state: &StateDirectory) -> Result<(), Error> {
    // The backend that brings nothing else along.
    let spec = RunSpec { backend: Backend::Linux, image: None, tools: Vec::new(), ..spec };
    let (run, host) = (new_run_id()?, Host::detect(caller));
    let authorities = authorities::further(&spec, "");
    let mut additions = Additions { authorities, ..Additions::default() };
    add_directories(&mut additions, None, &spec, state, &run)?;
    let mounts = MountsOnceRead::default();
    let plan = sandbox::plan(&spec, &run, caller, &host, &additions, &mounts)?;
    refuse_own_state(&plan, state, caller, &mounts)?;
    refuse_home(&plan, caller)?;
    if spec.workspace_mode != WorkspaceMode::ReadOnly {
        sandbox::refuse_unmappable(&plan.workspace, caller)?;
    }
    Ok(())
}

/// The placeholders of a run, and the sources of its credentials.
struct Provided {
    credentials: SidecarCredentials,
    platform_data: PlatformData,
    /// The variables that hold placeholders inside.
    environment: Vec<(String, String)>,
}

/// Makes the placeholders, and gets ready what the sidecar's questions for the credentials behind them are answered from.
fn provide(
    spec: &RunSpec,
    run: &RunId,
    caller: &mut Caller,
    state: &StateDirectory,
) -> Result<Provided, Error> {
    let mut environment = Vec::new();
    let mut credentials = SidecarCredentials::default();
    let workspace = caller.workspace(spec.workspace.as_deref());
    let history = History { directory: state.clone(), workspace, run: run.clone() };
    let known_proxy = spec.policy.proxies().declared().any(|proxy| proxy.credential.is_some());
    if spec.policy.providers().next().is_none() && !known_proxy {
        Sources::forget(caller)?;
        let platform_data = PlatformData { sources: None, history };
        return Ok(Provided { credentials, platform_data, environment });
    }
    for (placeholder, provider) in placeholders(&spec.policy)? {
        if provider.is_asked_by_model() {
            environment.push(("MODEL_BASE_URL".into(), format!("{}/llm", plane_url(GATEWAY_PORT)))); // S1.25
        }
        let named = provider.environment().iter().map(|name| (name.clone(), placeholder.to_string()));
        environment.extend(named);
        credentials.placeholders.push((placeholder, provider.id().clone()));
    }
    let organisation = spec.organisation.as_ref();
    let sources = Some(Sources::prepare(caller, state, organisation)?);
    let vault = state.vault(organisation);
    credentials.generation = Some(Vault::generation_file(&vault)?);
    credentials.vault = Some(vault);
    credentials.organisation = organisation.cloned();
    Ok(Provided { credentials, platform_data: PlatformData { sources, history }, environment })
}

/// Takes the image that was asked for, and returns it with the whole command.
fn take_image(
    spec: &mut RunSpec,
    caller: &Caller,
    state: &StateDirectory,
    command: Vec<OsString>,
) -> Result<(Option<TakenImage>, Vec<OsString>), Error> {
    let (Backend::Docker, Some(image)) = (spec.backend, &spec.image) else {
        return taken_image::take(spec, caller, command, CommandOrigin::Line);
    };
    let workspace = caller.workspace(spec.workspace.as_deref());
    let engine = sandbox::find_engine(caller, image, &workspace, state.engine_slots())?;
    let published = inbound::published_by(&spec.inbound, &engine.at)?;
    let mut engine = EngineRun { published, ..engine };
    if sandbox::takes_account(spec, caller, &engine) {
        taken_image::find_account(&mut engine)?;
    }
    if !engine.config.volumes.is_empty() {
        engine.config.linked = sandbox::follow_volumes(&engine)?;
    }
    let command = taken_image::command_of(spec, &engine.config, command, CommandOrigin::Line)?;
    Ok((Some(TakenImage::AtEngine(Box::new(engine))), command))
}

/// Names the directories of the state directory that the run's sandbox uses.
fn add_directories(
    additions: &mut Additions,
    image: Option<&TakenImage>,
    spec: &RunSpec,
    state: &StateDirectory,
    run: &RunId,
) -> Result<(), Error> {
    if spec.backend == Backend::Process {
        additions.trusted = Some(state.trusted(run));
    }
    let keeps_apart = spec.workspace_mode == WorkspaceMode::Overlay;
    // An engine keeps what is written over a cache on disk as well.
    let has_caches = additions.engine.is_some() && !additions.caches.is_empty();
    if keeps_apart || has_caches || matches!(image, Some(TakenImage::Stored(_))) {
        let [changes, written] = state.mounted(run)?;
        (additions.changes, additions.written) = (Some(changes), Some(written));
    }
    Ok(())
}
