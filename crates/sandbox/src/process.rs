//! The `process` backend: a plain child in a session of its own, without isolation, which the plan's notice says. It has the sidecar, the
//! environment and the limits of every backend, and nothing that it started outlives the run.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use policy::agreed::{FORWARD_PORT, GATEWAY_PORT, plane_url};
use rustix::process::Signal;
use sys::cgroup::Group;
use sys::process::{self, Forked, Namespaces};
use sys::{descriptor, listener, privilege};

use crate::environment::trusted;
use crate::error::{Error, THE_SUPERVISOR};
use crate::failure::Failure;
use crate::further_authorities::FurtherAuthorities;
use crate::handshake::ListenerSet;
use crate::host::Host;
use crate::init_loop::Supervised;
use crate::launch::{Launch, Stdio};
use crate::orphans::{self, Orphans, end_descendants};
use crate::plan::Plan;
use crate::process_stamp::ProcessStamp;
use crate::started::{InitChannels, SidecarStart, Started, Teardown};
use crate::step::Step;
use crate::supervise::{self, FurtherGroups, Ready};
use crate::undo::{Undo, UndoLog};
use crate::{linux, spawn};

/// The largest CA bundle of the host that is read.
const LARGEST: u64 = 8 << 20;
/// The parent's first message to the supervisor: the undo log has it.
const NOTED: &[u8] = b"n";

/// Starts the init of a plain child, which starts the command once the sidecar serves.
///
/// # Errors
/// When the control group, the proxy's listener or init itself cannot be made.
pub(crate) fn start(
    plan: &Plan,
    host: &Host,
    command: &[OsString],
    InitChannels { stdio, sidecar, .. }: InitChannels,
    starter: &mut dyn SidecarStart,
    undo: &mut UndoLog,
) -> Result<Started, Error> {
    let group = linux::make_group(plan, host, undo)?;
    let handshake = |source| Error::Handshake { whom: "init", source };
    starter.start()?;
    if let Some((bundle, further, directory)) = plan.steps.iter().find_map(trust_asked) {
        undo.push(Undo::Trusted(directory.into()));
        let own = match further.own {
            true => starter.authority().map_err(|source| Error::Handshake { whom: "the sidecar", source })?,
            false => Vec::new(),
        };
        write_trusted(bundle, directory, &further.with(&own)).map_err(|error| Error::Source {
            path: directory.into(),
            why: format!("whom programs trust in this run cannot be written there: {error}"),
        })?;
    }
    let plan = with_listener(plan, &sidecar).map_err(handshake)?;
    let (control, control_inside) = descriptor::message_pair().map_err(handshake)?;
    let group_inside = group.as_ref();
    let launch = Launch::of(&plan, command);
    let orphans = Orphans::adopt().map_err(handshake)?;
    // With control groups of version 2 init is born in its group; with version 1 it moves itself.
    let birthplace = group_inside.and_then(Group::birthplace);
    let init = process::clone(Namespaces::NONE, birthplace, move |forked| {
        let it = Supervised {
            launch: &launch,
            stdio: &stdio,
            control: control_inside.as_fd(),
            sidecar: sidecar.as_fd(),
            broker: None,
            end_rest: orphans::end_rest,
            oom_score: None,
        };
        supervise::run(&it, prepare(&it, group_inside, forked));
        end_descendants();
        0
    })
    .map_err(|source| Error::Start { what: THE_SUPERVISOR, source })?;
    undo.push_all(ProcessStamp::of(init.pid()).map(Undo::Supervisor));
    if let Err(source) = descriptor::send(&control, NOTED, &[])
        && !is_gone(&source)
    {
        // It would wait for that word for ever, and has started nothing.
        let _ = init.signal(Signal::KILL);
        let _ = init.wait();
        return Err(handshake(source));
    }
    Ok(Started { orphans: Some(orphans), ..Started::of(init, control, group, Teardown::HangUp) })
}

/// Whether a word to the supervisor was lost because that one is gone. It has reported why.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn trust_asked(step: &Step) -> Option<(Option<&Path>, &FurtherAuthorities, &Path)> {
    match step {
        Step::WriteAuthorities { bundle, further, directory } => {
            Some((bundle.as_deref(), further, directory))
        }
        _ => None,
    }
}

/// Writes the further authorities, and the host's bundle with them, to the files that the environment names.
fn write_trusted(bundle: Option<&Path>, directory: &Path, further: &[u8]) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let [ours, alone] = trusted(directory);
    std::fs::write(alone, further)?;
    let mut ours = File::create_new(ours)?;
    if let Some(bundle) = bundle {
        io::copy(&mut File::open(bundle)?.take(LARGEST), &mut ours)?;
    }
    ours.write_all(&[b"\n", further].concat())
}

/// Removes the files that were written for a run. Doing it again is harmless.
pub(crate) fn remove_trusted(directory: &Path) -> io::Result<()> {
    let gone = |done: io::Result<()>| match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    };
    trusted(directory).iter().try_for_each(|file| gone(std::fs::remove_file(file)))?;
    gone(std::fs::remove_dir(directory))
}

/// Binds the proxy and the gateway to free ports of loopback, hands them to the sidecar, and returns the plan with their addresses in its
/// environment.
fn with_listener(plan: &Plan, sidecar: &OwnedFd) -> io::Result<Plan> {
    let forward = listener::tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let address = SocketAddr::try_from(rustix::net::getsockname(&forward)?).map_err(io::Error::other)?;
    let gateway = listener::tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let gateway_address =
        SocketAddr::try_from(rustix::net::getsockname(&gateway)?).map_err(io::Error::other)?;
    let set = ListenerSet { forward: Some(forward), gateway: Some(gateway), ..ListenerSet::default() };
    set.send(sidecar.as_fd())?;
    let mut plan = plan.clone();
    for (port, real) in [(FORWARD_PORT, address), (GATEWAY_PORT, gateway_address)] {
        let literal = plane_url(port);
        for (_, value) in &mut plan.environment {
            if let Some(rest) = value.strip_prefix(&literal) {
                *value = format!("http://{real}{rest}");
            }
        }
    }
    Ok(plan)
}

fn prepare(it: &Supervised<'_>, group: Option<&Group>, forked: Forked) -> Result<Ready, Failure> {
    let control_files = group.map(Group::control_files).unwrap_or_default();
    sys::cgroup::enter(control_files).map_err(Failure::at("enter the control group"))?;
    let mut keep = vec![it.control, it.sidecar];
    keep.extend(it.stdio.descriptors());
    forked.close_all_but(&keep).map_err(Failure::at("close inherited descriptors"))?;
    // `/proc` may be mounted to hide what cannot be dumped (`hidepid`, proc(5)), and the parent notes what it shows. A parent that is gone
    // is seen later.
    let _ = descriptor::receive(it.control, &mut [0; NOTED.len()]);
    // The caller's environment is in this copy's memory. What the command executes can be dumped and read again: execve(2).
    privilege::undumpable().map_err(Failure::at("keep its memory from other processes"))?;
    // No parent-death signal: it would end this process before it could end the others. The control socket shows the
    // parent's end.
    let _ = rustix::process::setsid();
    // As a subreaper this process inherits orphans, instead of the host's init, so that they end with the run. L02
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(Failure::at("adopt orphans"))?;
    let terminal = match it.stdio {
        Stdio::Terminal { size, .. } => {
            Some(spawn::open_terminal(*size).map_err(Failure::at("open a terminal"))?)
        }
        Stdio::Descriptors(_) => None,
    };
    Ok(Ready { notices: Vec::new(), shown: None, terminal, groups: FurtherGroups::Callers })
}
