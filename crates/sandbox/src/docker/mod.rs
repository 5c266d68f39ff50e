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
mod conversation;
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
mod network_filter;
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
mod start;
mod streams;
mod tables;
mod tool_files;
mod way;
mod wire;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use policy::RunId;
use serde::{Deserialize, Serialize};

pub use self::accounts::{Accounts, follow_volumes, read_accounts};
use self::apart::{LONGEST, LONGEST_REMOVAL, apart};
pub use self::container::{INSIDE_AGENT, INSIDE_SIDECAR};
use self::engine::{Engine, RunObjects};
pub use self::engine_error::ENGINE_LATE;
use self::engine_error::{NOT_FOUND, error_text, status};
pub use self::examine::examine_engine;
pub use self::inside::run_engine_agent;
pub use self::mux::{Channel, Frames, LONGEST_FRAME, frame};
pub use self::network_filter::FirstSteps;
pub use self::pool::POOL_MAX_IDLE;
pub use self::port_health::{INSIDE_ACCEPTS, probe_ports};
pub use self::published::{
    Outward, is_beside_sidecars, is_of_sidecars, outward, refuse_hidden_sources, refuse_unreachable,
};
pub use self::slots::LONGEST_SLOT_WAIT;
pub(crate) use self::start::start;
pub use self::wire::wire_run_network;
use crate::caller::Caller;
use crate::error::Error;
use crate::plan::engine::{EngineKind, EngineRun, socket};
use crate::undo::Whose;

/// How long an engine may take over its first answer before a removal.
const FIRST_WORD: Duration = Duration::from_secs(10);
/// How long an engine may take over each request of the removal of a killed run's objects: engines wait 10 seconds themselves for a
/// container that does not end.
const ONE_ANSWER: Duration = Duration::from_secs(20);
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
        let look = |engine: Engine| async move { engine.api.inspect_image(image).await };
        let (_, at, found) = Engine::find(&socket, look).await?;
        match found {
            Ok(about) => {
                let config = inspect::usable(image, about)?;
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
pub(crate) fn remove(socket: &Path, run: &RunId, whose: Whose) -> io::Result<()> {
    let patience = match whose {
        Whose::Own => None,
        // Each start takes back what killed runs left, and none is to wait long for a container that hangs.
        Whose::Dead => Some(ONE_ANSWER),
    };
    match apart(LONGEST_REMOVAL, || remove_objects(socket, run, patience)) {
        Ok(Removed::All) => Ok(()),
        Ok(Removed::EngineSilent) => Err(silent(socket)),
        Err(error) => Err(why_left(error)),
    }
}

/// Returns why something of a run is left. Nothing is planned there.
fn why_left(error: Error) -> io::Error {
    match error {
        Error::Refused { what, .. } => io::Error::other(what),
        other => io::Error::other(other.to_string()),
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Removed {
    All,
    EngineSilent,
}

/// Removes all objects of a run. `patience` is how long the engine may take over one request.
async fn remove_objects(socket: &Path, run: &RunId, patience: Option<Duration>) -> Result<Removed, Error> {
    // An engine that hangs gets less time than one that has much to remove.
    let Ok(word) = tokio::time::timeout(FIRST_WORD, podman::kind_of(socket)).await else {
        return Ok(Removed::EngineSilent);
    };
    word.map_err(|error| engine::unusable(socket, &error.to_string()))?;
    let ask = |engine: Engine| async move { engine.objects(run).await };
    let (mut engine, _, mut found) = Engine::find(socket, ask).await?;
    patience.into_iter().for_each(|patience| engine.api.set_timeout(patience));
    let mut round = 1;
    loop {
        let taken = take_away(&engine, run, found).await;
        // Podman goes on making what a killed shim had asked for, and fails on objects that vanish meanwhile.
        let is_last = engine.kind == EngineKind::Docker || round == REMOVAL_ROUNDS;
        match taken {
            Ok(was_there) if is_last || !was_there && round > 1 => return Ok(Removed::All),
            Err(what) if is_last || what == ENGINE_LATE => return Err(Error::Refused { what, remedy: None }),
            _ => tokio::time::sleep(ROUND_PAUSE).await,
        }
        round += 1;
        found = engine.objects(run).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Is a Docker that has one container, which hangs: it answers everything but the removal.
    async fn hang(listener: tokio::net::UnixListener) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut hanging = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            let line = String::from_utf8_lossy(&request[..length]).into_owned();
            if line.starts_with("DELETE ") {
                hanging.push(stream);
                continue;
            }
            let body = if line.contains("/containers/json") {
                r#"[{"Id":"it","Names":["/lockgate-agent-abcdefghjkmn"]}]"#
            } else {
                "[]"
            };
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n";
            let answer = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
            // Nobody waits for an answer where only the listener is looked at.
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    }

    #[test]
    fn what_is_left_is_told_without_a_plan() {
        let told = why_left(engine::unusable(Path::new("/gone"), "refused")).to_string();
        assert_eq!(told, "the engine at /gone cannot be used: refused");
    }

    #[test]
    fn a_killed_runs_container_that_hangs_is_not_waited_for_and_said_in_true_words() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("engine");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let removed = runtime.block_on(async {
            let listener = tokio::net::UnixListener::bind(&socket).unwrap();
            let run = "abcdefghjkmn".parse().unwrap();
            let removal = remove_objects(&socket, &run, Some(Duration::from_secs(1)));
            tokio::select! {
                removed = tokio::time::timeout(Duration::from_secs(20), removal) => removed,
                () = hang(listener) => unreachable!(),
            }
        });
        let Err(Error::Refused { what, .. }) = removed.expect("it waits") else { panic!() };
        assert_eq!(what, ENGINE_LATE);
    }
}
