//! The shim: a process that stands for a run's init towards its parent, and makes, watches and takes away what an engine has
//! of the run. Whatever ends first, it takes everything away before it ends itself.
//!
//! ```text
//! parent ◄─ events ─ shim ─ API ─► engine ─► agent's container ─┐ network of the run
//! parent ── signals ►   │                                         │
//! sidecar ◄─ line ──────┴─ stdio ──► engine ─► sidecar's container┘ ─► outside
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::{FutureExt, TryFutureExt};
use policy::{MountMode, WorkspaceMode};
use tokio::net::UnixStream;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;

use super::acquire::{Carried, Held, Networks, Sidecar};
use super::attached::Attached;
use super::container::copied;
use super::engine::Engine;
use super::engine_error::told;
use super::inputs::{ShimInputs, agent_name};
use super::inside::Brief;
use super::limit_check::Asked;
use super::names::{network_name, sidecar_name};
use super::remover::Remover;
use super::replenish::Replenisher;
use super::slots::Slot;
use super::streams::{self, Streams, Word};
use super::talk::{Ended, Talk};
use super::tool_files::Brought;
use super::{agent, overlay, port_health, prepare};
use crate::event::Event;
use crate::failure::Failure;
use crate::launch::Launch;
use crate::plan::Plan;
use crate::plan::engine::Maker;
use crate::run_network::{RunNetwork, send_line};
use crate::socket_broker::tell_network;
use crate::started::BEHIND;
use crate::step::{Step, Visible};

/// How long an engine may take over taking away.
const TAKING: Duration = Duration::from_secs(20);
/// How long the sidecar's container may take over its last word.
const LAST_WORD: Duration = Duration::from_secs(5);
/// How many words may wait to be heard, and pieces to be written.
const WAITING: usize = 16;

/// The processes that go on behind the run.
struct Behind {
    replenisher: Option<Replenisher>,
    remover: Option<Remover>,
}

/// What became of what an engine had of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// It is gone.
    Gone,
    /// It is being taken away behind the run.
    Behind,
}

/// The life of a shim, and the status it ends with.
pub(super) fn live(mut given: ShimInputs<'_>) -> i32 {
    let mark = given.mark.take();
    let mut behind = Behind {
        // A pool that nobody fills is an empty one.
        replenisher: Replenisher::start(given.engine, &given.slots, given.pool).ok().flatten(),
        // Where nobody else takes away, this process does.
        remover: mark.and_then(|mark| Remover::start(given.engine, &given.plan.run, &mark).ok()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return 1 };
    let kept = runtime.block_on(keep(given, &mut behind));
    // Threads that wait for somebody else's streams are not waited for.
    runtime.shutdown_background();
    match kept {
        Ok(Over::Gone) => 0,
        Ok(Over::Behind) => BEHIND,
        Err(_) => 1,
    }
}

/// Makes, watches, takes away. What could not be made is taken away as well.
async fn keep(given: ShimInputs<'_>, behind: &mut Behind) -> Result<Over, Failure> {
    let fail = |step: &str, cause: String| Failure::new(step, cause);
    let (plan, at, run, slots) = (given.plan, given.engine, given.plan.run.clone(), given.slots.clone());
    let engine = Engine::at(at).map_err(|e| fail("reach the engine", told(&e)))?;
    let held = Held::default();
    let (words, mut heard) = channel(WAITING);
    let (link, control) = (given.link.try_clone(), given.control.try_clone());
    let (Ok(link), Ok(control)) = (link, control) else {
        return Err(fail("start the shim", "there are no descriptors left".into()));
    };
    let told = control.try_clone();
    streams::hear_parent(control, words.clone());
    // Nothing has been made of a run that is over by then, and the parent knows why it is.
    let Some(slot) = Slot::take(&slots, &words, &mut heard).await else { return Ok(Over::Gone) };
    let kept = async {
        let made = make(&given, &engine, &held).await?;
        slot.end();
        streams::hear_sidecar(link, words.clone());
        watch(given, &engine, made, &held, behind, words, heard).await
    };
    let mut kept = kept.await;
    let is_cut = match &mut kept {
        Err(failure) if prepare::is_cut(&engine, &sidecar_name(&run)).await => {
            failure
                .cause
                .push_str("; the engine had a part of this program only, and makes it anew for the next run");
            true
        }
        _ => false,
    };
    if let (Err(failure), Ok(control)) = (&kept, told) {
        // Before the sidecar is let go, whose end the parent would otherwise see first.
        let _ = Event::Failed(failure.clone()).send(control.as_fd());
    }
    if kept.as_ref().is_ok_and(|over| *over == Over::Behind) {
        return kept;
    }
    // An engine that made none is not asked for them.
    let makes_volumes = engine.maker == Maker::Podman || overlay::overlays(plan).next().is_some();
    // The link is closed by now, so the sidecar has been told that the run is over.
    let (network, held) = (network_name(&run), held.into_inner());
    let _place = slots.await_end().await;
    let removed = async {
        let (containers, network) = tokio::join!(
            futures_util::future::join_all(held.iter().map(|container| engine.remove_container(container))),
            // Tried again until the engine has let go of all of them.
            engine.remove_network(&network)
        );
        let volumes = if makes_volumes { engine.remove_volumes(&run).await } else { Ok(()) };
        (containers, network.and(volumes))
    };
    let removed = async {
        let removed = removed.await;
        if is_cut {
            prepare::remove_volume(&engine).await;
        }
        removed
    };
    // What is left is found by its label: by the parent, at once, and by the next start.
    let (containers, network) = match tokio::time::timeout(TAKING, removed).await {
        Ok((containers, network)) => (containers.into_iter().collect::<Result<(), String>>(), network),
        Err(late) => (Err(late.to_string()), Ok(())),
    };
    let taken = containers.and(network).map_err(|cause| fail("take everything away", cause));
    kept.and_then(|over| taken.map(|()| over))
}

/// What was made at the engine.
struct Made {
    agent: Attached,
    sidecar: Carried,
    /// The sidecar's container, by its name or its id.
    container: String,
    network: RunNetwork,
}

/// Makes the network and both containers, and starts them: the agent's waits for the word to begin, the sidecar's for its letter.
async fn make(given: &ShimInputs<'_>, engine: &Engine, held: &Held) -> Result<Made, Failure> {
    let fail = |step: &'static str| move |cause: String| Failure::new(step, cause);
    let plan = given.plan;
    // Any number will do that is not every run's first choice.
    let first =
        plan.run.as_str().bytes().fold(0u32, |sum, octet| sum.wrapping_mul(31).wrapping_add(octet.into()));
    let likely = RunNetwork::numbered(first);
    let own = prepare::own(engine).map_err(fail("make the sidecar's image")).shared();
    // Whoever reaches a companion is made meanwhile.
    let tell = |network: &RunNetwork| {
        given.broker.iter().for_each(|broker| tell_network(broker, *network));
    };
    let network = engine.make_network(plan, first).inspect_ok(tell);
    let network = network.map_err(fail("make the run's network")).shared();
    held.borrow_mut().push(agent_name(plan));
    let (filled, is_filled) = oneshot::channel();
    // One thing after the other within each of the two, which wait for the network, and for our own binary in its volume.
    let (sidecar, made) = tokio::join!(
        async {
            let (network, sidecar) = tokio::join!(network.clone(), async {
                let own = own.clone().await?;
                let sidecar = Sidecar::acquire(plan, engine, &own, held, filled).await?;
                Ok((own, sidecar))
            });
            let (network, (own, sidecar)) = (network?, sidecar?);
            let networks = Networks { own: network, visits: &given.visits };
            sidecar.join(plan, engine, &own, held, networks, || hand_line(given.link.as_fd(), network)).await
        },
        async { agent::start(given, engine, &own.clone().await?, likely, network.clone(), is_filled).await }
    );
    let (container, sidecar) = sidecar?;
    Ok(Made { sidecar, container, agent: made?, network: network.await? })
}

/// Gives the sidecar's process on this machine the other end of a line, and tells it the network.
fn hand_line(link: BorrowedFd<'_>, network: RunNetwork) -> io::Result<UnixStream> {
    let (ours, line) = StdStream::pair()?;
    send_line(link, &line.into(), network)?;
    ours.set_nonblocking(true)?;
    UnixStream::from_std(ours)
}

/// Passes on what is said until one of them, or the parent, has ended.
async fn watch(
    given: ShimInputs<'_>,
    engine: &Engine,
    made: Made,
    held: &Held,
    behind: &mut Behind,
    words: Sender<Word>,
    heard: Receiver<Word>,
) -> Result<Over, Failure> {
    let fail = |step: &str, cause: String| Failure::new(step, cause);
    let ShimInputs {
        plan,
        command,
        stdio,
        control,
        link,
        engine: at,
        broker,
        shown,
        hand,
        notices,
        slots,
        ..
    } = given;
    let agent = agent_name(plan);
    let Made { agent: attached, sidecar: mut carried, container, network } = made;
    let streams = Streams::open(stdio).map_err(|e| fail("use the standard streams", e.to_string()))?;
    if plan.opens_tls() {
        streams::hear_authority(hand, words.clone());
    }
    let brief = Brief {
        launch: port_health::ask_ports(Launch::of(plan, command), plan, network),
        terminal: streams.terminal.is_some(),
        shown,
        copies: copies(plan),
        overlays: overlay::all_asked(plan).map_err(|e| fail("keep apart what is written", e.to_string()))?,
        brought: Brought::of(plan),
        writable: writable(plan),
        authority: None,
        lingers: at.maker == Maker::Podman,
        limits: Asked::of(plan),
        notices,
    };
    let asked = words.clone();
    let mut talk = Talk::new(attached, brief, plan.opens_tls(), control, streams, words, heard);
    if let Some(broker) = broker {
        talk.answer_on(broker, asked).map_err(|e| fail("hear what is asked", e.to_string()))?;
    }
    let mut begun = false;
    let mut last_words = None;
    let ended = loop {
        tokio::select! {
            said = &mut carried => {
                last_words = Some(said.ok());
                break Ended::SidecarGone;
            }
            slot = talk.slot() => match slot? {
                None if talk.has_begun() && !begun => {
                    begun = true;
                    behind.replenisher.iter().for_each(Replenisher::announce_begun);
                }
                None => {}
                Some(ended) => break ended,
            },
        }
    };
    let (began, has_ended) = (talk.has_begun(), talk.has_ended());
    let close = async {
        let _attached = talk.close().await;
        // Hung up on, the sidecar's process here asks the one there to end, and lets go of the line once it has.
        let _ = rustix::net::shutdown(&link, rustix::net::Shutdown::Both);
        drop(link);
        match last_words {
            None => {
                let said = tokio::time::timeout(LAST_WORD, &mut carried).await;
                said.ok().and_then(Result::ok).map(|(said, _)| said).unwrap_or_default()
            }
            Some(said) => said.map(|(said, _)| said).unwrap_or_default(),
        }
    };
    if let (Some(remover), Ended::Command, true) = (behind.remover.take(), ended, has_ended) {
        // Everything the command started is dead, or its container would not have told the end: what held it may be given back.
        close.await;
        return Ok(if remover.take(&slots, &held.borrow()) { Over::Behind } else { Over::Gone });
    }
    // What the command wrote is here by now, and what is left of the agent's container can go meanwhile.
    let agent = async {
        let _place = slots.await_end().await;
        match ended {
            Ended::Command => engine.remove_ended(&agent).await,
            Ended::Parent | Ended::SidecarGone => engine.remove_container(&agent).await,
        }
    };
    let (_, said) = tokio::join!(agent, async {
        let said = close.await;
        if ended == Ended::Command {
            let _ = engine.remove_ended(&container).await;
        }
        said
    });
    if ended == Ended::SidecarGone {
        let cause =
            if said.is_empty() { "its container ended, or the engine let go of it".into() } else { said };
        return Err(fail(if began { "keep the sidecar" } else { "start the sidecar" }, cause));
    }
    Ok(Over::Gone)
}

/// What is copied: where the engine shows it, and where it belongs.
fn copies(plan: &Plan) -> Vec<(PathBuf, PathBuf)> {
    let targets = plan.steps.iter().filter_map(|step| match step {
        Step::Copy(_, target) => Some(target.clone()),
        _ => None,
    });
    targets.enumerate().map(|(number, target)| (copied(number), target)).collect()
}

/// Where the command may write.
fn writable(plan: &Plan) -> Vec<PathBuf> {
    let places = plan.steps.iter().filter_map(|step| match step {
        Step::PrivateDirectory { path, .. } | Step::ShowWorkspace(path, WorkspaceMode::ReadWrite) => {
            Some(path)
        }
        Step::Show(Visible { target, mode: MountMode::ReadWrite, .. }) | Step::Copy(_, target) => {
            Some(target)
        }
        _ => None,
    });
    places.cloned().chain(overlay::overlays(plan).map(|overlay| overlay.place())).collect()
}
