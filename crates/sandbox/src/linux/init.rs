//! Init: PID 1 of the sandbox. It carries out the plan step by step, starts the command, reaps orphans, passes signals on, and reports the
//! command's end on a socket that the command does not have.
//!
//! If a step fails, init reports it and runs nothing. If the parent or the sidecar is gone, init ends, and with it the sandbox.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use policy::agreed::SANDBOX_NAME;
use policy::{MountMode, Wiring};
use rustix::io::Errno;
use rustix::process::Resource;
use sys::landlock::Right;
use sys::mount;
use sys::privilege;
use sys::process::{self, Forked, Namespaces};

use super::handover::Laid;
use super::image::Written;
use super::root::Root;
use super::step_error::StepError;
use super::trust::Trust;
use super::{InitInputs, etc, handover, link, listeners, subordinate, wire};
use crate::error::Error;
use crate::failure::Failure;
use crate::further_authorities::FurtherAuthorities;
use crate::init_loop::{self, Supervised};
use crate::launch::Launch;
use crate::need::Need;
use crate::open_file::is_same;
use crate::plan::Plan;
use crate::plan::inside::EVERYBODYS;
use crate::plan::limits::LimitsPlan;
use crate::step::{Step, Visible};
use crate::supervise::{self, FurtherGroups, Ready};
use crate::{confine, environment, priority, protect, rlimit, seccomp};

/// The first terminal of the sandbox's own devpts.
const TERMINAL: &CStr = c"/dev/pts/0";
/// Init's own process, counted beside those of the command.
const OWN_PROCESSES: u64 = 1;

/// Runs init to its end.
pub(super) fn run(inputs: InitInputs<'_>, left: Namespaces, forked: Forked) {
    let launch = Launch::of(inputs.plan, inputs.command);
    let supervised = Supervised {
        launch: &launch,
        stdio: &inputs.stdio,
        control: inputs.control.as_fd(),
        sidecar: inputs.sidecar.as_fd(),
        broker: inputs.broker.as_ref(),
        end_rest: init_loop::end_rest,
        oom_score: None,
    };
    supervise::run(&supervised, prepare(&inputs, left, forked));
}

fn prepare(inputs: &InitInputs<'_>, left: Namespaces, forked: Forked) -> Result<Ready, Failure> {
    // Everybody inside may read init's arguments. They are a copy of the caller's command line.
    sys::arguments::replace("lockgate-init").map_err(Failure::at("hide the caller's arguments"))?;
    close_foreign(forked, inputs).map_err(Failure::at("close inherited descriptors"))?;
    // Init leads a process group, as the sidecar does. The command gets a session of its own.
    let _ = rustix::process::setpgid(None, None);
    priority::give_up().map_err(Failure::at("give up priority"))?;
    let alone = take_identity(inputs).map_err(Failure::of_kernel("map the identity", Need::of_maps))?;
    // Only after the identity is taken: the kernel clears this setting when the identity changes.
    process::die_with_parent().map_err(Failure::at("tie the sandbox to its parent"))?;
    process::unshare(left).map_err(Failure::of_kernel("make namespaces", Need::of_namespaces))?;
    if inputs.plan.wiring == Wiring::Veth {
        link::offer_network(&inputs.hand).map_err(Failure::at("offer the network to the parent"))?;
    }
    mount::make_all_private().map_err(Failure::of_kernel("keep mounts private", Need::of_mounts))?;
    limit_processes(inputs.plan).map_err(Failure::at("limit processes"))?;
    if !inputs.plan.identity.is_private() {
        leave_room();
    }
    // The plan states the mode of each file. The command gets the caller's umask back.
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    let mut maker = SandboxMaker {
        inputs,
        root: Root::default(),
        has_more_ids: alone.is_none(),
        groups: FurtherGroups::Callers,
        notices: alone.into_iter().collect(),
        terminal: None,
        trust: None,
        held: None,
        shown: None,
        laid: None,
        is_wired: !left.have_a_network(),
        taken_over: false,
    };
    for step in &inputs.plan.steps {
        if needs_parent(step, inputs.plan) {
            maker.take_over()?;
        }
        let is_image = maker.root.is_image();
        maker.carry_out(step).map_err(|error| {
            let errno = error.errno();
            Failure::of_step(step, &inputs.plan.steps, error.cause(is_image), errno)
        })?;
    }
    rustix::process::umask(mask);
    Ok(Ready {
        notices: maker.notices,
        shown: maker.shown,
        terminal: maker.terminal.map(|master| (master, TERMINAL.into())),
        groups: maker.groups,
    })
}

/// Closes every descriptor that the parent had open and did not hand over.
fn close_foreign(forked: Forked, inputs: &InitInputs<'_>) -> io::Result<()> {
    let mut keep = vec![inputs.control.as_fd(), inputs.sidecar.as_fd(), inputs.hand.as_fd()];
    keep.extend(inputs.broker.as_ref().map(AsFd::as_fd));
    keep.extend(inputs.stdio.descriptors());
    forked.close_all_but(&keep)
}

/// Takes on the identity of the sandbox. For an unprivileged caller init maps the ids itself; for root the parent maps them from
/// outside, and init drops its groups. Returns a notice if the plan wanted subordinate ids and there is only one id.
fn take_identity(inputs: &InitInputs<'_>) -> io::Result<Option<String>> {
    let identity = inputs.plan.identity;
    if identity.is_private() {
        handover::await_maps(&inputs.hand)?;
        return privilege::become_user(identity.uid.inside, identity.gid.inside).map(|()| None);
    }
    let mut alone = None;
    if identity.subordinate.is_some() {
        match subordinate::await_maps(&inputs.hand)? {
            Ok(()) => return Ok(None),
            Err(why) => alone = Some(format!("there is one id inside, the command's own: {why}")),
        }
    }
    privilege::write_id_maps("/proc/self", identity.uid.map(), identity.gid.map()).map(|()| alone)
}

/// Limits the sandbox to a part of what the kernel counts by user. The sandbox has the caller's user id, so a command that used all
/// of it would leave nothing to the caller's own programs. Limited are inotify instances (128 by most kernels' default), inotify
/// watches, pending signals and timers, and POSIX message queues. Where the kernel cannot limit one, it stays as it is.
fn leave_room() {
    const WATCHERS: &str = "48";
    const SIGNALS: u64 = 8192;
    let _ = std::fs::write("/proc/sys/user/max_inotify_instances", WATCHERS);
    let watched = sys::kernel_file::read("/proc/sys/fs/inotify/max_user_watches");
    if let Some(watched) = watched.ok().and_then(|text| text.trim().parse::<u64>().ok()) {
        let _ = std::fs::write("/proc/sys/user/max_inotify_watches", (watched / 4 * 3).to_string());
    }
    let _ = rlimit::set(Resource::Sigpending, SIGNALS);
    if let Some(queues) = rustix::process::getrlimit(Resource::Msgqueue).current {
        let _ = rlimit::set(Resource::Msgqueue, queues / 2);
    }
}

/// Whether a step needs what the parent makes while init is at work.
fn needs_parent(step: &Step, plan: &Plan) -> bool {
    match step {
        // These also enter the control group. Init must do that before it drops its privileges, whatever is shown.
        Step::Protect | Step::TrustAuthorities(..) | Step::JoinLink | Step::DropPrivileges => true,
        // The parent hands over trees only as root. Otherwise init has opened them itself.
        _ => plan.identity.is_private() && !step.trees().is_empty(),
    }
}

/// Limits the number of processes, if no control group does, and the size of core dumps. The kernel counts processes by user
/// namespace, so the limit bounds the sandbox alone.
fn limit_processes(plan: &Plan) -> io::Result<()> {
    if let LimitsPlan::Processes(pids) = plan.limits {
        rlimit::set(Resource::Nproc, u64::from(pids) + OWN_PROCESSES)?;
    }
    rlimit::set_cores()
}

/// Carries out the steps of the plan, one after the other.
struct SandboxMaker<'a> {
    inputs: &'a InitInputs<'a>,
    root: Root,
    notices: Vec<String>,
    terminal: Option<OwnedFd>,
    /// The host's certificate authorities, if they were read ahead.
    trust: Option<Trust<'a>>,
    /// The workspace in which the parent holds names, and these, until init has protected the one that is shown.
    held: Option<(OwnedFd, Vec<PathBuf>)>,
    /// The workspace, once what is protected in it is covered.
    shown: Option<OwnedFd>,
    /// The host's end of the link, if there is a link.
    laid: Option<Laid>,
    /// Whether the network was made and redirected before init began.
    is_wired: bool,
    /// Whether the sandbox has all ids that the plan names.
    has_more_ids: bool,
    groups: FurtherGroups,
    taken_over: bool,
}

impl<'a> SandboxMaker<'a> {
    /// Waits for what the parent hands over, once, and enters the control group.
    fn take_over(&mut self) -> Result<(), Failure> {
        if std::mem::replace(&mut self.taken_over, true) {
            return Ok(());
        }
        let handed = handover::take(&self.inputs.hand).and_then(|handed| {
            sys::cgroup::enter(handed.control_files.iter().map(AsFd::as_fd))?;
            Ok((handed.held, handed.trees, handed.laid))
        });
        let (held, trees, laid) = handed.map_err(|e| Failure::new("enter the control group", e))?;
        // Only after init is in the group, so that this group is the root of what the sandbox sees.
        process::unshare(Namespaces::CGROUP)
            .map_err(Failure::of_kernel("make namespaces", Need::of_namespaces))?;
        self.root.receive(trees);
        self.held = held;
        self.laid = laid;
        Ok(())
    }

    fn carry_out(&mut self, step: &'a Step) -> Result<(), StepError> {
        let plan = self.inputs.plan;
        match step {
            Step::OpenSources => self.root.open_sources(self.inputs)?,
            Step::MountRoot { size, inodes } => self.root.mount(size.bytes(), *inodes)?,
            Step::MountImage { layers, size, inodes, written } => {
                let written = if written.is_some() { Written::OnDisk } else { Written::InMemory };
                self.root.mount_image(layers.len(), written, size.bytes(), *inodes)?;
            }
            Step::ShowSystem(path) => self.root.show_system(path)?,
            Step::Link { path, to } => self.root.link(path, to)?,
            Step::OwnDirectory(path, mode) => self.root.own_directory(path, *mode)?,
            Step::Volume(path) => self.root.volume(path, &plan.identity)?,
            Step::Home(path) => self.notices.extend(self.root.home(path, &plan.identity)?),
            Step::LetInto(path) => self.root.let_into(path),
            Step::Everybodys(path) => self.root.everybodys(path)?,
            Step::Directory(path, mode) => self.root.led_to(path, *mode)?,
            Step::ShowEtc => etc::show(&self.root, plan)?,
            Step::WriteEtc => etc::write(&self.root, plan)?,
            Step::ReadAuthorities(bundle) => self.trust = Some(self.read_authorities(Some(bundle))?),
            Step::TrustAuthorities(bundle, further) => self.trust_further(bundle.as_deref(), further)?,
            Step::MountProc => self.root.mount_proc()?,
            Step::MakeDevices => {
                self.terminal = self.root.make_devices(&self.inputs.stdio)?;
            }
            Step::ShowWorkspace(path, mode) => self.root.show_workspace(path, *mode)?,
            Step::OverlayWorkspace { workspace, .. } => {
                self.root.overlay_workspace(workspace).map_err(StepError::of_overlay)?
            }
            Step::Show(visible) => self.root.show(visible)?,
            Step::ShowUnder { target, size, .. } => self.root.show_under(target, size.bytes())?,
            Step::WriteFile(file) => self.root.write(file)?,
            Step::Copy { target, .. } => self.root.copy(target)?,
            Step::Protect => self.protect()?,
            Step::EnterRoot => self.root.enter()?,
            Step::SetHostname => {
                rustix::system::sethostname(SANDBOX_NAME.as_bytes()).map_err(io::Error::from)?
            }
            Step::WireNetwork if self.is_wired => {}
            Step::WireNetwork => wire::wire()?,
            Step::HandOutListeners => listeners::hand_out(&self.root, self.inputs.sidecar.as_fd())?,
            Step::JoinLink => {
                let laid = self.laid.take().ok_or("the parent made no link")?;
                link::join(&plan.run, laid, self.inputs.sidecar.as_fd())?;
            }
            Step::DropPrivileges if !self.root.is_entered() => {
                return Err("the plan leaves the command in this machine's root".into());
            }
            Step::DropPrivileges => {
                // Only now: until here what is opened may need the caller's own groups.
                if self.has_more_ids && !plan.groups.is_empty() {
                    privilege::set_groups(&plan.groups)?;
                    self.groups = FurtherGroups::Images;
                }
                drop_privileges()?;
            }
            Step::Landlock => self.landlock()?,
            Step::Seccomp => sys::seccomp::install(&seccomp::AGENT)?,
            Step::RunNetwork
            | Step::SidecarContainer
            | Step::AgentContainer(_)
            | Step::PrivateDirectory { .. } => return Err("only an engine does this".into()),
            Step::WriteAuthorities { .. } => return Err("only a command without a sandbox needs this".into()),
        }
        Ok(())
    }

    /// Makes programs inside trust further authorities. The run's own is one of them once the sidecar has made it.
    fn trust_further(
        &mut self,
        bundle: Option<&'a Path>,
        further: &FurtherAuthorities,
    ) -> Result<(), StepError> {
        let prepared = match self.trust.take() {
            Some(prepared) => prepared,
            None => self.read_authorities(bundle)?,
        };
        let await_own = || handover::await_authority(&self.inputs.hand);
        let own = further.own.then(await_own).transpose();
        let own = own.map_err(|e| format!("the sidecar made no authority: {e}"))?;
        Ok(prepared.lay(&self.root, own.as_deref(), further)?)
    }

    /// Makes protected paths read-only, if the workspace is still the one in which the parent holds names.
    fn protect(&mut self) -> Result<(), StepError> {
        let workspace = self.root.open(&self.inputs.plan.workspace)?;
        let (held, names) = self.held.take().ok_or("nobody holds its names")?;
        if !is_same(&workspace, &held).map_err(io::Error::from)? {
            return Err("another folder was put in its place while the run began; start it again".into());
        }
        protect::protect(workspace.as_fd(), &self.inputs.plan.open, &names).map_err(|error| match error {
            Error::Source { path, why } => format!("{}: {why}", path.display()).into(),
            Error::Refused { what, remedy: Some(remedy) } => format!("{what}; {remedy}").into(),
            other => StepError::from(other.to_string()),
        })?;
        self.shown = Some(workspace);
        Ok(())
    }

    fn read_authorities(&self, bundle: Option<&'a Path>) -> io::Result<Trust<'a>> {
        Trust::prepare(&self.root, bundle, &environment::java_homes(&self.inputs.plan.environment))
    }

    /// Allows reading everything, and writing only to the private directories and to what was shown for writing.
    fn landlock(&mut self) -> Result<(), StepError> {
        let plan = self.inputs.plan;
        // The files of an image are under a private layer, so the command may change them.
        let root = if self.root.is_image() { Right::Write } else { Right::Read };
        let mut trees: Vec<(PathBuf, Right)> = vec![("/".into(), root), (plan.home.clone(), Right::Write)];
        trees.extend(["/proc", "/dev"].map(|p| (p.into(), Right::Use)));
        let own = ["/run", "/dev/shm", "/dev/pts", "/dev/mqueue"];
        trees.extend(EVERYBODYS.into_iter().chain(own).map(|p| (p.into(), Right::Write)));
        for step in &plan.steps {
            match step {
                Step::ShowWorkspace(path, policy::WorkspaceMode::ReadWrite)
                | Step::OverlayWorkspace { workspace: path, .. } => trees.push((path.clone(), Right::Write)),
                Step::Show(Visible { target, mode: MountMode::ReadWrite, .. }) => {
                    trees.push((target.clone(), Right::Write))
                }
                Step::Copy { target, .. } => trees.push((target.clone(), Right::Write)),
                _ => {}
            }
        }
        let opened: Result<Vec<(OwnedFd, Right)>, String> = trees
            .into_iter()
            .filter_map(|(path, right)| {
                let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
                match rustix::fs::open(&path, flags, rustix::fs::Mode::empty()) {
                    Ok(opened) => Some(Ok((opened, right))),
                    Err(errno) if is_left_out(&path, errno, &plan.home, self.root.is_image()) => None,
                    Err(errno) => Some(Err(format!("{}: {}", path.display(), io::Error::from(errno)))),
                }
            })
            .collect();
        let opened = opened?;
        let rules: Vec<_> = opened.iter().map(|(fd, right)| (fd.as_fd(), *right)).collect();
        Ok(confine::restrict_files(&rules)?)
    }
}

/// Whether a directory that cannot be opened needs no right: an image's user may have a home in `/dev`, which covers what the image has
/// there, and an image may have another thing in the place of one, or a link that leads nowhere.
fn is_left_out(path: &Path, errno: Errno, home: &Path, is_image: bool) -> bool {
    let may_miss = path == home || is_image && EVERYBODYS.iter().any(|it| path == Path::new(it));
    may_miss && matches!(errno, Errno::NOENT | Errno::NOTDIR)
}

fn drop_privileges() -> io::Result<()> {
    privilege::drop_capabilities()?;
    privilege::no_new_privileges()?;
    privilege::undumpable()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_image_has_not_in_a_place_of_its_own_needs_no_right() {
        let is_left_out =
            |path: &str, errno, is_image| is_left_out(Path::new(path), errno, Path::new("/home/a"), is_image);
        for errno in [Errno::NOENT, Errno::NOTDIR] {
            let left = ["/tmp", "/var/tmp", "/home/a", "/run"].map(|path| is_left_out(path, errno, true));
            assert_eq!(left, [true, true, true, false], "{errno}");
            assert!(!is_left_out("/tmp", errno, false));
        }
        assert!(!is_left_out("/tmp", Errno::ACCESS, true));
    }
}
