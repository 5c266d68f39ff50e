//! The shim: a process that acts as a run's init towards its parent, and makes, watches and removes what an engine has of the
//! run. Whatever ends first, the shim removes everything before it ends itself.
//!
//! ```text
//! parent ◄─ events ── shim ── API ─► engine ─► agent's container ─┐ network of the run
//! parent ── signals ►   │                                         │
//! sidecar ◄─ frames ────┴─ stdio ──► engine ─► sidecar's container┘ ─► outside
//! ```

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use futures_util::{FutureExt, TryFutureExt};
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use super::acquire::{AcquiredSidecar, Carried, Networks, ToRemove};
use super::agent_session::{AgentSession, Authority, Ended};
use super::attached::Attached;
use super::brief::{self, Brief};
use super::conversation::{Conversation, Lost, Open, close, converse};
use super::engine::Engine;
use super::engine_error::error_text;
use super::inputs::{ShimInputs, agent_name};
use super::limit_check::LimitRequest;
use super::names::{network_name, sidecar_name};
use super::remover::Remover;
use super::replenish::Replenisher;
use super::slots::{Slot, Slots};
use super::streams::{self, Mailbox, Streams};
use super::tool_files::ToolFiles;
use super::{agent, copies, overlay, port_health, prepare};
use crate::event::Event;
use crate::failure::Failure;
use crate::launch::{Launch, Stdio};
use crate::plan::Plan;
use crate::plan::engine::EngineKind;
use crate::run_network::{RunNetwork, send_line};
use crate::socket_broker::tell_network;
use crate::started::BEHIND;

/// How long an engine may take to remove a run's objects.
const REMOVAL: Duration = Duration::from_secs(20);

/// The processes that outlive the run.
struct Behind {
    replenisher: Option<Replenisher>,
    remover: Option<Remover>,
}

/// How far the removal of a run's objects at the engine has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    Done,
    /// The remover goes on with it behind the run.
    Behind,
}

/// What becomes of the volume with our own binary at the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BinaryVolume {
    Keep,
    /// The volume has a part of the binary only: the next run fills a new one.
    Remove,
}

/// Runs the shim, and returns its exit status.
pub(super) fn live(mut given: ShimInputs<'_>) -> i32 {
    let run_lock = given.run_lock.take();
    let mut behind = Behind {
        // Without a replenisher the pool stays empty, and runs go on.
        replenisher: Replenisher::start(given.engine, &given.slots, given.pool).ok().flatten(),
        // Without a remover the shim removes everything itself.
        remover: run_lock.and_then(|socket| Remover::start(given.engine, &given.plan.run, &socket).ok()),
    };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return 1 };
    let kept = runtime.block_on(keep(given, &mut behind));
    // Does not wait for threads that block on the caller's streams.
    runtime.shutdown_background();
    match kept {
        Ok(Removal::Done) => 0,
        Ok(Removal::Behind) => BEHIND,
        Err(_) => 1,
    }
}

/// Makes the run's objects, watches them, and removes them, also when making them failed.
async fn keep(given: ShimInputs<'_>, behind: &mut Behind) -> Result<Removal, Failure> {
    let engine = Engine::at(given.engine).map_err(|e| Failure::new("reach the engine", error_text(&e)))?;
    let shim = Shim {
        plan: given.plan,
        engine,
        slots: given.slots.clone(),
        to_remove: ToRemove::default(),
        patience: REMOVAL,
        is_given_up: Cell::new(false),
    };
    let mut mailbox = Mailbox::new();
    let (Ok(stand_in), Ok(control)) = (given.stand_in.try_clone(), given.control.try_clone()) else {
        return Err(Failure::new("start the shim", "there are no descriptors left".to_owned()));
    };
    let parent = control.try_clone();
    streams::watch_parent(control, mailbox.sender.clone());
    // A run that is over by now has made nothing, and the parent knows why it is over.
    let Some(slot) = Slot::take(&shim.slots, &mut mailbox).await else { return Ok(Removal::Done) };
    let made = shim.make(&given).await;
    slot.end();
    // What stays open until a failure is told: without its socket the sidecar ends, and at that end the parent kills this process.
    let (mut kept, held, open) = match made {
        Ok(made) => {
            streams::watch_sidecar(stand_in, mailbox.sender.clone());
            match shim.watch(given, made, behind, mailbox).await {
                Ok(removal) => (Ok(removal), None, None),
                Err(Lost { failure, open }) => (Err(failure), None, open),
            }
        }
        Err(failure) => (Err(failure), Some((given, stand_in)), None),
    };
    let binary = match &mut kept {
        Err(failure) => shim.examine_failure(failure).await,
        Ok(_) => BinaryVolume::Keep,
    };
    if let (Err(failure), Ok(parent)) = (&kept, parent) {
        let _ = Event::Failed(failure.clone()).send(parent.as_fd());
    }
    drop(held);
    if let Some(Open { session, stand_in, sidecar }) = open {
        // Whatever befell the command, the sidecar is asked to end, so that its audit is whole.
        close(session, stand_in, sidecar, None).await;
    }
    if let Ok(Removal::Behind) = kept {
        return kept;
    }
    // The socket to the stand-in is closed by now, so the sidecar knows that the run is over.
    let removed = shim.remove_all(binary).await;
    kept.and_then(|removal| removed.map(|()| removal))
}

/// What all stages of a run use.
struct Shim<'a> {
    plan: &'a Plan,
    engine: Engine,
    slots: Slots,
    to_remove: ToRemove,
    /// How long the engine may take over a removal. A ping may take a quarter of that.
    patience: Duration,
    /// Whether both have taken longer: the engine is asked for nothing more, and the parent tries once.
    is_given_up: Cell<bool>,
}

/// The objects of a run at the engine.
struct Made {
    agent: Attached,
    sidecar: Carried,
    /// The sidecar's container, by its id.
    container: String,
    network: RunNetwork,
}

impl Shim<'_> {
    /// Makes the network and both containers, and starts them. The agent's then waits for its brief, the sidecar's for its
    /// bootstrap message.
    async fn make(&self, given: &ShimInputs<'_>) -> Result<Made, Failure> {
        let Self { plan, engine, to_remove, .. } = self;
        // Any number that is not every run's first choice.
        let first = plan
            .run
            .as_str()
            .bytes()
            .fold(0u32, |sum, octet| sum.wrapping_mul(31).wrapping_add(octet.into()));
        let likely = RunNetwork::numbered(first);
        let own = prepare::own(engine).map_err(Failure::at("make the sidecar's image")).shared();
        // The companion's peers are made meanwhile.
        let tell = |network: &RunNetwork| {
            given.broker.iter().for_each(|broker| tell_network(broker, *network));
        };
        let network = engine.make_network(plan, first).inspect_ok(tell);
        let network = network.map_err(Failure::at("make the run's network")).shared();
        to_remove.push(agent_name(plan));
        let (filled, is_filled) = oneshot::channel();
        // Both wait for the network, and for our own binary in its volume.
        let (sidecar, made) = tokio::join!(
            async {
                let (network, sidecar) = tokio::join!(network.clone(), async {
                    let own = own.clone().await?;
                    let sidecar = AcquiredSidecar::acquire(plan, engine, &own, to_remove, filled).await?;
                    Ok((own, sidecar))
                });
                let (network, (own, sidecar)) = (network?, sidecar?);
                let networks = Networks { own: network, visits: &given.visits };
                let stream = || open_stream(given.stand_in.as_fd(), network);
                sidecar.join(plan, engine, &own, to_remove, networks, stream).await
            },
            async {
                agent::start(
                    given,
                    engine,
                    &own.clone().await?,
                    likely,
                    network.clone(),
                    is_filled,
                    to_remove,
                )
                .await
            }
        );
        let (container, sidecar) = sidecar?;
        Ok(Made { sidecar, container, agent: made?, network: network.await? })
    }

    /// Carries the session with the agent's container until the command, the sidecar or the parent has ended, then closes it
    /// and removes the agent's container.
    async fn watch(
        &self,
        given: ShimInputs<'_>,
        made: Made,
        behind: &mut Behind,
        mailbox: Mailbox,
    ) -> Result<Removal, Lost> {
        let Made { agent: attached, mut sidecar, container, network } = made;
        let agent = attached.container.clone();
        let brief = brief_of(&given, network)?;
        let ShimInputs { plan, stdio, control, stand_in, broker, hand, .. } = given;
        let streams = Streams::open(stdio).map_err(|e| failed("use the standard streams", &e))?;
        let opens = plan.opens_tls();
        let authority = if opens { Authority::Awaited } else { Authority::NotNeeded };
        if authority == Authority::Awaited {
            streams::receive_authority(hand, mailbox.sender.clone());
        }
        let mut session = AgentSession::new(attached, brief, authority, control, streams, mailbox);
        if let Some(broker) = broker {
            session.serve(broker).map_err(|e| failed("hear what is asked", &e))?;
        }
        let conversed = converse(&mut session, &mut sidecar, behind.replenisher.as_ref()).await;
        let Conversation { ended, last_words } = match conversed {
            Ok(conversation) => conversation,
            Err(failure) => return Err(Lost { failure, open: Some(Open { session, stand_in, sidecar }) }),
        };
        let (began, has_ended) = (session.has_begun(), session.has_ended());
        let close = close(session, stand_in, sidecar, last_words);
        if let (Some(remover), Ended::Command, true) = (behind.remover.take(), ended, has_ended) {
            // All processes of the command are dead, or its container would not have reported the end: what they held may be
            // given back.
            close.await;
            let is_taken = remover.take(&self.slots, &self.to_remove.all());
            return Ok(if is_taken { Removal::Behind } else { Removal::Done });
        }
        // The command's output is here by now, so the agent's container can go meanwhile.
        let ((), complaint) = tokio::join!(self.remove_agent(&agent, ended), async {
            let complaint = close.await;
            if ended == Ended::Command {
                let _ = self.in_time(self.engine.remove_ended(&container)).await;
            }
            complaint
        });
        match ended {
            Ended::SidecarGone if began => Err(lost_sidecar("keep the sidecar", complaint).into()),
            Ended::SidecarGone => Err(lost_sidecar("start the sidecar", complaint).into()),
            Ended::Command | Ended::Parent => Ok(Removal::Done),
        }
    }

    /// Removes the agent's container. A failure shows again when everything is removed.
    async fn remove_agent(&self, agent: &str, ended: Ended) {
        let _slot = self.slots.await_end().await;
        let _ = match ended {
            Ended::Command => self.in_time(self.engine.remove_ended(agent)).await,
            Ended::Parent | Ended::SidecarGone => self.in_time(self.engine.remove_container(agent)).await,
        };
    }

    /// Waits for a removal. If it takes too long, gives the engine up, unless that is only busy and answers a ping.
    async fn in_time(&self, removal: impl Future<Output = Result<(), String>>) -> Result<(), String> {
        let removed = tokio::time::timeout(self.patience, removal).await;
        if removed.is_err() && !self.engine.answers_within(self.patience / 4).await {
            self.is_given_up.set(true);
        }
        removed.unwrap_or_else(|late| Err(late.to_string()))
    }

    /// Looks whether a run failed because the engine has a part of our binary only, and if so adds that to the failure.
    async fn examine_failure(&self, failure: &mut Failure) -> BinaryVolume {
        if self.is_given_up.get() || !prepare::is_cut(&self.engine, &sidecar_name(&self.plan.run)).await {
            return BinaryVolume::Keep;
        }
        failure
            .cause
            .push_str("; the engine had a part of this program only, and makes it anew for the next run");
        BinaryVolume::Remove
    }

    /// Removes the run's containers, its network and its volumes. What is left is found by its label: by the parent, at once, and
    /// by the next start.
    async fn remove_all(&self, binary: BinaryVolume) -> Result<(), Failure> {
        let Self { plan, engine, slots, to_remove, is_given_up, .. } = self;
        let fail = |cause| Failure::new("take everything away", cause);
        if is_given_up.get() {
            return Err(fail("the engine does not answer".to_owned()));
        }
        // An engine that made no volumes is not asked for them.
        let makes_volumes = engine.kind == EngineKind::Podman || overlay::overlays(plan).next().is_some();
        let (network, containers) = (network_name(&plan.run), to_remove.take());
        let _slot = slots.await_end().await;
        let removed = async {
            let (containers, network) = tokio::join!(
                futures_util::future::join_all(
                    containers.iter().map(|container| engine.remove_container(container))
                ),
                // Retries until the engine has let go of all containers on it.
                engine.remove_network(&network)
            );
            let volumes = if makes_volumes { engine.remove_volumes(&plan.run).await } else { Ok(()) };
            if binary == BinaryVolume::Remove {
                prepare::remove_volume(engine).await;
            }
            containers.into_iter().collect::<Result<(), String>>().and(network).and(volumes)
        };
        self.in_time(removed).await.map_err(fail)
    }
}

/// Opens a stream to the stand-in: sends it one end, with the run's network.
fn open_stream(stand_in: BorrowedFd<'_>, network: RunNetwork) -> io::Result<UnixStream> {
    let (ours, theirs) = StdStream::pair()?;
    send_line(stand_in, &theirs.into(), network)?;
    ours.set_nonblocking(true)?;
    UnixStream::from_std(ours)
}

/// Returns what the agent's container is to do; the authority is added when it is known.
fn brief_of(given: &ShimInputs<'_>, network: RunNetwork) -> Result<Brief, Failure> {
    let plan = given.plan;
    Ok(Brief {
        launch: port_health::ask_ports(Launch::of(plan, given.command), plan, &given.place, network),
        terminal: match given.stdio {
            Stdio::Terminal { size, .. } => Some(size),
            Stdio::Descriptors(_) => None,
        },
        shown: given.shown.clone(),
        copies: copies::copies(plan).map(|copy| (copy.place, copy.target.into())).collect(),
        directories: brief::directories(plan),
        overlays: overlay::requests(plan).map_err(|e| failed("keep apart what is written", &e))?,
        brought: ToolFiles::of(plan),
        writable: brief::writable(plan),
        authority: None,
        lingers: given.engine.kind == EngineKind::Podman,
        limits: LimitRequest::of(plan),
        notices: given.notices.clone(),
    })
}

/// Returns the failure of a run that lost its sidecar.
fn lost_sidecar(step: &str, complaint: String) -> Failure {
    let cause = match complaint.is_empty() {
        true => "its container ended, or the engine let go of it".to_owned(),
        false => complaint,
    };
    Failure::new(step, cause)
}

fn failed(step: &str, error: &io::Error) -> Failure {
    Failure::new(step, error.to_string())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    use super::*;
    use crate::docker::container::fixture;
    use crate::plan::engine::EngineAt;

    /// Does something with the shim of a run, and is its engine.
    fn with_shim<T>(patience: Duration, work: impl AsyncFnOnce(Shim<'_>, UnixListener) -> T) -> T {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("engine");
        let slots = Slots::of(&folder.path().join("turns"), &socket);
        let kind = EngineKind::Podman;
        let at = EngineAt { socket, minor_version: 41, rootless: true, user: (1000, 1000), kind };
        let plan = fixture::plan();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = UnixListener::bind(&at.socket).unwrap();
            let to_remove = ToRemove::default();
            ["agent", "sidecar"].into_iter().for_each(|container| to_remove.push(container.into()));
            let shim = Shim {
                plan: &plan,
                engine: Engine::at(&at).unwrap(),
                slots,
                to_remove,
                patience,
                is_given_up: Cell::new(false),
            };
            work(shim, listener).await
        })
    }

    #[test]
    fn an_engine_that_does_not_answer_is_waited_for_once() {
        let (removed, asked) = with_shim(Duration::from_millis(50), async |shim, listener| {
            shim.remove_agent("agent", Ended::Parent).await;
            let removed = shim.remove_all(BinaryVolume::Keep).await;
            (removed, listener.into_std().unwrap().incoming().map_while(Result::ok).count())
        });
        assert!(removed.unwrap_err().cause.contains("does not answer"));
        assert_eq!(asked, 2, "a removal and a ping");
    }

    #[test]
    fn an_engine_that_is_slow_and_answers_a_ping_is_not_given_up() {
        let is_given_up = with_shim(Duration::from_secs(2), async |shim, listener| {
            let answer_ping = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
                stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nOK").await.unwrap();
            };
            let (removed, ()) = tokio::join!(shim.in_time(std::future::pending()), answer_ping);
            assert!(removed.is_err());
            shim.is_given_up.get()
        });
        assert!(!is_given_up);
    }
}
