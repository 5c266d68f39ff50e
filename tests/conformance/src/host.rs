//! What this machine can do, found out by doing it, and the only place where a test is skipped.
//! A skip prints its reason; with `LOCKGATE_TEST_REQUIRE=all` it is a failure. No skip is silent.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

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
    /// An engine of root's, if an engine makes the runs: Podman without root has no declared ports and no pool, and they are not tried at
    /// Docker without root.
    RootsEngine,
    /// Room for the processes of many runs at once: at Docker's engine without root they all count as one run's.
    ManyRuns,
    /// A pseudo-terminal, made by `script` of util-linux.
    Terminal,
}

/// Returns whether all requirements of a test are met. Otherwise it prints the reason, and the test must return.
///
/// # Panics
/// When a requirement is missing and `LOCKGATE_TEST_REQUIRE=all`.
#[must_use]
pub fn ready(needs: &[Needs]) -> bool {
    let missing = binary("lockgate")
        .and_then(|_| binary("probe"))
        .and_then(|_| match Backend::isolated() {
            Backend::Container => image::store().map(drop),
            Backend::ContainerVeth => image::store().map(drop).and_then(|()| have(Needs::Root)),
            Backend::Docker | Backend::Podman => have(Needs::Engine),
            Backend::Veth => have(Needs::Root),
            Backend::Linux | Backend::Process => Ok(()),
        })
        .and_then(|_| needs.iter().try_for_each(|need| have(*need)));
    let Err(reason) = missing else { return true };
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    assert!(env::var("LOCKGATE_TEST_REQUIRE").as_deref() != Ok("all"), "{name} cannot run: {reason}");
    eprintln!("SKIP {name}: {reason}");
    false
}

/// Returns the path of one of our programs.
///
/// # Errors
/// When the program is not built.
pub fn program_path(name: &str) -> Result<PathBuf, String> {
    binary(name)
}

/// Returns the path of one of our programs: from its variable, or from where this test was built.
pub(crate) fn binary(name: &str) -> Result<PathBuf, String> {
    let variable = match name {
        "lockgate" => "LOCKGATE_BIN".to_owned(),
        other => format!("LOCKGATE_{}_BIN", other.to_uppercase()),
    };
    if let Some(path) = env::var_os(&variable) {
        let path = PathBuf::from(path);
        return if path.is_file() {
            Ok(path)
        } else {
            Err(format!("{variable} names no file: {}", path.display()))
        };
    }
    let own = env::current_exe().map_err(|error| format!("failed to find this test's own path: {error}"))?;
    let beside =
        own.ancestors().skip(1).take(2).map(|directory| directory.join(name)).find(|path| path.is_file());
    beside.ok_or_else(|| format!("`{name}` is not built; build it, or name it in {variable}"))
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
        Needs::RootsEngine if engine::given().is_none() => Ok(()),
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
        .arg(binary("probe")?)
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
    let path = binary("world")?;
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

fn succeeds(command: &mut Command, otherwise: &str) -> Result<(), String> {
    match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{otherwise}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{otherwise}: {error}")),
    }
}
