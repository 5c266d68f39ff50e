//! Starts a run's shim: looks at what the engine is to show, forks the shim, and starts the sidecar's process on this machine.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use sys::descriptor;
use sys::process::{self, Child, Namespaces};

use super::brief::Shown;
use super::container::Protected;
use super::inputs::ShimInputs;
use super::slots::Slots;
use super::{background, below, copies, names, overlay, replenish, shim, way};
use crate::error::Error;
use crate::launch::Stdio;
use crate::plan::Plan;
use crate::plan::engine::{EngineKind, EngineRun};
use crate::run_network::Visit;
use crate::started::{InitChannels, SidecarStart, Started, Teardown};
use crate::step::{Step, Visible};
use crate::undo::{Undo, UndoLog};
use crate::{protect, source};

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
    let engine = plan.engine.as_ref();
    let engine = engine.ok_or_else(|| unstarted(io::Error::other("the plan names no engine")))?;
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
    let unknown = replenish::uuid().map_err(unstarted)?;
    let init = fork_shim(ShimInputs {
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
    })?;
    // The certificate of the run's authority comes once the engine has made the sidecar; nobody waits for that here.
    let hand = plan.opens_tls().then_some(hand).into();
    let started =
        Started { cover_watch, hand, remover, ..Started::of(init, control, None, Teardown::TakeAway) };
    start_sidecar(starter, started)
}

/// Forks the shim, which keeps its inputs open and no other descriptor. This process's copies of them are closed.
fn fork_shim(given: ShimInputs<'_>) -> Result<Child, Error> {
    // No parent-death signal: the shim would end before it could remove anything. It sees this process's end on the socket.
    let shim = process::clone(Namespaces::NONE, None, move |forked| {
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
    });
    shim.map_err(unstarted)
}

/// Returns the error for a shim that cannot be started.
pub(super) fn unstarted(source: io::Error) -> Error {
    Error::Start { what: "the shim", source }
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
    let opened = source::open_shown(path)?;
    let stat = rustix::fs::fstat(&opened)
        .map_err(|errno| Error::Source { path: path.into(), why: io::Error::from(errno).to_string() })?;
    Ok(Shown { target: target.into(), device: stat.st_dev, inode: stat.st_ino })
}
