//! What this machine can do, found out by doing it. Where something is missing, a test is skipped by the rule of `lockgate_needs`.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use lockgate_needs::{met, program, succeeds};

use crate::bench::Backend;
use crate::{engine, image};

/// A requirement of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// User, network and PID namespaces with nftables inside, as the `linux` backend uses.
    Linux,
    /// The small internet of `tests/world`.
    World,
    /// Root outside.
    Root,
    /// A way to limit memory and processes: root, or a delegated control group.
    ControlGroups,
    /// The images of the tests, in a store of `lockgate image`.
    Images,
    /// A Docker engine of the test's own, which only root can start.
    Engine,
    /// An engine of root's that no other test has, if an engine makes the runs: Podman without root has no declared ports and no pool, and
    /// they are not tried at Docker without root.
    RootsEngine,
    /// Room for the processes of many runs at once: at Docker's engine without root they all count as one run's.
    ManyRuns,
    /// A pseudo-terminal, made by `script` of util-linux.
    Terminal,
    /// A program on the host. The images of the tests have the same ones at the same places.
    Program(&'static str),
}

/// Returns whether all requirements of a test are met. Otherwise it prints the reason, and the test must return.
///
/// # Panics
/// When a requirement is missing and everything is required.
#[must_use]
pub fn ready(needs: &[Needs]) -> bool {
    let all = program("lockgate")
        .and_then(|_| program("probe"))
        .and_then(|_| match Backend::isolated() {
            Backend::Container => image::store().map(drop),
            Backend::ContainerVeth => image::store().map(drop).and_then(|()| have(Needs::Root)),
            Backend::Docker | Backend::Podman => have(Needs::Engine),
            Backend::Veth => have(Needs::Root),
            Backend::Linux | Backend::Process => Ok(()),
        })
        .and_then(|_| needs.iter().try_for_each(|need| have(*need)));
    met(all).is_some()
}

fn have(need: Needs) -> Result<(), String> {
    static LINUX: OnceLock<Result<(), String>> = OnceLock::new();
    static WORLD: OnceLock<Result<(), String>> = OnceLock::new();
    static GROUPS: OnceLock<Result<(), String>> = OnceLock::new();
    match need {
        Needs::Linux => LINUX.get_or_init(linux).clone(),
        Needs::ControlGroups => GROUPS.get_or_init(groups).clone(),
        Needs::Root if is_root() => Ok(()),
        Needs::Root => Err("this test needs to be root".to_owned()),
        Needs::Images => image::store().map(drop),
        Needs::World if engine::given().is_some() => {
            Err("an engine without root is in no small internet".to_owned())
        }
        Needs::World => WORLD.get_or_init(world).clone(),
        Needs::Engine if engine::given().is_some() => Ok(()),
        Needs::RootsEngine if engine::given().is_none() => {
            engine::keep_apart();
            Ok(())
        }
        Needs::RootsEngine if engine::makes_user_root() => {
            Err("declared ports and the pool are not tried at Docker's engine without root".to_owned())
        }
        Needs::RootsEngine => {
            Err("an engine without root refuses by name what this test is about".to_owned())
        }
        Needs::ManyRuns if engine::makes_user_root() => {
            Err("at this engine the processes of all runs count as one's".to_owned())
        }
        Needs::ManyRuns => Ok(()),
        Needs::Engine => have(Needs::Root).and_then(|()| engine::possible()),
        Needs::Terminal => {
            succeeds(Command::new("script").arg("--version"), "`script` (util-linux) is not installed")
        }
        Needs::Program(path) => succeeds(Command::new(path).arg("--version"), &format!("no {path} here")),
    }
}

/// Whether this test runs as root.
#[must_use]
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|data| data.uid() == 0)
}

fn linux() -> Result<(), String> {
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--net", "--pid", "--fork"])
        .arg(program("probe")?)
        .arg("nftables-table");
    let output =
        command.output().map_err(|error| format!("`unshare` (util-linux) does not start: {error}"))?;
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if text.contains("\"done\"") {
        Ok(())
    } else {
        Err(format!("no user namespace with nftables here: {}", text.trim()))
    }
}

fn world() -> Result<(), String> {
    let path = program("world")?;
    succeeds(Command::new(path).args(["--", "true"]), "the small internet of tests/world cannot be made here")
}

/// Root always may; other users need a delegated control group (cgroups(7), delegation).
fn groups() -> Result<(), String> {
    if is_root() {
        return Ok(());
    }
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let procs = Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/')).join("cgroup.procs");
    match std::fs::OpenOptions::new().write(true).open(&procs) {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(format!("no control group is delegated to this user: {}: {error}", procs.display()))
        }
    }
}
