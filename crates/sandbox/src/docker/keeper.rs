//! The keeper: a process that stands for a run's init towards its parent, and makes, watches and takes away what an engine has
//! of the run. Whatever ends first, it takes everything away before it ends itself.
//!
//! ```text
//! parent ◄─ events ─ keeper ─ API ─► engine ─► agent's container ─┐ network of the run
//! parent ── signals ►   │                                         │
//! sidecar ◄─ line ──────┴─ stdio ──► engine ─► sidecar's container┘ ─► outside
//! ```

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use policy::{MountMode, WorkspaceMode};
use tokio::net::UnixStream;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::Protected;
use super::attached::{Attached, carry};
use super::container::{self, COPIES};
use super::engine::{Engine, EngineAt, network_name, told};
use super::inside::{Brief, Shown};
use super::network::{RunNetwork, send_line};
use super::prepare;
use super::streams::{self, Streams, Word};
use super::talk::Talk;
use crate::handshake::Event;
use crate::plan::Plan;
use crate::started::Stdio;
use crate::step::{Step, Visible};
use crate::supervise::{Failure, Launch};

/// How long an engine may take over taking away.
const TAKING: Duration = Duration::from_secs(20);
/// How long the sidecar's container may take over its last word.
const LAST_WORD: Duration = Duration::from_secs(5);
/// How many words may wait to be heard, and pieces to be written.
const WAITING: usize = 16;

/// What a keeper is given.
pub(super) struct Given<'a> {
    pub(super) plan: &'a Plan,
    pub(super) command: &'a [OsString],
    pub(super) stdio: Stdio,
    pub(super) control: OwnedFd,
    /// To the sidecar's process on this machine.
    pub(super) link: OwnedFd,
    pub(super) engine: &'a EngineAt,
    pub(super) image: &'a str,
    /// What is shown, and what it must be.
    pub(super) shown: Vec<Shown>,
    /// What of the workspace is protected, and how it may be used all the same.
    pub(super) protected: Vec<Protected>,
    /// What turned out weaker than planned.
    pub(super) notices: Vec<String>,
    /// Where the parent hands over the certificate of the run's authority, where there is one.
    pub(super) hand: OwnedFd,
}

/// The names of a run's containers. S1.6, S1.7
pub(super) fn names(plan: &Plan) -> [String; 2] {
    ["agent", "sidecar"].map(|which| format!("lockgate-{which}-{}", plan.run))
}

/// The life of a keeper, and the status it ends with.
pub(super) fn live(given: Given<'_>) -> i32 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return 1 };
    let kept = runtime.block_on(keep(given));
    // Threads that wait for somebody else's streams are not waited for.
    runtime.shutdown_background();
    i32::from(kept.is_err())
}

/// Makes, watches, takes away. What could not be made is taken away as well.
async fn keep(given: Given<'_>) -> Result<(), Failure> {
    let fail = |step: &str, cause: String| Failure { step: step.into(), cause };
    let run = given.plan.run.clone();
    let engine = Engine::at(given.engine).map_err(|e| fail("reach the engine", told(&e)))?;
    let [agent, sidecar] = names(given.plan);
    let (words, heard) = channel(WAITING);
    let (link, control) = (given.link.try_clone(), given.control.try_clone());
    let (Ok(link), Ok(control)) = (link, control) else {
        return Err(fail("start the keeper", "there are no descriptors left".into()));
    };
    let told = control.try_clone();
    streams::hear_parent(control, words.clone());
    let kept = async {
        let made = make(&given, &engine).await?;
        streams::hear_sidecar(link, words.clone());
        watch(given, &engine, made, words, heard).await
    };
    let kept = kept.await;
    if let (Err(Failure { step, cause }), Ok(control)) = (&kept, told) {
        // Before the sidecar is let go, whose end the parent would otherwise see first.
        let _ = Event::Failed { step: step.clone(), cause: cause.clone() }.send(control.as_fd());
    }
    // The link is closed by now, so the sidecar has been told that the run is over.
    let network = network_name(&run);
    let removed = async {
        tokio::join!(
            engine.remove_container(&agent),
            engine.remove_container(&sidecar),
            // Tried again until the engine has let go of both.
            engine.remove_network(&network)
        )
    };
    let _ = tokio::time::timeout(TAKING, removed).await;
    // What is left is found by its label: by the parent, at once, and by the next start.
    kept
}

/// What was made at the engine.
struct Made {
    network: RunNetwork,
    agent: Attached,
    sidecar: Attached,
}

/// Makes the network and both containers, and starts neither.
async fn make(given: &Given<'_>, engine: &Engine) -> Result<Made, Failure> {
    let fail = |step: &'static str| move |cause: String| Failure { step: step.into(), cause };
    let plan = given.plan;
    let [agent, sidecar] = names(plan);
    // Any number will do that is not every run's first choice.
    let first =
        plan.run.as_str().bytes().fold(0u32, |sum, octet| sum.wrapping_mul(31).wrapping_add(octet.into()));
    let own = prepare::own(engine).await.map_err(fail("make the sidecar's image"))?;
    let (network, egress) = tokio::join!(engine.make_network(&plan.run, first), async {
        engine.make_egress().await.map_err(fail("make the network of sidecars"))?;
        let body = container::sidecar(plan, &own.image, &own.volume);
        engine.make_container(&sidecar, body).await.map_err(fail("make the sidecar's container"))
    });
    let network = network.map_err(fail("make the run's network"))?;
    egress?;
    let body = container::agent(plan, given.image, &own.volume, network, &given.protected);
    let (joined, made) = tokio::join!(
        engine.join(&plan.run, &sidecar, network.sidecar()),
        engine.make_container(&agent, body)
    );
    joined.map_err(fail("join the sidecar to the run's network"))?;
    made.map_err(fail("make the agent's container"))?;
    let (ours, theirs) = tokio::join!(Attached::to(engine, &agent), Attached::to(engine, &sidecar));
    let ours = ours.map_err(fail("attach to the agent's container"))?;
    let theirs = theirs.map_err(fail("attach to the sidecar's container"))?;
    Ok(Made { network, agent: ours, sidecar: theirs })
}

/// Starts both containers, and passes on what is said until one of them, or the parent, has ended.
async fn watch(
    given: Given<'_>,
    engine: &Engine,
    made: Made,
    words: Sender<Word>,
    heard: Receiver<Word>,
) -> Result<(), Failure> {
    let fail = |step: &str, cause: String| Failure { step: step.into(), cause };
    let plumbing = |e: std::io::Error| fail("start the keeper", e.to_string());
    let Given { plan, command, stdio, control, link, shown, hand, notices, .. } = given;
    let [agent, sidecar] = names(plan);
    let Made { network, agent: attached, sidecar: theirs } = made;
    let (ours, line) = StdStream::pair().map_err(plumbing)?;
    send_line(link.as_fd(), &line.into(), network).map_err(plumbing)?;
    ours.set_nonblocking(true).map_err(plumbing)?;
    let carried = carry(theirs, UnixStream::from_std(ours).map_err(plumbing)?);
    tokio::pin!(carried);
    let streams = Streams::open(stdio).map_err(|e| fail("use the standard streams", e.to_string()))?;
    let opens = plan.steps.iter().any(|step| matches!(step, Step::TrustAuthority(_)));
    if opens {
        streams::hear_authority(hand, words.clone());
    }
    let brief = Brief {
        launch: Launch::of(plan, command),
        terminal: streams.terminal.is_some(),
        shown,
        copies: copies(plan),
        writable: writable(plan),
        authority: None,
        notices,
    };
    let mut talk = Talk::new(attached, brief, opens, control, streams, words, heard);
    let started = async { tokio::join!(engine.start(&sidecar), engine.start(&agent)) };
    tokio::pin!(started);
    let mut starting = true;
    let mut last_words = None;
    let ended = loop {
        tokio::select! {
            outcome = &mut started, if starting => {
                starting = false;
                has_started(outcome)?;
            }
            said = &mut carried => {
                if starting {
                    // Why a container could not be started is told by the one that was asked to.
                    has_started((&mut started).await)?;
                }
                last_words = Some(said);
                break Ended::SidecarGone;
            }
            turn = talk.turn() => match turn {
                Ok(None) => {}
                Ok(Some(ended)) => break ended,
                Err(failure) => {
                    if starting {
                        has_started((&mut started).await)?;
                    }
                    return Err(failure);
                }
            },
        }
    };
    let began = talk.has_begun();
    let last_words = async {
        talk.close().await;
        // Hung up on, the sidecar's process here asks the one there to end, and lets go of the line once it has.
        let _ = rustix::net::shutdown(&link, rustix::net::Shutdown::Both);
        drop(link);
        match last_words {
            None => {
                let said = tokio::time::timeout(LAST_WORD, &mut carried).await;
                said.map(|(said, _)| said).unwrap_or_default()
            }
            Some((said, _)) => said,
        }
    };
    // What the command wrote is here by now, and what is left of the agent's container can go meanwhile.
    let (_, said) = tokio::join!(engine.remove_container(&agent), last_words);
    if ended == Ended::SidecarGone {
        let cause =
            if said.is_empty() { "its container ended, or the engine let go of it".into() } else { said };
        return Err(fail(if began { "keep the sidecar" } else { "start the sidecar" }, cause));
    }
    Ok(())
}

/// Whether both containers could be started.
fn has_started((sidecar, agent): (Result<(), String>, Result<(), String>)) -> Result<(), Failure> {
    let fail = |step: &str, cause: String| Failure { step: step.into(), cause };
    sidecar.map_err(|cause| fail("start the sidecar's container", cause))?;
    agent.map_err(|cause| fail("start the agent's container", cause))
}

/// Why the keeper stops watching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The command has, or never began.
    Command,
    /// The parent is gone, or wants this to end.
    Parent,
    /// The sidecar is gone, and without it the run ends.
    SidecarGone,
}

/// What is copied: where the engine shows it, and where it belongs.
fn copies(plan: &Plan) -> Vec<(PathBuf, PathBuf)> {
    let targets = plan.steps.iter().filter_map(|step| match step {
        Step::Copy(_, target) => Some(target.clone()),
        _ => None,
    });
    let from = |number: usize| Path::new(COPIES).join(number.to_string());
    targets.enumerate().map(|(number, target)| (from(number), target)).collect()
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
    places.cloned().collect()
}
