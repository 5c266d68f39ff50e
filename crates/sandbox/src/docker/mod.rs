//! The `docker` backend: an engine makes, through its API, a container for the agent and one for its sidecar, on a network of the
//! run's own.
//!
//! ```text
//! parent ── fork ──► shim ── API ──► network lockgate-exec-RUN (internal, the host has no address)
//!    ▲                 │                 ├─ lockgate-agent-RUN     our init, then the command
//!    └── events ───────┘                 └─ lockgate-sidecar-RUN   also on lockgate-egress
//! ```
//! Allowed names resolve to addresses of the run's network, all of which are the sidecar's: every connection of a program reaches
//! it, whether the program uses a proxy or not. Both containers run our own binary as their first process, and the shim talks to it
//! over their standard streams. A sidecar that waits in the pool is taken instead of made.

mod accounts;
mod acquire;
mod agent;
mod agent_session;
mod apart;
mod attached;
mod background;
mod below;
mod brief;
mod container;
mod copies;
mod engine;
mod engine_error;
mod examine;
mod inputs;
mod inside;
mod inspect;
mod limit_check;
mod list;
mod mux;
mod names;
mod networks;
mod overlay;
mod overlay_check;
mod podman;
mod pool;
mod port_health;
mod prepare;
mod published;
mod relay;
mod remover;
mod replenish;
mod shim;
mod slots;
mod streams;
mod tool_files;
mod way;
mod wire;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use policy::RunId;
use sys::descriptor;
use sys::process::{self, Namespaces};

pub use self::accounts::{Accounts, follow_volumes, read_accounts};
use self::apart::{LONGEST, LONGEST_REMOVAL, apart};
use self::brief::Shown;
use self::container::Protected;
pub use self::container::{INSIDE_AGENT, INSIDE_SIDECAR};
use self::engine::{Engine, RunObjects};
use self::engine_error::{error_text, status};
pub use self::examine::examine_engine;
use self::inputs::ShimInputs;
pub use self::inside::run_engine_agent;
pub use self::mux::{Channel, Frames, LONGEST_FRAME, frame};
pub use self::pool::POOL_MAX_IDLE;
pub use self::port_health::{INSIDE_ACCEPTS, probe_ports};
pub use self::published::{
    Outward, is_beside_sidecars, is_of_sidecars, outward, refuse_hidden_sources, refuse_unreachable,
};
pub use self::slots::LONGEST_SLOT_WAIT;
use self::slots::Slots;
pub use self::wire::wire_run_network;
use crate::caller::Caller;
use crate::error::Error;
use crate::launch::Stdio;
use crate::plan::Plan;
use crate::plan::engine::{EngineKind, EngineRun, socket};
use crate::run_network::Visit;
use crate::started::{InitChannels, SidecarStart, Started, Teardown};
use crate::step::{Step, Visible};
use crate::undo::{Undo, UndoLog};
use crate::{protect, source};

/// How long an engine may take over its first answer before a removal.
const FIRST_WORD: Duration = Duration::from_secs(10);
const NOT_FOUND: u16 = 404;
/// How many times the removal looks for objects that Podman was still making for a killed run, and the pause in between.
const REMOVAL_ROUNDS: usize = 4;
const ROUND_PAUSE: Duration = Duration::from_millis(1500);

/// Finds the caller's engine and an image there, before anything is planned. `slots` is the directory of the slots, in the caller's
/// own, made when it is needed.
///
/// # Errors
/// When there is no engine, it is too old, or it has no such image or one that cannot be used, and when the name is none of an image or the
/// caller's size of the pool is invalid.
pub fn find_engine(
    caller: &Caller,
    image: &str,
    workspace: &Path,
    slots: PathBuf,
) -> Result<EngineRun, Error> {
    inspect::refuse_other_names(image)?;
    let pool = pool::size(caller)?;
    let socket = socket(caller)?;
    let owner = std::fs::metadata(workspace).map_or((0, 0), |about| (about.uid(), about.gid()));
    let found = apart(LONGEST, || async {
        let look = |engine: Engine| async move { inspect::look(&engine, image).await };
        let (_, at, found) = Engine::find(&socket, look).await?;
        match found {
            // Containers are made by the id that was looked at: the name may mean another image by then.
            Ok(config) if config.id.is_empty() => Err(Error::Refused {
                what: format!("the engine does not tell the id of the image `{image}`"),
                remedy: None,
            }),
            Ok(config) => {
                inspect::refuse_nul(image, &config)?;
                let pool = if at.lends_sidecars() { pool } else { 0 };
                let (image, ports, published) = (image.to_owned(), Vec::new(), Vec::new());
                Ok(EngineRun { at, image, config, owner, pool, ports, published, slots: PathBuf::new() })
            }
            Err(error) if status(&error) == Some(NOT_FOUND) => Err(Error::Refused {
                what: format!("the engine has no image `{image}`"),
                remedy: Some(format!("docker pull {image}, or build it there")),
            }),
            Err(error) => Err(Error::Refused {
                what: format!("the engine does not tell of the image `{image}`: {}", error_text(&error)),
                remedy: None,
            }),
        }
    });
    found.map(|found| EngineRun { slots, ..found })
}

/// Removes all objects of a run at an engine. Objects that are gone are no error.
pub(crate) fn remove(socket: &Path, run: &RunId) -> io::Result<()> {
    let removed = apart(LONGEST_REMOVAL, || async {
        // An engine that hangs gets less time than one that has much to remove.
        let Ok(word) = tokio::time::timeout(FIRST_WORD, podman::kind_of(socket)).await else {
            return Ok(false);
        };
        word.map_err(|error| engine::unusable(socket, &error.to_string()))?;
        let ask = |engine: Engine| async move { engine.objects(run).await };
        let (engine, _, mut found) = Engine::find(socket, ask).await?;
        let mut round = 1;
        loop {
            let taken = take_away(&engine, run, found).await;
            // Podman goes on making what a killed shim had asked for, and fails on objects that vanish meanwhile.
            let is_last = engine.kind == EngineKind::Docker || round == REMOVAL_ROUNDS;
            match taken {
                Ok(was_there) if is_last || !was_there && round > 1 => return Ok(true),
                Err(what) if is_last => return Err(Error::Refused { what, remedy: None }),
                _ => tokio::time::sleep(ROUND_PAUSE).await,
            }
            round += 1;
            found = engine.objects(run).await;
        }
    });
    match removed {
        Ok(true) => Ok(()),
        Ok(false) => Err(silent(socket)),
        Err(error) => Err(io::Error::other(error.to_string())),
    }
}

/// Returns the error for an engine that does not answer.
pub(crate) fn silent(socket: &Path) -> io::Error {
    let why = format!("the engine at {} does not answer", socket.display());
    io::Error::new(io::ErrorKind::TimedOut, why)
}

/// Removes what was found, and the run's volumes. Returns whether anything was found.
async fn take_away(
    engine: &Engine,
    run: &RunId,
    found: Result<RunObjects, bollard::errors::Error>,
) -> Result<bool, String> {
    let objects = found.map_err(|error| error_text(&error))?;
    engine.remove_all(&objects).await?;
    engine.remove_volumes(run).await?;
    Ok(!objects.is_empty())
}

/// Starts the shim of a plan, which makes the containers and starts the command once the sidecar serves.
///
/// # Errors
/// When a source is refused, or the shim cannot be started. Whatever was acquired is in `undo`.
pub(crate) fn start(
    plan: &Plan,
    command: &[OsString],
    InitChannels { stdio, sidecar, broker, visits, .. }: InitChannels,
    starter: &mut dyn SidecarStart,
    undo: &mut UndoLog,
) -> Result<Started, Error> {
    let handshake = |source| Error::Handshake { whom: "the shim", source };
    let Some(engine) = &plan.engine else {
        let source = io::Error::other("the plan names no engine");
        return Err(Error::Start { what: "the shim", source });
    };
    let hold = match plan.steps.contains(&Step::Protect) {
        true => Some(protect::hold_absent(&plan.workspace, &plan.open, undo)?),
        false => None,
    };
    let (cover_watch, held) = hold.map(|hold| (hold.cover_watch, hold.names)).unzip();
    let (shown, protected) = look_at_sources(plan, &held.unwrap_or_default())?;
    below::refuse(plan, &protected)?;
    way::make(plan)?;
    overlay::prepare(plan, undo)?;
    undo.push(Undo::Engine(engine.at.socket.clone(), plan.run.clone()));
    let (control, control_inside) = descriptor::message_pair().map_err(handshake)?;
    let (hand, hand_inside) = descriptor::message_pair().map_err(handshake)?;
    let (remover, run_lock) = match is_left_behind(plan, engine, &visits, broker.as_ref()) {
        true => Some(descriptor::message_pair().map_err(handshake)?).unzip(),
        false => (None, None),
    };
    let unknown = replenish::uuid().map_err(|source| Error::Start { what: "the shim", source })?;
    let given = ShimInputs {
        plan,
        command,
        stdio,
        control: control_inside,
        stand_in: sidecar,
        broker,
        visits,
        engine: &engine.at,
        slots: Slots::of(&engine.slots, &engine.at.socket),
        pool: engine.pool,
        image: &engine.config.id,
        place: names::own_place(&unknown),
        shown,
        protected,
        notices: Vec::new(),
        hand: hand_inside,
        run_lock,
    };
    // No parent-death signal: the shim would end before it could remove anything. It sees this process's end on the socket.
    let init = process::clone(Namespaces::NONE, None, move |forked| {
        let _ = rustix::process::setsid();
        let mut keep = vec![given.control.as_fd(), given.stand_in.as_fd(), given.hand.as_fd()];
        keep.extend([&given.broker, &given.run_lock].into_iter().flatten().map(AsFd::as_fd));
        if let Stdio::Descriptors(list) = &given.stdio {
            keep.extend(list.iter().map(AsFd::as_fd));
        }
        match forked.close_all_but(&keep) {
            Ok(()) => shim::live(given),
            Err(_) => 1,
        }
    })
    .map_err(|source| Error::Start { what: "the shim", source })?;
    // The certificate of the run's authority comes once the engine has made the sidecar; nobody waits for that here.
    let hand = plan.opens_tls().then_some(hand).into();
    let started =
        Started { cover_watch, hand, remover, ..Started::of(init, control, None, Teardown::TakeAway) };
    start_sidecar(starter, started)
}

/// Starts the sidecar's process on this machine. Kills the shim if that fails.
fn start_sidecar(starter: &mut dyn SidecarStart, started: Started) -> Result<Started, Error> {
    match starter.start() {
        Ok(()) => Ok(started),
        Err(error) => {
            started.kill();
            started.wait();
            Err(error)
        }
    }
}

/// Whether a run's objects may be removed behind it. Not if somebody needs them gone: a reader of the changes to an overlaid
/// workspace, the next run that wants the same port of this machine, or a companion, whose network must go as well.
fn is_left_behind(plan: &Plan, engine: &EngineRun, visits: &[Visit], broker: Option<&OwnedFd>) -> bool {
    engine.at.kind == EngineKind::Docker
        && overlay::overlays(plan).next().is_none()
        && engine.published.is_empty()
        && visits.is_empty()
        && broker.is_none()
        && background::lasts()
}

/// Opens the sources of all bind mounts without following links, and returns which file each is, since the engine looks them up
/// again; and the protected paths of the workspace.
fn look_at_sources(plan: &Plan, held: &[PathBuf]) -> Result<(Vec<Shown>, Vec<Protected>), Error> {
    let mut shown = Vec::new();
    let mut protected = Vec::new();
    for step in &plan.steps {
        match step {
            Step::ShowWorkspace(path, _) => shown.push(look_at(path, path)?),
            Step::Show(Visible { source: path, target, .. }) => shown.push(look_at(path, target)?),
            Step::Protect => {
                protected = protect::present(&plan.workspace, &plan.open, held)?;
                for (path, _) in &protected {
                    shown.push(look_at(path, path)?);
                }
            }
            _ => {}
        }
    }
    for copy in copies::copies(plan) {
        source::refuse_uncopied(copy.source)?;
        shown.push(look_at(copy.source, &copy.place)?);
    }
    for overlay in overlay::overlays(plan) {
        shown.push(look_at(overlay.below, &overlay.shown_below())?);
    }
    Ok((shown, protected))
}

/// Opens the source of one bind mount, and returns which file it is.
fn look_at(path: &Path, target: &Path) -> Result<Shown, Error> {
    let opened = source::open(path)?;
    let stat = rustix::fs::fstat(&opened)
        .map_err(|errno| Error::Source { path: path.into(), why: io::Error::from(errno).to_string() })?;
    Ok(Shown { target: target.into(), device: stat.st_dev, inode: stat.st_ino })
}
