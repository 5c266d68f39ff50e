//! `lockgate doctor` for the caller's engine: which it is, its rights, and how many sidecars wait in its pool.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::apart::{LONGEST, apart};
use super::engine::Engine;
use super::engine_error::error_text;
use super::{podman, pool, prepare, start};
use crate::caller::Caller;
use crate::doctor::{Check, Verdict};
use crate::error::Error;
use crate::plan::engine::{EngineAt, EngineKind, socket};

/// The group and the name of the checks.
const GROUP: &str = "backends";
const WHAT: &str = "docker";

/// What was found at the engine.
#[derive(Serialize, Deserialize)]
struct Found {
    at: EngineAt,
    version: Option<String>,
    /// How many sidecars of this build wait in the pool.
    waiting: usize,
}

/// Checks whether the caller has a usable engine, and reports which it is and what a run would find in its pool.
#[must_use]
pub fn examine_engine(caller: &Caller) -> Vec<Check> {
    let lacks = |error: &Error| {
        vec![Check::lacks(GROUP, WHAT, Verdict::Weaker, what_is_wrong(error), error.remedy())]
    };
    let found = match socket(caller).and_then(|socket| apart(LONGEST, || async { find(&socket).await })) {
        Ok(found) => found,
        Err(error) => return lacks(&error),
    };
    let engine = Check::works(GROUP, WHAT, describe(&found));
    if let Err(source) = sys::probe::try_child() {
        return lacks(&start::unstarted(source));
    }
    match pool::size(caller) {
        Ok(size) => {
            let size = if found.at.lends_sidecars() { size } else { 0 };
            vec![engine, Check::works(GROUP, "docker, sidecars", describe_pool(found.waiting, size))]
        }
        Err(error) => [vec![engine], lacks(&error)].concat(),
    }
}

/// Words an error where no run is planned.
fn what_is_wrong(error: &Error) -> String {
    match error {
        Error::Refused { what, .. } | Error::Unknown { what, .. } | Error::Impossible { what, .. } => {
            what.clone()
        }
        error => error.to_string(),
    }
}

/// Asks the engine for all that is reported.
async fn find(socket: &Path) -> Result<Found, Error> {
    let ask = |engine: Engine| async move {
        let own = prepare::known_own(&engine).await;
        engine.members().await.map(|members| match own {
            Some(own) => members.iter().filter(|member| member.can_be_taken(&own)).count(),
            None => 0,
        })
    };
    let (_, at, waiting) = Engine::find(socket, ask).await?;
    let waiting = waiting.map_err(|error| Error::Refused { what: error_text(&error), remedy: None })?;
    Ok(Found { version: podman::version(socket).await, at, waiting })
}

fn describe(found: &Found) -> String {
    let Found { at, version, .. } = found;
    let version = version.as_deref().map(|version| format!(" {version}")).unwrap_or_default();
    let rights = if at.keeps_user() {
        "without root: the command is you, and never root"
    } else if at.makes_user_root() {
        "without root: its root is you, and the command's user inside"
    } else {
        "as root: the command is you, or the workspace's owner, and never root"
    };
    let mut said = format!("{}{version} at {}, {rights}", at.kind.name(), at.socket.display());
    if at.kind == EngineKind::Podman {
        said += "; sidecars are not kept from each other by it, and serve nobody but their own run";
    }
    said
}

fn describe_pool(waiting: usize, size: usize) -> String {
    match (waiting, size) {
        (_, 0) => "none may wait: each run makes its own".into(),
        (0, size) => format!("0 of {size} wait: the next run makes its own, and fills the pool behind it"),
        (waiting, size) => format!("{waiting} of {size} wait: the next run takes one"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_is_told_with_its_version_and_its_rights() {
        let at = |kind, rootless| EngineAt {
            socket: "/s".into(),
            minor_version: 41,
            rootless,
            user: (1000, 1000),
            kind,
        };
        let found =
            |kind, rootless| Found { at: at(kind, rootless), version: Some("4.3.1".into()), waiting: 0 };
        let docker = describe(&found(EngineKind::Docker, false));
        assert!(docker.starts_with("Docker 4.3.1 at /s, as root") && !docker.contains(';'), "{docker}");
        let podman = describe(&found(EngineKind::Podman, true));
        assert!(
            podman.starts_with("Podman 4.3.1 at /s, without root: the command is you, and never root"),
            "{podman}"
        );
        let docker = describe(&found(EngineKind::Docker, true));
        assert!(docker.ends_with("without root: its root is you, and the command's user inside"), "{docker}");
    }

    #[test]
    fn an_engine_that_is_not_there_is_told_without_a_run() {
        let environment = vec![("DOCKER_HOST".into(), "tcp://192.0.2.1:1".into())];
        let caller = Caller { environment, ..Caller::new(0, 0, "/") };
        for check in examine_engine(&caller) {
            assert!(!check.detail.contains("plan the run") && check.remedy.is_some(), "{}", check.detail);
        }
        let refused = Error::Refused { what: "the engine cannot be used".into(), remedy: None };
        assert_eq!(what_is_wrong(&refused), "the engine cannot be used");
    }

    #[test]
    fn the_pool_is_told_with_what_the_next_run_does() {
        assert_eq!(describe_pool(1, 2), "1 of 2 wait: the next run takes one");
        assert!(describe_pool(0, 2).starts_with("0 of 2 wait: the next run makes its own"));
        assert_eq!(describe_pool(3, 0), "none may wait: each run makes its own");
    }
}
