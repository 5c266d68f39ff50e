//! One run, from what is asked to what became of it.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use credential::Vault;
use policy::{Backend, Inbound, RunSpec, WorkspaceMode};
use sandbox::{Additions, Ahead, Caller, EngineRun, Host, InitChannels, Plan, Sidecar, Signals, Started};

use crate::book::Book;
use crate::companion::{self, Common, Companions, Prepared};
use crate::end_signals::SIGTERM;
use crate::engine::PortsHere;
use crate::error::{Error, plumbing};
use crate::expose::Exposed;
use crate::homes::refuse_home;
use crate::images::{self, CommandOrigin, Images};
use crate::last_word::last_word;
use crate::launch::{LaunchState, PlatformData, SidecarEndpoints, SidecarLaunch, StartedPair, allowed_peer};
use crate::platform::{History, Sources};
use crate::random_ids::{new_run_id, placeholders};
use crate::report::{End, Finished, Lived, Report};
use crate::settings::user_file;
use crate::sidecar::SidecarCredentials;
use crate::state::{StateDirectory, overlapped};
use crate::streams::stdio;
use crate::vault::refuse_missing;
use crate::watch::{Seen, Watch};
use crate::{builtin, changes, inbound, proxy_url};

/// How long an engine may take over the containers of a run, beyond the command's own time: until it is the run's turn, and then.
const MAKING: Duration = sandbox::LONGEST_TURN.saturating_add(Duration::from_secs(120));

/// What is to be run.
#[derive(Debug)]
pub struct RunRequest {
    /// What it is and what it may do.
    pub spec: RunSpec,
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// Who asks.
    pub caller: Caller,
    /// Where it is recorded.
    pub state: StateDirectory,
    /// Namespaces for its sandbox, where whoever asks began them early.
    pub ahead: Option<Ahead>,
}

/// Runs a command to its end.
///
/// # Errors
/// When the sandbox or its sidecar could not be made or kept. Nothing half-made is left.
pub fn run(request: RunRequest, report: &mut dyn FnMut(Report<'_>)) -> Result<Finished, Error> {
    let RunRequest { mut spec, command, mut caller, state, ahead } = request;
    let run = new_run_id()?;
    refuse_missing(&spec, &state)?;
    let host = Host::detect();
    let proxy = proxy_url::without_user(&caller);
    let (credentials, platform_data, mut additions) = provide(&spec, &mut caller, &state)?;
    let vault = platform_data.sources.as_ref().and_then(|sources| sources.vault.as_ref());
    let exposed = vault.map(|vault| Exposed::take(&spec, vault)).transpose()?;
    builtin::bring(&mut spec, &caller, &credentials.placeholders, &mut additions)?;
    let (root, command) = match (spec.backend, &spec.image) {
        (Backend::Docker, Some(image)) => {
            let workspace = workspace_of(&spec, &caller);
            let engine = sandbox::find_engine(&caller, image, &workspace, state.engine_slots())?;
            let published = inbound::published_by(&spec.inbound, &engine.at)?;
            let mut engine = EngineRun { published, ..engine };
            if sandbox::takes_account(&spec, &caller, &engine) {
                images::find_account(&mut engine)?;
            }
            let command = images::command_of(&mut spec, &engine.config, command, CommandOrigin::Line)?;
            additions.image = Some(images::root_at(&engine.config));
            additions.engine = Some(engine);
            (None, command)
        }
        _ => images::take(&mut spec, &caller, command, CommandOrigin::Line)?,
    };
    if let Some(root) = &root {
        additions.image = Some(images::root_of(&root.image));
        additions.ids = root.ids.as_ref().map(|ids| ids.range);
        additions.subordinate = root.subordinate;
    }
    if spec.backend == Backend::Process {
        additions.trusted = Some(state.trusted(&run));
    }
    let kept_apart = spec.workspace_mode == WorkspaceMode::Overlay;
    // At an engine what is written over a cache is on disk as well.
    let has_caches = additions.engine.is_some() && !additions.caches.is_empty();
    if kept_apart || root.is_some() || has_caches {
        let [changes, written] = state.mounted(&run)?;
        (additions.changes, additions.written) = (Some(changes), Some(written));
    }
    let plan = sandbox::plan(&spec, &run, &caller, &host, &additions)?;
    refuse_own_state(&plan, &state, &caller)?;
    refuse_home(&plan, &caller)?;
    let prepared = companion::prepare(&spec, &run, &caller, &state, &host)?;
    let is_published = plan.engine.as_ref().is_some_and(|engine| engine.at.publishes());
    let ports = if is_published { Vec::new() } else { inbound::listen(&spec.inbound)? };
    let mut book = Book::open(state.clone(), &run, &plan, &spec, &command, &caller)?;
    for notice in &plan.notices {
        report(Report::Notice(notice));
    }
    let beside = (prepared, ports);
    let stop = images::stop_signal(root.as_ref(), additions.engine.as_ref()).unwrap_or(SIGTERM);
    let exposed = exposed.unwrap_or_default();
    let (spec, command, caller) = (&spec, command.as_slice(), &caller);
    let supplied =
        Supplied { spec, command, caller, credentials, platform_data, exposed, proxy, stop, beside, ahead };
    // Once the run has its mark: what a killed one leaves is looked after.
    let ready = if kept_apart { changes::prepare(&state, &run) } else { Ok(()) };
    let lived = ready.and_then(|()| live(supplied, &plan, &host, &mut book, report));
    let finished = book.close(lived, report);
    if kept_apart && changes::settle(&state, &run) {
        report(Report::KeptApart(&run));
    }
    finished
}

/// Refuses a folder that no run may have for its workspace, as far as that is known without making one.
///
/// # Errors
/// When it would be refused.
pub(crate) fn refuse_unfit(spec: RunSpec, caller: &Caller, state: &StateDirectory) -> Result<(), Error> {
    // As the backend that takes nothing else along would have it.
    let spec = RunSpec { backend: Backend::Linux, image: None, tools: Vec::new(), ..spec };
    let (run, host) = (new_run_id()?, Host::detect());
    let additions = Additions { opens_tls: spec.policy.may_open(), ..Additions::default() };
    let kept_apart = spec.workspace_mode == WorkspaceMode::Overlay;
    let additions = match kept_apart {
        true => {
            let [changes, written] = state.mounted(&run)?;
            Additions { changes: Some(changes), written: Some(written), ..additions }
        }
        false => additions,
    };
    let plan = sandbox::plan(&spec, &run, caller, &host, &additions)?;
    refuse_own_state(&plan, state, caller)?;
    refuse_home(&plan, caller)
}

/// What a run begins with: what was asked, what its sidecar is given for credentials, and who answers it.
struct Supplied<'a> {
    spec: &'a RunSpec,
    command: &'a [OsString],
    caller: &'a Caller,
    credentials: SidecarCredentials,
    platform_data: PlatformData,
    /// What the command is given by value.
    exposed: Exposed,
    proxy: Option<(String, String)>,
    /// By which signal the command is asked to end.
    stop: i32,
    /// The services beside the command, and the ports by which it is reached.
    beside: (Prepared, Vec<(OwnedFd, Inbound)>),
    ahead: Option<Ahead>,
}

/// Makes the placeholders, and gets ready what the sidecar's questions for what they stand for are answered from.
fn provide(
    spec: &RunSpec,
    caller: &mut Caller,
    state: &StateDirectory,
) -> Result<(SidecarCredentials, PlatformData, Additions), Error> {
    let mut additions = Additions { opens_tls: spec.policy.may_open(), ..Additions::default() };
    let mut credentials = SidecarCredentials::default();
    let history = History { directory: state.clone(), workspace: workspace_of(spec, caller) };
    let known_proxy = spec.policy.proxies().declared().any(|proxy| proxy.credential.is_some());
    if spec.policy.providers().next().is_none() && !known_proxy {
        Sources::forget(caller);
        return Ok((credentials, PlatformData { sources: None, history }, additions));
    }
    for (placeholder, provider) in placeholders(&spec.policy)? {
        if provider.llm().is_some() {
            additions.environment.push(("MODEL_BASE_URL".into(), "http://sidecar:8080/llm".into())); // S1.25
        }
        let named = provider.environment().iter().map(|name| (name.clone(), placeholder.to_string()));
        additions.environment.extend(named);
        credentials.placeholders.push((placeholder, provider.id().clone()));
    }
    let organisation = spec.organisation.as_ref();
    let sources = Sources::prepare(caller, state, organisation)?;
    let vault = state.vault(organisation);
    credentials.generation = Some(Vault::generation_file(&vault)?);
    credentials.vault = Some(vault);
    credentials.organisation = organisation.cloned();
    Ok((credentials, PlatformData { sources: Some(sources), history }, additions))
}

/// The folder the command works in.
fn workspace_of(spec: &RunSpec, caller: &Caller) -> PathBuf {
    spec.workspace.as_ref().map_or_else(|| caller.directory.clone(), |named| caller.resolve(named))
}

/// Records, keys and approvals must be out of the agent's reach, and what every run of the person's begins with out of its pen's.
fn refuse_own_state(plan: &Plan, state: &StateDirectory, caller: &Caller) -> Result<(), Error> {
    let mut own = vec![state.directory().to_path_buf()];
    if let Ok(images) = Images::of(caller) {
        // Where there are none, nothing of them can be shown.
        own.extend(
            [images.directory().to_path_buf(), images.directory().join("images")]
                .into_iter()
                .filter(|p| p.exists()),
        );
    }
    let settings: Vec<PathBuf> = user_file(caller)
        .into_iter()
        .flat_map(|file| [file.parent().map(PathBuf::from), file.canonicalize().ok()])
        .flatten()
        .collect();
    if let Some(path) = overlapped(&settings, plan.writable()) {
        let what = format!(
            "`{}` cannot be written inside: your configuration for every run is there",
            path.display()
        );
        let remedy = "choose another folder, or show it with --workspace-mode ro or overlay".to_owned();
        return Err(sandbox::Error::Refused { what, remedy: Some(remedy) }.into());
    }
    match overlapped(&own, plan.shown()) {
        None => Ok(()),
        Some(path) => Err(sandbox::Error::Refused {
            what: format!(
                "`{}` cannot be shown inside: this program's records, keys and images are there",
                path.display()
            ),
            remedy: Some(
                "choose a folder beside them, or move them with XDG_STATE_HOME and XDG_DATA_HOME".into(),
            ),
        }
        .into()),
    }
}

/// Acquires everything in order, waits, and lets the sandbox go. What was acquired for longer is in the undo log.
fn live(
    supplied: Supplied<'_>,
    plan: &Plan,
    host: &Host,
    book: &mut Book,
    report: &mut dyn FnMut(Report<'_>),
) -> Result<Lived, Error> {
    let Supplied {
        spec,
        command,
        caller,
        mut credentials,
        platform_data,
        exposed,
        proxy,
        stop,
        beside,
        ahead,
    } = supplied;
    let (prepared, ports) = beside;
    let signals = Signals::block_forwarded().map_err(plumbing("watch for signals"))?;
    let state = book.state.clone();
    let common = Common { run: &plan.run, caller, state: &state, host, signals: &signals };
    // Gone when this function ends, so before anything that held them is taken away.
    let mut companions = Companions::start(prepared, &common, &mut book.undo, report)?;
    // Not before: a companion is a copy of this process.
    credentials.exposed = exposed.values()?;
    let (ports, ports_here) = if plan.engine.is_some() { (Vec::new(), ports) } else { (ports, Vec::new()) };
    let (inbound, broker) = inbound::broker(ports).map_err(plumbing("make a socket"))?.unzip();
    let (link, link_inside) = sandbox::message_pair().map_err(plumbing("make a socket"))?;
    let (notices, notices_inside) = sandbox::message_pair().map_err(plumbing("make a socket"))?;
    let given = SidecarEndpoints {
        credentials,
        platform_data: Some(platform_data),
        link: link_inside,
        notices: notices_inside,
        allowed_peer: allowed_peer(plan)?,
        entrances: companions.entrances()?,
        inbound,
        chains: companions.chains(&state, &plan.run)?,
        ports_here: PortsHere::of(ports_here)?,
    };
    let mut launch = SidecarLaunch {
        spec,
        plan,
        run: &plan.run,
        companion: None,
        audit: state.audit(&plan.run),
        caller,
        directory: &state,
        proxy,
        notices: notices.as_fd(),
        state: LaunchState::Waiting(Box::new(given)),
    };
    let (stdio, carrier) =
        stdio(spec.terminal, plan.engine.is_some()).map_err(plumbing("use the standard streams"))?;
    // The command's time begins with the command; an engine takes its own before that.
    let making = if plan.engine.is_some() { MAKING } else { Duration::ZERO };
    let deadline = Instant::now() + making + spec.timeout.duration();
    let start = match plan.backend {
        Backend::Linux | Backend::Container => sandbox::start_linux,
        Backend::Docker => sandbox::start_docker,
        Backend::Process => sandbox::start_process,
    };
    let lines = InitChannels { stdio, link, broker, visits: companions.visits(0), ahead };
    let filled = exposed.put_into(plan)?;
    let started = start(&filled, host, command, lines, &mut launch, &mut book.undo);
    drop(filled);
    let StartedPair { sandbox, sidecar, platform } = launch.finish(started)?;
    let mut streams = match carrier.start() {
        Ok(streams) => streams,
        Err(source) => {
            sandbox.kill();
            sandbox.wait();
            sidecar.end();
            return Err(plumbing("carry the standard streams")(source));
        }
    };
    // This process answers for credentials from now on: nobody may look into it. Not earlier, or ids could not be mapped.
    let _ = sandbox::undumpable();
    book.look_for_dead();
    let watch = Watch {
        sandbox: &sandbox,
        sidecar: &sidecar,
        notices: notices.as_fd(),
        signals: &signals,
        platform,
        companions: &mut companions,
        streams: &mut streams,
        deadline,
        timeout: spec.timeout.duration(),
        stop,
        setup: (&spec.setup, book.set_up()),
        report,
    };
    let end = watch.until_end();
    let left = Left { end, sandbox, sidecar, companions };
    left.let_go(notices.as_fd(), book, report)
}

/// A run whose command is over, with what of it is still there.
struct Left {
    end: Result<Seen, Error>,
    sandbox: Started,
    sidecar: Sidecar,
    companions: Companions,
}

impl Left {
    /// Ends what is left, in the order in which nothing of it is missed.
    fn let_go(
        self,
        notices: BorrowedFd<'_>,
        book: &mut Book,
        report: &mut dyn FnMut(Report<'_>),
    ) -> Result<Lived, Error> {
        let Self { end, mut sandbox, sidecar, mut companions } = self;
        // One that ended by itself leaves the processor to the sidecar first. The kernel takes its time over namespaces, and what
        // there is to write is written meanwhile.
        if !matches!(end, Ok(Seen { end: End::Ended(_), .. })) {
            sandbox.kill();
        }
        let usage = sandbox.usage();
        let Seen { end, summary, used } = match end {
            Ok(seen) => seen,
            Err(error) => {
                sandbox.wait();
                sandbox.release();
                // Its record is whole before this process ends, and it with it.
                sidecar.end();
                return Err(error);
            }
        };
        if let Some(path) = sandbox.unprotected() {
            let path = path.display();
            report(Report::Notice(&format!(
                "`{path}` was replaced on this machine as the run ended; see that it says what you wrote"
            )));
        }
        if matches!(end, End::Ended(_)) {
            // Nobody is left inside, and the sidecar still writes.
            sandbox.release();
            book.give_back_names();
        }
        let summary = summary.or_else(|| last_word(notices, report));
        book.note_missing_records(summary.as_ref(), report);
        companions.end(&mut book.undo);
        Ok(Lived { end, summary, usage: usage.or(used), sandbox })
    }
}
