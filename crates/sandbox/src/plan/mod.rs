//! Planning: turns a run's spec and the host's abilities into the ordered steps that make a sandbox.
//!
//! Planning changes nothing. It reads this machine only to refuse or to tell, and to follow links in the caller's search path. The sandbox's
//! init carries out the steps one by one, and an error names a step by its text. If the host lacks an isolation, the plan is refused; an
//! isolation that the caller agreed to weaken is a notice in the plan.

pub(crate) mod additions;
mod builtin;
pub(crate) mod companion;
mod container;
mod docker;
pub(crate) mod engine;
pub(crate) mod identity;
pub(crate) mod ids;
mod inputs;
pub(crate) mod inside;
pub(crate) mod limits;
mod linux;
mod options;
mod process;
mod refused;
mod session;
mod steered;
mod unbindable;
mod wiring;

use std::fmt;
use std::path::{Path, PathBuf};

use policy::{Backend, Label, MountMode, NameNetwork, RunId, RunSpec, Setup, Wiring, WorkspaceMode};

use self::additions::Additions;
use self::engine::EngineRun;
use self::identity::further_groups;
use self::ids::Identity;
use self::inputs::PlanInputs;
use self::inside::{GATEWAY_SOCKET, home};
use self::limits::{LimitsPlan, plan_limits};
use self::linux::trust_authorities;
pub use self::refused::refuse_foreign_process_files;

use crate::caller::Caller;
use crate::environment::{self, EnvironmentInputs, Planes};
use crate::error::Error;
use crate::further_authorities::FurtherAuthorities;
use crate::host::Host;
use crate::mounted::MountsOnceRead;
use crate::step::{Step, Visible};
use crate::{protect, tool};

/// Everything that is to be done for a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The run's id.
    pub run: RunId,
    /// The backend that makes the sandbox.
    pub backend: Backend,
    /// How the sandbox's network reaches the sidecar, if this kernel makes the sandbox.
    pub wiring: Wiring,
    /// The network out of which names get their addresses, if this kernel makes the sandbox.
    pub name_addresses: NameNetwork,
    /// The container engine, if one makes the sandbox.
    pub engine: Option<EngineRun>,
    /// The ids of the command.
    pub identity: Identity,
    /// The further groups of the command, inside.
    pub groups: Vec<u32>,
    /// How limits are enforced.
    pub limits: LimitsPlan,
    /// The workspace, at the same path inside.
    pub workspace: PathBuf,
    /// Protected paths of the workspace that the command may write (`--open`).
    pub open: Vec<PathBuf>,
    /// The directory that the command starts in, inside.
    pub directory: PathBuf,
    /// The home inside.
    pub home: PathBuf,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The health command; empty if there is none.
    pub probe: Vec<String>,
    /// The environment of the command. Addresses of planes may still be placeholders.
    pub environment: Vec<(String, String)>,
    /// The set-up commands, in order.
    pub setup: Vec<Setup>,
    /// The caller's own labels, by which the containers of the run can be found.
    pub labels: Vec<Label>,
    /// What is weaker than it could be, each a sentence for the user.
    pub notices: Vec<String>,
}

/// Makes the plan of a run.
///
/// # Errors
/// When this host cannot do what the spec asks for. The error names it and a remedy.
pub fn plan(
    spec: &RunSpec,
    run: &RunId,
    caller: &Caller,
    host: &Host,
    additions: &Additions,
    mounts: &MountsOnceRead,
) -> Result<Plan, Error> {
    let workspace = workspace(spec, caller, mounts)?;
    refuse_half_root(spec, caller, host)?;
    wiring::refuse_link(spec, caller, host)?;
    protect::refuse_unknown(&spec.open)?;
    let mut notices = spec.notices.clone();
    // A workspace that is read-only is so as a whole.
    if spec.workspace_mode != WorkspaceMode::ReadOnly {
        notices.extend(spec.open.iter().map(|path| opened(&workspace, path)));
    }
    notices.extend(without_repository(spec, &workspace));
    let limits = plan_limits(spec, host, &mut notices)?;
    let tools = bring_tools(spec, caller, additions)?;
    let identity = Identity::of(spec, run, caller, additions)?;
    let image = additions.image.as_ref();
    let home = home(spec.backend, caller, image);
    let inputs =
        PlanInputs { spec, caller, host, additions, workspace: &workspace, home: &home, tools: &tools };
    let mut steps = backend_steps(&inputs, &identity, &mut notices)?;
    builtin::bring(&mut steps, spec, &home, host, additions, &mut notices);
    let planes =
        Planes::inside(matches!(spec.backend, Backend::Linux | Backend::Container).then_some(GATEWAY_SOCKET));
    let environment = EnvironmentInputs {
        spec,
        caller,
        host,
        run,
        home: &home,
        planes: &planes,
        tools: &tools,
        additions,
        holds_git: holds(spec, &workspace, Path::new(".git"))?.is_some(),
    }
    .build()?;
    linux::read_authorities_early(&mut steps, &environment::java_homes(&environment));
    let mut plan = Plan {
        run: run.clone(),
        backend: spec.backend,
        wiring: spec.wiring,
        name_addresses: spec.name_addresses,
        engine: additions.engine.clone(),
        identity,
        groups: image.map(|image| further_groups(image, &identity)).unwrap_or_default(),
        limits,
        directory: spec.directory.clone().unwrap_or_else(|| workspace.clone()),
        open: spec.open.clone(),
        workspace,
        home,
        steps,
        probe: Vec::new(),
        environment,
        setup: spec.setup.clone(),
        labels: spec.labels.clone(),
        notices,
    };
    if plan.backend != Backend::Process {
        plan.notices.extend(without_objects(&plan));
        refused::refuse_engines(&plan, caller, mounts)?;
        options::refuse_options_in_paths(&plan)?;
        refused::refuse_below_held(spec, &plan)?;
        unbindable::refuse(&plan, mounts)?;
        refused::refuse_second_names(&plan, mounts)?;
        steered::refuse(&plan, mounts)?;
        refused::refuse_mounts_below(&plan, mounts)?;
        refused::refuse_hidden(&plan)?;
        refused::refuse_in_place_of_the_gateway(&plan)?;
    }
    Ok(plan)
}

/// Collects the files, search paths and variables of the tools that a run names.
fn bring_tools(spec: &RunSpec, caller: &Caller, additions: &Additions) -> Result<tool::Brought, Error> {
    let mut tools = tool::Brought::default();
    for name in &spec.tools {
        let brought = tool::bring(name, caller)?;
        tools.visible.extend(brought.visible);
        tools.search.extend(brought.search);
        tools.environment.extend(brought.environment);
    }
    tools.environment.extend(additions.defaults.iter().cloned());
    Ok(tools)
}

/// Returns the steps of the run's backend.
fn backend_steps(
    inputs: &PlanInputs<'_>,
    identity: &Identity,
    notices: &mut Vec<String>,
) -> Result<Vec<Step>, Error> {
    let &PlanInputs { spec, host, additions, .. } = inputs;
    let mut steps = match spec.backend {
        Backend::Linux => linux::steps(inputs, notices)?,
        Backend::Container => {
            let image = additions.image.as_ref().ok_or_else(|| Error::Refused {
                what: "backend `container` needs an image".into(),
                remedy: Some("name one with --image".into()),
            })?;
            notices.extend(container::note_owners(image, identity));
            container::steps(inputs, image, notices)?
        }
        Backend::Docker => {
            let engine = additions.engine.as_ref().ok_or_else(|| Error::Refused {
                what: "backend `docker` needs an engine".into(),
                remedy: Some("start one, or name its socket in DOCKER_HOST".into()),
            })?;
            notices.extend(identity::note_user(engine, identity));
            docker::steps(inputs, engine, notices)?
        }
        Backend::Process => return process::steps(spec, host, additions, notices),
    };
    // An image has a bundle of its own, or none.
    let bundle = if spec.backend == Backend::Linux { host.bundle.clone() } else { None };
    trust_authorities(&mut steps, bundle, &additions.authorities);
    Ok(steps)
}

/// Returns the name at or above a path of the workspace that a placeholder will hold, if one will.
fn holds(spec: &RunSpec, workspace: &Path, within: &Path) -> Result<Option<&'static Path>, Error> {
    if spec.backend == Backend::Process || spec.workspace_mode != WorkspaceMode::ReadWrite {
        return Ok(None);
    }
    protect::held_above(workspace, &spec.open, within)
}

/// Returns what to say of a workspace whose repository is not shown with it: a linked worktree, a submodule.
fn without_repository(spec: &RunSpec, workspace: &Path) -> Option<String> {
    let there = protect::repository_outside(workspace).filter(|_| spec.backend != Backend::Process)?;
    let is_shown = spec.mounts.iter().any(|mount| there.starts_with(&mount.source));
    (!is_shown).then(|| {
        let there = there.to_string_lossy();
        format!(
            "`.git` leads to {}, which is not shown: git finds no repository inside. Show the whole repository, or a clone of it, as the \
             workspace",
            there.escape_debug()
        )
    })
}

/// Returns what to say of a workspace whose repository borrows objects that are not shown with it, as `git clone --shared` makes one.
fn without_objects(plan: &Plan) -> Option<String> {
    let (there, named) = protect::objects_outside(&plan.workspace)?;
    let is_shown = plan.shown().any(|path| there.starts_with(path));
    (!is_shown).then(|| {
        let flag = format!("{}:{}", there.display(), named.display());
        let word = policy::visible_shell_word(&flag).filter(|_| flag.matches(':').count() == 1);
        let how = word.map(|word| format!(": --mount {word}")).unwrap_or_default();
        let there = there.to_string_lossy();
        let there = there.escape_debug();
        format!(
            "`.git/objects/info/alternates`, which a command can write, borrows objects of {there}, which is not shown: git finds not all \
             commits inside. If you know that folder, show it{how}"
        )
    })
}

/// Says what it means that a protected path is opened. The protected parts of a repository are rows of their own.
fn opened(workspace: &Path, path: &Path) -> String {
    let is_folder = |path: &Path| workspace.join(path).symlink_metadata().is_ok_and(|it| it.is_dir());
    match path == Path::new(".git") && is_folder(path) {
        true => "links and pipes in `.git` are left as they are in this run; its protected parts (`.git/config`, `.git/hooks` and others) \
                 stay protected: open them by their own names"
            .into(),
        false => {
            format!("`{}` is not protected in this run: what it holds is run or trusted here", path.display())
        }
    }
}

/// Returns the workspace as an absolute path. Refuses one that cannot be recorded and displayed, and one that may be none.
fn workspace(spec: &RunSpec, caller: &Caller, mounts: &MountsOnceRead) -> Result<PathBuf, Error> {
    let path: PathBuf = caller.workspace(spec.workspace.as_deref()).components().collect();
    refuse_unwritable_name(&path)?;
    if spec.backend != Backend::Process {
        refused::refuse_workspace(&path, spec, caller, mounts)?;
    }
    Ok(path)
}

/// Refuses a workspace path that is not UTF-8 or has control characters. The path goes into the run's record, into variables and onto
/// terminals, where a line break would end one entry and begin another.
fn refuse_unwritable_name(path: &Path) -> Result<(), Error> {
    let why = match path.to_str() {
        None => "its path is not UTF-8",
        Some(text) if text.chars().any(char::is_control) => "its path holds a control character",
        Some(_) => return Ok(()),
    };
    Err(Error::Impossible {
        what: format!("`{}` cannot be a workspace: {why}", path.to_string_lossy().escape_debug()),
        remedy: "rename that folder, or name another with --workspace".into(),
    })
}

/// Refuses a run by a superuser who cannot assign private ids: the command would be root outside.
fn refuse_half_root(spec: &RunSpec, caller: &Caller, host: &Host) -> Result<(), Error> {
    let is_made_here = matches!(spec.backend, Backend::Linux | Backend::Container);
    match host.half_root().filter(|_| is_made_here && caller.superuser) {
        Some((what, remedy)) => Err(Error::Refused { what, remedy: Some(remedy) }),
        None => Ok(()),
    }
}

impl Plan {
    /// Whether the sidecar terminates TLS, so that programs inside must trust its certificate authority.
    pub(crate) fn opens_tls(&self) -> bool {
        self.further_authorities().is_some_and(|further| further.own)
    }

    /// Returns what programs inside trust beside the authorities of this machine or of the image, if that is anything.
    pub(crate) fn further_authorities(&self) -> Option<&FurtherAuthorities> {
        self.steps.iter().find_map(Step::further_authorities)
    }

    /// Returns the host paths that the command may write to, if the backend limits them.
    pub fn writable(&self) -> impl Iterator<Item = &Path> {
        self.steps.iter().filter_map(|step| match step {
            Step::ShowWorkspace(path, WorkspaceMode::ReadWrite)
            | Step::Show(Visible { source: path, mode: MountMode::ReadWrite, .. }) => Some(path.as_path()),
            _ => None,
        })
    }

    /// Returns the directories and files of the host's system that are inside under their own paths.
    pub fn system(&self) -> impl Iterator<Item = &Path> {
        self.steps.iter().filter_map(|step| match step {
            Step::ShowSystem(path) | Step::Link { path, .. } => Some(path.as_path()),
            _ => None,
        })
    }

    /// Returns the host paths that the command sees or has a copy of, if the backend limits them.
    pub fn shown(&self) -> impl Iterator<Item = &Path> {
        self.steps.iter().filter_map(|step| match step {
            Step::ShowWorkspace(path, _)
            | Step::OverlayWorkspace { workspace: path, .. }
            | Step::Copy { source: path, .. }
            | Step::ShowUnder { source: path, .. }
            | Step::ShowSystem(path) => Some(path.as_path()),
            Step::Show(Visible { source: path, .. }) => Some(path.as_path()),
            _ => None,
        })
    }
}

impl fmt::Display for Plan {
    /// Writes the plan as lines, for users and for snapshot tests.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "backend {}", self.backend)?;
        let Identity { uid, gid, .. } = self.identity;
        writeln!(
            f,
            "uid {} is {} outside, gid {} is {} outside",
            uid.inside, uid.outside, gid.inside, gid.outside
        )?;
        if !self.groups.is_empty() {
            let groups: Vec<String> = self.groups.iter().map(ToString::to_string).collect();
            writeln!(f, "further groups inside: {}", groups.join(", "))?;
        }
        match &self.limits {
            LimitsPlan::Group(l) | LimitsPlan::Engine(l) => {
                writeln!(
                    f,
                    "limits: memory {}, {} processors, {} processes, disk {}",
                    l.memory, l.cpus, l.pids, l.disk
                )?;
            }
            LimitsPlan::Processes(pids) => writeln!(f, "limits: {pids} processes, nothing else")?,
            LimitsPlan::Unlimited => writeln!(f, "limits: none")?,
        }
        for (number, step) in (1..).zip(&self.steps) {
            writeln!(f, "{number:2}. {step}")?;
        }
        for notice in &self.notices {
            writeln!(f, "note: {notice}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
