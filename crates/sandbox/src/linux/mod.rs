//! The `linux` backend: namespaces, mounts, seccomp, Landlock and a control group, made without root.
//!
//! ```text
//! parent ── clone(user, pid) ──► init: maps, unshare (what was not made ahead), private root
//!    │ meanwhile: control group,   │ network ── listeners ──────────► sidecar
//!    │ held names, owners, sidecar │                                     │
//!    └────────── handover ────────►│ workspace, restrictions             │
//!    ▲                             │◄─────────────── ready ──────────────┘
//!    └────────── events ───────────┤ spawn
//!                                  └──► command
//! ```
//! Init is the cloned child itself, without a second exec. It is PID 1 of the sandbox: when it ends, the kernel ends every process in it.

mod accounts;
pub(crate) mod ahead;
mod block;
mod devices;
mod etc;
mod handover;
mod image;
mod init;
mod java;
mod layer;
pub(crate) mod link;
mod listeners;
mod overlay;
mod owners;
mod passage;
mod root;
mod step_error;
pub(crate) mod subordinate;
mod trust;
mod under;
mod volume;
mod wire;

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use policy::{CpuCount, MountMode, Wiring};
use sys::cgroup::{self, Group};
use sys::mount::Depth;
use sys::{descriptor, privilege};

pub use self::ahead::Ahead;
use self::owners::{Owners, is_of_the_file_system, unmapped};
pub use self::subordinate::within_subordinate_ids;
use crate::caller::Caller;
use crate::error::{Error, THE_SANDBOX};
use crate::host::Host;
use crate::launch::Stdio;
use crate::plan::Plan;
use crate::plan::ids::Identity;
use crate::plan::limits::{LimitsPlan, binds};
use crate::process_stamp::ProcessStamp;
use crate::protect::Hold;
use crate::started::{InitChannels, SidecarStart, Started, Teardown};
use crate::step::{Step, TreeSource};
use crate::undo::{Undo, UndoLog};
use crate::{protect, source};

/// An id that no user has, for a map that nobody uses.
const TRIED: u32 = 0x7000_0000;

/// Everything init inherits from its parent.
pub(crate) struct InitInputs<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) command: &'a [OsString],
    pub(crate) stdio: Stdio,
    pub(crate) control: OwnedFd,
    pub(crate) sidecar: OwnedFd,
    pub(crate) broker: Option<OwnedFd>,
    /// The socket by which the parent hands over what only it can make.
    pub(crate) hand: OwnedFd,
}

/// Makes the sandbox of a plan and starts its init, which starts the command once the sidecar serves.
///
/// # Errors
/// When the control group, a source, or init itself cannot be made. Everything that was acquired is in `undo`.
pub(crate) fn start(
    plan: &Plan,
    host: &Host,
    command: &[OsString],
    channels: InitChannels,
    starter: &mut dyn SidecarStart,
    undo: &mut UndoLog,
) -> Result<Started, Error> {
    let handshake = |source| Error::Handshake { whom: "init", source };
    image::make_written(plan, undo)?;
    // With version 2 the group must exist before init is born into it. Otherwise the parent makes it while init is at work.
    let birth = host.limits.as_ref().is_ok_and(|groups| groups.version() == cgroup::Version::V2);
    let group = if birth { make_group(plan, host, undo)? } else { None };
    let (control, control_inside) = descriptor::message_pair().map_err(handshake)?;
    let (hand, hand_inside) = descriptor::message_pair().map_err(handshake)?;
    let InitChannels { stdio, sidecar, broker, ahead, .. } = channels;
    // A network that was made ahead is redirected already, so it does not fit `veth`.
    let ahead = ahead.filter(|_| plan.wiring == Wiring::Redirect);
    let inputs =
        InitInputs { plan, command, stdio, control: control_inside, sidecar, broker, hand: hand_inside };
    // The closure owns the child's ends of every socket. Dropping it closes them in this process.
    let birthplace = group.as_ref().and_then(Group::birthplace);
    let run_init = move |left, forked| {
        init::run(inputs, left, forked);
        0
    };
    let init = ahead::clone_init(ahead.as_ref(), birthplace, run_init)
        .map_err(|source| Error::Start { what: THE_SANDBOX, source })?;
    undo.push_all(ProcessStamp::of(init.pid()).map(Undo::Process));
    let mut started = Started::of(init, control, group, Teardown::Kill);
    match meanwhile(plan, host, undo, &hand, starter, &mut started) {
        Ok(()) => Ok(started),
        Err(error) => {
            // If the conversation broke off because init failed, the cause is what init reported last.
            let cause = if matches!(error, Error::Handshake { .. }) { started.failure() } else { None };
            started.kill();
            started.wait();
            Err(cause.unwrap_or(error))
        }
    }
}

/// Does the parent's part, while init does what it can do alone: the control group, held names, owners mapped by root, and the sidecar. All
/// of it is handed over before the workspace is shown or anything is executed.
///
/// A sidecar that makes a certificate authority is started first, because init puts the authority into the root. Otherwise it is started
/// last: it is ready sooner than init, and its fork delays nothing that init waits for.
fn meanwhile(
    plan: &Plan,
    host: &Host,
    undo: &mut UndoLog,
    hand: &OwnedFd,
    starter: &mut dyn SidecarStart,
    started: &mut Started,
) -> Result<(), Error> {
    let handshake = |source| Error::Handshake { whom: "init", source };
    if plan.identity.is_private() {
        map_ids(started, plan).and_then(|()| handover::maps_written(hand)).map_err(handshake)?;
    }
    subordinate::map(started.init.pid(), &plan.identity, hand)?;
    if plan.opens_tls() {
        starter.start()?;
    }
    check_sources(plan)?;
    if started.group.is_none() {
        started.group = make_group(plan, host, undo)?;
    }
    let mut owners = Owners::new(plan.identity);
    let mut held = None;
    if plan.steps.contains(&Step::Protect) {
        let hold = protect::hold_absent(&plan.workspace, &plan.open, undo);
        let Hold { cover_watch, workspace, names } = hold.or_else(|error| {
            // Where owners cannot be mapped, that may be why a name could not be held.
            if plan.identity.is_private() {
                mapped_tree(&plan.workspace, MountMode::ReadWrite, &mut owners)?;
            }
            Err(error)
        })?;
        started.cover_watch = Some(cover_watch);
        held = Some((workspace, names));
    }
    let trees = if plan.identity.is_private() { mapped_trees(plan, &mut owners)? } else { Vec::new() };
    let laid = match plan.wiring {
        Wiring::Redirect => None,
        Wiring::Veth => {
            // The firewall must outlive the sandbox, at the link's other end.
            started.teardown = Teardown::Outlived;
            let (laid, key) = link::lay(hand, &plan.run, undo)?;
            started.firewall = key;
            Some(laid)
        }
    };
    let held = held.as_ref().map(|(workspace, names)| (workspace.as_fd(), names.as_slice()));
    handover::give(hand, started.group.as_ref(), held, &trees, laid.as_ref()).map_err(handshake)?;
    if !plan.opens_tls() {
        return starter.start();
    }
    let authority = starter.authority().map_err(|source| Error::Handshake { whom: "the sidecar", source })?;
    handover::give_authority(hand, &authority).map_err(handshake)
}

/// Makes the control group, after recording its undo.
pub(crate) fn make_group(plan: &Plan, host: &Host, undo: &mut UndoLog) -> Result<Option<Group>, Error> {
    let (LimitsPlan::Group(limits), Ok(groups)) = (&plan.limits, &host.limits) else { return Ok(None) };
    let name = format!("lockgate-{}", plan.run);
    let limits = cgroup::Limits {
        memory: limits.memory.bytes(),
        // A quota that cannot be reached would cost each start 0.1 ms.
        cpu_milli: Some(limits.cpus).filter(|cpus| binds(*cpus)).map(CpuCount::milli),
        // Init is one of the processes.
        pids: limits.pids.saturating_add(1),
    };
    let groups = groups.with_room().map_err(Error::Cgroup)?;
    undo.push_all(groups.directories(&name, &limits).into_iter().map(Undo::Group));
    Group::create(&groups, &name, &limits).map(Some).map_err(Error::Cgroup)
}

/// Opens every source once before anything is made, so that the error for a wrong one names it.
fn check_sources(plan: &Plan) -> Result<(), Error> {
    for step in &plan.steps {
        for tree in step.trees() {
            match (step, tree) {
                (Step::Copy { source, .. }, _) => source::refuse_uncopied(source)?,
                (_, TreeSource::Path(path, _) | TreeSource::State(path)) => {
                    drop(source::open_shown(path)?);
                }
                (_, TreeSource::Layer(_)) => {}
            }
        }
    }
    let directory = std::fs::metadata(&plan.workspace).is_ok_and(|m| m.is_dir());
    if directory {
        Ok(())
    } else {
        Err(Error::Source { path: plan.workspace.clone(), why: "the workspace must be a directory".into() })
    }
}

/// Returns a detached tree for each source, with its owner mapped to the run's private identity. Only root can.
fn mapped_trees(plan: &Plan, owners: &mut Owners) -> Result<Vec<OwnedFd>, Error> {
    let trees = plan.steps.iter().flat_map(Step::trees).map(|tree| match tree {
        TreeSource::Layer(layer) => layer::open_mapped(layer, owners),
        TreeSource::Path(path, mode) => mapped_tree(path, mode, owners),
        TreeSource::State(path) => {
            mapped_tree(path, MountMode::ReadWrite, owners).map_err(Error::of_the_state)
        }
    });
    trees.collect()
}

/// Refuses a folder that a run of this caller could not write to, because its file system maps no owners.
///
/// # Errors
/// When it does not, or cannot be mounted at all.
pub fn refuse_unmappable(folder: &Path, caller: &Caller) -> Result<(), Error> {
    if !caller.superuser {
        return Ok(());
    }
    let mut owners = Owners::new(Identity::with_sidecar_id(TRIED));
    mapped_tree(folder, MountMode::ReadWrite, &mut owners).map(drop)
}

/// Returns one source as a detached tree with its owner mapped.
fn mapped_tree(path: &Path, mode: MountMode, owners: &mut Owners) -> Result<OwnedFd, Error> {
    let opened = source::open(path)?;
    // With the mounts below it: otherwise what they cover would be shown.
    let tree = sys::mount::clone_private_tree(opened.as_fd(), c"", Depth::Recursive)
        .map_err(|source| Error::Mount { path: path.into(), source })?;
    map_tree(tree, opened.as_fd(), path, mode, owners)
}

/// Maps the owner of what was opened on a detached tree of it.
fn map_tree(
    tree: OwnedFd,
    opened: BorrowedFd<'_>,
    path: &Path,
    mode: MountMode,
    owners: &mut Owners,
) -> Result<OwnedFd, Error> {
    match owners.map(tree.as_fd(), opened) {
        Ok(()) => Ok(tree),
        // It can still be read.
        Err(error) if mode == MountMode::ReadOnly && is_of_the_file_system(&error) => Ok(tree),
        Err(error) => Err(unmapped(path, error)),
    }
}

/// Root's part: writes the run's id maps from outside.
fn map_ids(started: &Started, plan: &Plan) -> std::io::Result<()> {
    let directory = format!("/proc/{}", started.init.pid().as_raw_nonzero());
    let Identity { uid, gid, range, .. } = plan.identity;
    let (uid, gid) = match range {
        Some(range) => (range.map(), range.map()),
        None => (uid.map(), gid.map()),
    };
    privilege::write_foreign_id_maps(&directory, &[uid], &[gid])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_already_can_be_read_and_not_written() {
        if !rustix::process::geteuid().is_root() {
            return lockgate_needs::missing("only root maps the owners of a folder");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        let opened = source::open(&path).unwrap();
        let mut owners = Owners::new(Identity::with_sidecar_id(TRIED));
        let tree = match mapped_tree(&path, MountMode::ReadWrite, &mut owners) {
            Err(error @ Error::Unmappable { .. }) => return lockgate_needs::missing(&error.to_string()),
            tree => tree.unwrap(),
        };
        let mut again = |mode| map_tree(tree.try_clone().unwrap(), opened.as_fd(), &path, mode, &mut owners);
        assert!(again(MountMode::ReadOnly).is_ok());
        assert!(matches!(again(MountMode::ReadWrite), Err(Error::Unmappable { .. })));
    }
}
