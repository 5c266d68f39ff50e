//! Chooses the user and group ids of a command, inside and outside.

use policy::{Backend, RunId, RunSpec, WorkspaceMode};

use super::additions::Additions;
use super::engine::{EngineRun, never_root};
use super::ids::{Identity, MappedId};
use crate::caller::Caller;
use crate::error::Error;
use crate::image::RootImage;

/// The first host id of runs started by root that have a single one, and the number of such ids: above the ranges of the others.
const ROOT_RANGE: (u32, u32) = (0x7000_0000, 0x0100_0000);

/// The id inside if root started the run: user `agent`, and not root.
pub(super) const AGENT_ID: u32 = 1000;
/// The longest part of an image's user name that a notice quotes.
const LONGEST_USER: usize = 64;

impl Identity {
    /// Returns private ids if root started the run, and the caller's otherwise.
    pub(super) fn of(
        spec: &RunSpec,
        run: &RunId,
        caller: &Caller,
        additions: &Additions,
    ) -> Result<Self, Error> {
        let backend = spec.backend;
        if let (Backend::Docker, Some(engine)) = (backend, &additions.engine) {
            let (uid, gid) = of_engine(spec, caller, engine)?;
            // A rootless engine maps its own user to the command's: Podman whatever the number is, and Docker to root. Other ids are not
            // mapped.
            let at = &engine.at;
            let mapped = |inside, engines| {
                let is_engines = at.keeps_user() || at.makes_user_root() && inside == 0;
                MappedId { inside, outside: if is_engines { engines } else { inside } }
            };
            return Ok(Self::callers(mapped(uid, at.user.0), mapped(gid, at.user.1)));
        }
        let of_image = additions.image.as_ref().filter(|image| image.uid != 0);
        if caller.superuser && backend != Backend::Process {
            let (uid, gid) = of_image.map_or((AGENT_ID, AGENT_ID), |image| (image.uid, image.gid));
            if let Some(range) = additions.ids {
                let private = Self::private(range.mapped(uid), range.mapped(gid));
                return Ok(Self { range: Some(range), owners_kept: true, ..private });
            }
            let outside = private_id(run);
            let mapped = |inside| MappedId { inside, outside };
            return Ok(Self::private(mapped(uid), mapped(gid)));
        }
        let (uid, gid) = match backend {
            Backend::Process | Backend::Docker => (caller.uid, caller.gid),
            Backend::Linux | Backend::Container => {
                // No command is root inside, even if the caller is root only in a user namespace.
                let inside = |id| if id == 0 { AGENT_ID } else { id };
                of_image.map_or((inside(caller.uid), inside(caller.gid)), |image| (image.uid, image.gid))
            }
        };
        let image = additions.image.as_ref().filter(|_| backend == Backend::Container);
        Ok(Self {
            subordinate: additions.subordinate.filter(|_| image.is_some()),
            owners_kept: image.is_some_and(|image| image.owners_kept),
            ..Self::callers(
                MappedId { inside: uid, outside: caller.uid },
                MappedId { inside: gid, outside: caller.gid },
            )
        })
    }
}

/// Returns the further groups that an image's user has in a sandbox with these ids. One id alone can stand for no other group.
pub(super) fn further_groups(image: &RootImage, identity: &Identity) -> Vec<u32> {
    let has_more = identity.range.is_some() || identity.subordinate.is_some();
    let is_taken = |gid: &&u32| has_more && image.uid != 0 && **gid != identity.gid.inside;
    image.groups.iter().filter(is_taken).copied().collect()
}

/// Chooses the ids of a command in an engine's container, where ids are not mapped: those of `HOST_UID` and `HOST_GID`, else the caller,
/// else (if the caller is root) the workspace's owner, else (if that is root too) the image's user; never root (S3.13). What a rootless
/// engine runs has the engine user's id outside: Podman makes that user the command's id inside, and Docker makes it root, so that its
/// number stands for root there. So does any group's: an engine may have been started with another one than its user has elsewhere.
fn of_engine(spec: &RunSpec, caller: &Caller, engine: &EngineRun) -> Result<(u32, u32), Error> {
    let named = |name: &str| match caller.variable(name).filter(|value| !value.is_empty()) {
        None => Ok(None),
        Some(value) => match value.parse::<u32>() {
            Ok(id) if id != 0 && id != u32::MAX => Ok(Some(id)),
            _ => Err(Error::Refused {
                what: format!(
                    "{name} is `{}`, and it must be the number of a user or group that is not root",
                    value.escape_debug()
                ),
                remedy: Some("HOST_UID=$(id -u) HOST_GID=$(id -g)".into()),
            }),
        },
    };
    let (uid, gid) = (named("HOST_UID")?, named("HOST_GID")?);
    if engine.at.makes_user_root() {
        refuse_stranger(uid, engine.at.user.0)?;
        return Ok((0, 0));
    }
    let else_of = if engine.at.keeps_user() {
        if caller.uid == 0 { (AGENT_ID, AGENT_ID) } else { (caller.uid, caller.gid) }
    } else if caller.uid != 0 {
        (caller.uid, never_root(caller.gid, caller.uid))
    } else if engine.owner.0 != 0 {
        (engine.owner.0, never_root(engine.owner.1, engine.owner.0))
    } else if takes_account(spec, caller, engine) {
        engine.config.account().unwrap_or((AGENT_ID, AGENT_ID))
    } else if uid.is_some() || spec.workspace_mode == WorkspaceMode::ReadOnly {
        (AGENT_ID, AGENT_ID)
    } else {
        return Err(Error::Refused {
            what: "the workspace belongs to root, and nobody is root inside".into(),
            remedy: Some(
                "give the folder an owner, name one with HOST_UID and HOST_GID, or use --workspace-mode ro"
                    .into(),
            ),
        });
    };
    Ok((uid.unwrap_or(else_of.0), gid.unwrap_or(else_of.1)))
}

/// Refuses a user who is not the engine's own, where all others inside are subordinate ids, which own nothing of a workspace.
fn refuse_stranger(named: Option<u32>, engines: u32) -> Result<(), Error> {
    match named.filter(|named| *named != engines) {
        None => Ok(()),
        Some(named) => Err(Error::Refused {
            what: format!(
                "HOST_UID is {named}, and at Docker's engine without root the command has the engine's own number, {engines}"
            ),
            remedy: Some(format!("unset HOST_UID, or HOST_UID={engines}")),
        }),
    }
}

/// Whether the command runs as the user that the engine's image names: no other user was named, and no user's files are written.
#[must_use]
pub fn takes_account(spec: &RunSpec, caller: &Caller, engine: &EngineRun) -> bool {
    let is_named = |name| caller.variable(name).is_some_and(|value| !value.is_empty());
    let is_roots = !engine.at.rootless && caller.uid == 0 && engine.owner.0 == 0;
    is_roots && spec.workspace_mode == WorkspaceMode::ReadOnly && !is_named("HOST_UID")
}

/// Returns a notice if the engine's image names a user that the command does not run as. At an engine one id cannot stand for two users,
/// and the workspace belongs to one.
pub(super) fn note_user(engine: &EngineRun, identity: &Identity) -> Option<String> {
    let image = &engine.config;
    let command = (identity.uid.inside, identity.gid.inside);
    if engine.at.makes_user_root()
        || !image.names_account() && image.account().is_none_or(|account| account == command)
    {
        return None;
    }
    let user: String = image.user.escape_debug().take(LONGEST_USER).collect();
    Some(format!(
        "the image names the user `{user}`, and the command is {}:{} all the same: what it writes in the workspace is to be its \
         owner's. HOST_UID and HOST_GID name another",
        command.0, command.1
    ))
}

/// Returns the private host id of a run: a hash of its name, so that two runs hardly ever share an id.
fn private_id(run: &RunId) -> u32 {
    let hash = run.as_str().bytes().fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    ROOT_RANGE.0 + hash % ROOT_RANGE.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::engine::{EngineAt, EngineImage, EngineKind};
    use crate::plan::ids::IdRange;

    #[test]
    fn ranges_lie_apart_and_below_the_single_ids() {
        let last = IdRange::numbered(IdRange::count() - 1);
        assert!(IdRange::numbered(0).first < IdRange::numbered(1).first);
        assert!(last.first + IdRange::INSIDE < ROOT_RANGE.0);
        assert_eq!(IdRange::numbered(IdRange::count()), IdRange::numbered(0));
        assert_eq!(Identity::with_sidecar_id(65_534).sidecar_ids(), (65_534, 65_534));
    }

    /// An engine whose own user is 1001, with the group 5.
    fn engine(kind: EngineKind, rootless: bool, owner: (u32, u32)) -> EngineRun {
        EngineRun {
            at: EngineAt { socket: "/s".into(), minor_version: 41, rootless, user: (1001, 5), kind },
            image: "debian".into(),
            config: EngineImage::default(),
            owner,
            pool: 0,
            ports: Vec::new(),
            published: Vec::new(),
            slots: std::path::PathBuf::new(),
        }
    }

    #[test]
    fn nobody_is_in_roots_group_at_an_engine_with_root() {
        let at = |rootless, owner| engine(EngineKind::Docker, rootless, owner);
        let spec = policy::Layers::default().compile().unwrap();
        let ids = |caller: (u32, u32), engine| {
            of_engine(&spec, &Caller::new(caller.0, caller.1, "/"), &engine).unwrap()
        };
        assert_eq!(ids((0, 0), at(false, (1001, 0))), (1001, 1001));
        assert_eq!(ids((0, 0), at(false, (1001, 7))), (1001, 7));
        assert_eq!(ids((1001, 0), at(false, (0, 0))), (1001, 1001));
        assert_eq!(ids((1001, 5), at(true, (1001, 5))), (0, 0), "root there is the engine's user");
    }

    #[test]
    fn the_number_of_the_engines_user_is_root_at_docker_without_root_and_no_other_is_taken() {
        let spec = policy::Layers::default().compile().unwrap();
        let ids = |variables: &[(&str, &str)]| {
            let caller = Caller::new(1001, 5, "/").with_env(variables.iter().copied());
            of_engine(&spec, &caller, &engine(EngineKind::Docker, true, (1001, 5)))
        };
        // sg(1) and a unit's `Group=` give the engine another group than its user has.
        for gid in ["5", "1001"] {
            assert_eq!(ids(&[("HOST_UID", "1001"), ("HOST_GID", gid)]).unwrap(), (0, 0));
            assert_eq!(ids(&[("HOST_GID", gid)]).unwrap(), (0, 0));
            let refused = ids(&[("HOST_UID", "1002"), ("HOST_GID", gid)]).unwrap_err();
            let Error::Refused { what, remedy } = refused else { panic!("{refused}") };
            assert!(what.starts_with("HOST_UID is 1002") && what.contains("1001"), "{what}");
            assert_eq!(remedy.unwrap(), "unset HOST_UID, or HOST_UID=1001");
        }
    }

    #[test]
    fn what_a_command_at_a_rootless_engine_makes_belongs_to_the_engines_user() {
        let mut spec = policy::Layers::default().compile().unwrap();
        spec.backend = Backend::Docker;
        let run = "abcdefghjkmn".parse().unwrap();
        let owners = |caller, engine| {
            let additions = Additions { engine: Some(engine), ..Additions::default() };
            let Identity { uid, gid, .. } =
                Identity::of(&spec, &run, &Caller::new(caller, caller, "/"), &additions).unwrap();
            [(uid.inside, uid.outside), (gid.inside, gid.outside)]
        };
        let at = |kind, rootless| engine(kind, rootless, (1001, 5));
        assert_eq!(owners(0, at(EngineKind::Podman, true)), [(1000, 1001), (1000, 5)]);
        assert_eq!(owners(0, at(EngineKind::Docker, true)), [(0, 1001), (0, 5)]);
        assert_eq!(owners(1001, at(EngineKind::Podman, true)), [(1001, 1001), (1001, 5)]);
        assert_eq!(owners(0, at(EngineKind::Podman, false)), [(1001, 1001), (5, 5)]);
    }
}
