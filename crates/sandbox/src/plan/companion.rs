//! The plan of a companion: an image's root, a network of its own, the restrictions of every sandbox, and nothing of the host inside.

use std::path::Path;

use policy::{ByteSize, RunId, RunSpec, Wiring};

use super::Plan;
use super::additions::Additions;
use super::container::{ImageRoot, finish_image};
use super::engine::{EngineImage, EngineRun, refuse_unfit_volumes};
use super::identity::{AGENT_ID, further_groups};
use super::ids::{Identity, MappedId};
use super::inside::{GATEWAY_SOCKET, HOME, home, is_plain};
use super::limits::{inodes, plan_limits, private_room_of};
use super::linux::trust_authorities;
use crate::caller::Caller;
use crate::environment::{EnvironmentInputs, Planes};
use crate::error::Error;
use crate::host::Host;
use crate::step::Step;
use crate::tool;

/// The most volumes that a companion's image may declare.
const MOST_VOLUMES: usize = 8;

/// Makes the plan of a companion from the limits, environment and image of `spec`. `run` is the companion's own id.
///
/// # Errors
/// When this host cannot do what the spec asks for. The error names it and a remedy.
pub fn plan_companion(
    spec: &RunSpec,
    probe: &[String],
    run: &RunId,
    caller: &Caller,
    host: &Host,
    additions: &Additions,
) -> Result<Plan, Error> {
    let image = additions
        .image
        .as_ref()
        .ok_or_else(|| Error::Refused { what: "a companion needs an image".into(), remedy: None })?;
    let mut notices = Vec::new();
    let limits = plan_limits(spec, host, &mut notices)?;
    let home = home(spec.backend, caller, Some(image));
    let (identity, mut steps) = match &additions.engine {
        Some(engine) => (at_engine(&engine.config, caller), engine_steps(spec, engine)?),
        None => {
            let root = ImageRoot { image, home: &home, written: additions.written.as_deref() };
            let mut steps = root.steps(spec, host, &mut notices)?;
            // No veth pair, whatever the run has: only its own sidecar and the command's reach it.
            finish_image(&mut steps, Wiring::Redirect, host);
            (Identity::of(spec, run, caller, additions)?, steps)
        }
    };
    trust_authorities(&mut steps, None, &additions.authorities);
    let planes = Planes::inside(additions.engine.is_none().then_some(GATEWAY_SOCKET));
    // No file of ours enters its home, so the image's `HOME` is used.
    let said = image.environment.iter().find(|(name, _)| name == "HOME").map(|(_, value)| Path::new(value));
    let said = said.unwrap_or(&home);
    let tools = tool::Brought::default();
    let environment = EnvironmentInputs {
        spec,
        caller,
        host,
        run,
        home: said,
        planes: &planes,
        tools: &tools,
        additions,
        holds_git: false,
    }
    .build()?;
    let root = Path::new("/");
    Ok(Plan {
        run: run.clone(),
        backend: spec.backend,
        wiring: Wiring::Redirect,
        name_addresses: spec.name_addresses,
        engine: additions.engine.clone(),
        identity,
        groups: further_groups(image, &identity),
        limits,
        // A companion has no workspace.
        workspace: root.into(),
        open: Vec::new(),
        directory: spec.directory.clone().unwrap_or_else(|| root.into()),
        home,
        steps,
        probe: probe.to_vec(),
        environment,
        setup: Vec::new(),
        labels: spec.labels.clone(),
        notices,
    })
}

/// Returns a companion's ids at an engine: its image's user, else the caller; never root.
fn at_engine(image: &EngineImage, caller: &Caller) -> Identity {
    let of_caller = (caller.uid != 0 && caller.gid != 0).then_some((caller.uid, caller.gid));
    let (uid, gid) = image.account().or(of_caller).unwrap_or((AGENT_ID, AGENT_ID));
    Identity::callers(MappedId::unmapped(uid), MappedId::unmapped(gid))
}

/// Returns the requests to an engine: the image, read-only, and directories in memory for the usual places and for the volumes that the
/// image declares, which would otherwise be on the engine's disk.
fn engine_steps(spec: &RunSpec, engine: &EngineRun) -> Result<Vec<Step>, Error> {
    let volumes = &engine.config.volumes;
    if volumes.len() > MOST_VOLUMES || !volumes.iter().all(|path| is_plain(path)) {
        return Err(Error::Refused {
            what: format!("its image declares volumes that are not at most {MOST_VOLUMES} plain paths"),
            remedy: None,
        });
    }
    refuse_unfit_volumes(volumes)?;
    let mut directories =
        vec![("/tmp", 0o1777, 2), ("/var/tmp", 0o1777, 1), ("/run", 0o755, 1), (HOME, 0o700, 1)];
    // In eighths of the room. The image's volumes share the rest.
    let own = volumes.iter().filter_map(|path| path.to_str());
    directories.retain(|(path, ..)| !own.clone().any(|volume| volume == *path));
    let eighth = private_room_of(spec).bytes() / 8;
    let directory = |path: &str, mode, bytes| {
        let size = ByteSize::from_bytes(bytes);
        Step::PrivateDirectory { path: path.into(), mode, size, inodes: inodes(size) }
    };
    let mut steps =
        vec![Step::RunNetwork, Step::SidecarContainer, Step::AgentContainer(engine.image.clone())];
    let more = if volumes.is_empty() { 3 } else { 0 };
    steps.extend(directories.into_iter().map(|(path, mode, eighths)| {
        directory(path, mode, eighth * if path == "/tmp" { eighths + more } else { eighths })
    }));
    let share = eighth * 3 / volumes.len().max(1) as u64;
    steps.extend(own.map(|path| directory(path, 0o700, share)));
    steps.extend([Step::EnterRoot, Step::DropPrivileges, Step::Landlock, Step::Seccomp]);
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::image::RootImage;
    use crate::plan::engine::{EngineAt, EngineKind};

    fn engine(ids: Option<(u32, u32)>, volumes: &[&str]) -> EngineRun {
        let config = EngineImage {
            ids,
            volumes: volumes.iter().map(PathBuf::from).collect(),
            ..EngineImage::default()
        };
        let at = EngineAt {
            socket: "/s".into(),
            minor_version: 41,
            rootless: false,
            user: (0, 0),
            kind: EngineKind::Docker,
        };
        EngineRun {
            at,
            image: "redis".into(),
            config,
            owner: (0, 0),
            pool: 0,
            ports: Vec::new(),
            published: Vec::new(),
            slots: PathBuf::new(),
        }
    }

    #[test]
    fn nobody_is_root_at_an_engine() {
        let who = |user, id| at_engine(&engine(user, &[]).config, &Caller::new(id, id, "/")).uid.inside;
        assert_eq!(who(Some((999, 999)), 0), 999);
        assert_eq!(who(Some((0, 5)), 501), 501);
        let at = |ids| at_engine(&engine(ids, &[]).config, &Caller::new(0, 0, "/"));
        assert_eq!(
            (at(Some((5, 0))).uid.inside, at(Some((5, 0))).gid.inside),
            (5, 5),
            "not in root's group either"
        );
        assert_eq!(who(None, 0), AGENT_ID);
    }

    #[test]
    fn a_companion_leaves_this_machines_root_before_its_privileges() {
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Flags, policy::RunConfig::default());
        let spec = layers.compile().unwrap();
        let missing = crate::host::LimitsUnavailable { why: "none".into(), remedy: "none".into() };
        let host = Host {
            system: Vec::new(),
            memory: policy::ByteSize::from_mib(16384),
            limits: Err(missing),
            landlock: Err(rustix::io::Errno::NOSYS),
            memory_attributes: true,
            makes_links: true,
            root_lacks: Vec::new(),
            bundle: None,
        };
        let additions = Additions { image: Some(RootImage::default()), ..Additions::default() };
        let (run, caller) = ("abcdefghjkmn".parse().unwrap(), Caller::new(1000, 1000, "/"));
        let plan = plan_companion(&spec, &[], &run, &caller, &host, &additions).unwrap();
        let last = [Step::EnterRoot, Step::SetHostname, Step::DropPrivileges, Step::Seccomp];
        assert!(plan.steps.ends_with(&last), "{plan}");
    }

    #[test]
    fn what_is_written_at_an_engine_lives_in_memory_and_is_no_more_than_there_is_room_for() {
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Flags, policy::RunConfig::default());
        let spec = layers.compile().unwrap();
        for volumes in [&[][..], &["/data"], &["/data", "/tmp"], &["/a", "/b", "/c"]] {
            let steps = engine_steps(&spec, &engine(None, volumes)).unwrap();
            let rooms: Vec<(String, u64)> = steps
                .iter()
                .filter_map(|step| match step {
                    Step::PrivateDirectory { path, size, .. } => {
                        Some((path.display().to_string(), size.bytes()))
                    }
                    _ => None,
                })
                .collect();
            let is_there = |path: &&str| rooms.iter().filter(|(room, _)| room == path).count() == 1;
            assert!(volumes.iter().chain(&["/tmp", "/run"]).all(is_there), "{rooms:?}");
            let sum: u64 = rooms.iter().map(|(_, size)| size).sum();
            assert!(sum <= private_room_of(&spec).bytes(), "{rooms:?}");
            assert!(!steps.iter().any(|step| matches!(step, Step::ShowWorkspace(..) | Step::Show(_))));
        }
        for volumes in [
            &["/"][..],
            &["data"],
            &["/a/../.."],
            &[""],
            &["/1", "/2", "/3", "/4", "/5", "/6", "/7", "/8", "/9"],
        ] {
            assert!(engine_steps(&spec, &engine(None, volumes)).is_err(), "{volumes:?}");
        }
        // Podman would bind a folder of this machine, and give it to the companion's user.
        let bind = "/x:y,source=v,volume-opt=type=none,volume-opt=device=/root,volume-opt=o=bind,U=true,target=/steal";
        for volume in [bind, "/a,b", "/a:b", "/a\\b", "/a\"b", "/a\nb"] {
            let refused = engine_steps(&spec, &engine(None, &["/data", volume])).unwrap_err().to_string();
            assert!(refused.contains(&*volume.escape_debug().to_string()), "{refused}");
        }
    }
}
