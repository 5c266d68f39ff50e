//! A test's bench: a workspace with the probe in it, files beside it that no sandbox may see, and a state directory. All of it lies in one
//! temporary directory that is removed when the bench is dropped.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use lockgate_needs::program;
use tempfile::TempDir;

use crate::engine;
use crate::host::is_root;
use crate::image;
use crate::inventory::files_under;
use crate::program::{Ended, copy_program, run};
use crate::run::Run;
use crate::seen::Seen;

/// The user and group inside a container of an engine when root starts the run.
const USER: u32 = 1000;

/// The backend a run asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backend {
    /// Namespaces, seccomp, limits: the default.
    Linux,
    /// `linux` with a link to the sidecar, which only root can make.
    Veth,
    /// `linux` with an image as its root.
    Container,
    /// `container` with a link.
    ContainerVeth,
    /// A container of the caller's engine, Docker.
    Docker,
    /// A container of Podman's service.
    Podman,
    /// No isolation: a proxy and a clean environment.
    Process,
}

impl Backend {
    /// Returns the backend this program tests: the one it is named after, or `linux`.
    #[must_use]
    pub fn isolated() -> Self {
        static NAMED: OnceLock<Backend> = OnceLock::new();
        *NAMED.get_or_init(|| {
            let own = std::env::current_exe().unwrap_or_default();
            let name = own.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_named = |backend: &Self| {
                name.strip_prefix(backend.program()).is_some_and(|rest| rest.starts_with('-'))
            };
            [Self::Veth, Self::ContainerVeth, Self::Container, Self::Docker, Self::Podman]
                .into_iter()
                .find(is_named)
                .unwrap_or(Self::Linux)
        })
    }

    /// Returns a time limit. An engine on a busy machine is slower than a kernel.
    #[must_use]
    pub fn patience(seconds: u64) -> Duration {
        Duration::from_secs(if Self::isolated().is_engine() { seconds * 6 } else { seconds })
    }

    /// Whether our own init makes the root from an image.
    #[must_use]
    pub fn has_own_image(self) -> bool {
        matches!(self, Self::Container | Self::ContainerVeth)
    }

    /// Whether a link leads to the sidecar.
    #[must_use]
    pub fn has_link(self) -> bool {
        matches!(self, Self::Veth | Self::ContainerVeth)
    }

    /// Whether an engine makes the containers.
    #[must_use]
    pub fn is_engine(self) -> bool {
        matches!(self, Self::Docker | Self::Podman)
    }

    /// Returns that backend and, in the program of `linux`, the one without isolation.
    #[must_use]
    pub fn all() -> Vec<Self> {
        match Self::isolated() {
            Self::Linux => vec![Self::Linux, Self::Process],
            other => vec![other],
        }
    }

    /// The backend's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Linux | Self::Veth => "linux",
            Self::Container | Self::ContainerVeth => "container",
            Self::Docker | Self::Podman => "docker",
            Self::Process => "process",
        }
    }

    /// The name of the program that tests this backend.
    fn program(self) -> &'static str {
        match self {
            Self::Veth => "veth",
            Self::ContainerVeth => "container_veth",
            Self::Podman => "podman",
            other => other.name(),
        }
    }
}

/// The directory of one test.
#[derive(Debug)]
pub struct Bench {
    root: TempDir,
}

impl Drop for Bench {
    /// The kernel keeps an overlay's work directory unreadable, and an unreadable directory cannot be removed.
    fn drop(&mut self) {
        let kept = fs::read_dir(self.state().join("lockgate/changes")).into_iter().flatten().flatten();
        for run in kept {
            let _ = fs::set_permissions(run.path().join("work/work"), fs::Permissions::from_mode(0o700));
        }
    }
}

impl Bench {
    /// Makes the directory, not under `/tmp`: the sandbox has its own there.
    ///
    /// # Panics
    /// When the directory cannot be made, or the probe is not built.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "making directories is not a default value")]
    pub fn new() -> Self {
        let root =
            tempfile::Builder::new().prefix("lockgate-bench-").tempdir_in("/var/tmp").expect("a directory");
        let bench = Self { root };
        for directory in [bench.root.path(), &bench.workspace(), &bench.outside(), &bench.state()] {
            fs::create_dir_all(directory).expect("a directory of the bench");
            fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("its mode");
        }
        let probe = program("probe").expect("`ready` was asked first");
        copy_program(&probe, &bench.workspace().join("probe"));
        bench
    }

    /// The workspace of the run.
    #[must_use]
    pub fn workspace(&self) -> PathBuf {
        self.root.path().join("workspace")
    }

    /// A directory of the host that no run is given.
    #[must_use]
    pub fn outside(&self) -> PathBuf {
        self.root.path().join("outside")
    }

    /// The `XDG_STATE_HOME` of every run on this bench.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.root.path().join("state")
    }

    /// The environment that every call of `lockgate` on this bench has.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        let mut environment = vec![("XDG_STATE_HOME", self.state())];
        match Backend::isolated() {
            Backend::Container | Backend::ContainerVeth => {
                environment.push(("XDG_DATA_HOME", image::store().expect("`ready` was asked first")));
            }
            Backend::Docker | Backend::Podman => {
                hand_over(&self.workspace());
                environment.push(("DOCKER_HOST", engine::shared().into()));
            }
            Backend::Linux | Backend::Veth | Backend::Process => {}
        }
        environment
    }

    /// The path of the probe, the same inside and outside.
    #[must_use]
    pub fn probe(&self) -> PathBuf {
        self.workspace().join("probe")
    }

    /// Writes a file that every user may read, and returns its path.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn file(&self, path: impl AsRef<Path>, text: &str) -> PathBuf {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().expect("a path beneath the bench")).expect("its directory");
        fs::write(&path, text).expect("a file of the bench");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("its mode");
        path
    }

    /// Prepares the workspace by a line of shell outside any sandbox, to its end or its first error.
    ///
    /// # Panics
    /// When the line fails.
    pub fn prepare(&self, line: &str) {
        let ended = run(Command::new("sh").args(["-ec", line]).current_dir(self.workspace()));
        assert!(ended.code == 0, "{line}: {ended}");
    }

    /// The positive control: runs the probe outside any sandbox.
    #[must_use]
    pub fn control(&self, arguments: &[&str]) -> Seen {
        Seen::only(&run(Command::new(self.probe()).args(arguments).current_dir(self.workspace())))
    }

    /// Checks that each attempt succeeds outside any sandbox.
    ///
    /// # Panics
    /// When an attempt fails; the message names it.
    pub fn controls(&self, attempts: &[&[&str]]) {
        for attempt in attempts {
            let seen = self.control(attempt);
            assert!(seen.done(), "the control {attempt:?} did not work: {seen}");
        }
    }

    /// The positive control for harmful attempts: every capability, in separate namespaces, and pings (icmp(7), ping_group_range).
    #[must_use]
    pub fn control_apart(&self, arguments: &[&str]) -> Seen {
        let mut command = Command::new("unshare");
        command.args([
            "--user",
            "--map-root-user",
            "--mount",
            "--net",
            "--uts",
            "--pid",
            "--fork",
            "--mount-proc",
        ]);
        let line = "echo '0 0' > /proc/sys/net/ipv4/ping_group_range && exec \"$0\" \"$@\"";
        command.args(["--kill-child", "/bin/sh", "-c", line]).arg(self.probe()).args(arguments);
        Seen::only(&run(command.current_dir(self.workspace())))
    }

    /// Returns a run on this bench, to be configured.
    #[must_use]
    pub fn run(&self, backend: Backend) -> Run {
        Run::new(self, backend)
    }

    /// Returns `lockgate ARGUMENTS…` with this bench's state directory.
    #[must_use]
    pub fn lockgate(&self, arguments: &[&str]) -> Ended {
        let mut command = Command::new(program("lockgate").expect("`ready` was asked first"));
        command.args(arguments).env("XDG_STATE_HOME", self.state()).current_dir(self.workspace());
        run(command.env("DOCKER_HOST", engine::started()))
    }

    /// Returns the records of `lockgate … --json`, one per line.
    ///
    /// # Panics
    /// When the command fails or a line is not JSON.
    #[must_use]
    pub fn records(&self, arguments: &[&str]) -> Vec<serde_json::Value> {
        let ended = self.lockgate(arguments);
        assert!(ended.code == 0, "lockgate {arguments:?}: {ended}");
        ended.stdout.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// Returns the audit records of every recorded run, after each chain is verified.
    ///
    /// # Panics
    /// When a run cannot be listed, or its chain does not verify.
    #[must_use]
    pub fn every_audit_record(&self) -> Vec<serde_json::Value> {
        let runs = self.lockgate(&["runs", "ls", "-q"]).stdout;
        let mut records = Vec::new();
        for run in runs.lines() {
            let verified = self.lockgate(&["audit", "verify", run]);
            assert!(verified.code == 0, "{run}: {verified}");
            records.extend(self.records(&["audit", "show", run, "--json"]));
        }
        records
    }
}

/// Gives a workspace to the user inside: containers of an engine use the machine's own ids, and a run of root's runs there as the first
/// ordinary user.
pub(crate) fn hand_over(workspace: &Path) {
    if !is_root() {
        return;
    }
    let all = files_under(workspace).into_iter().map(|path| workspace.join(path));
    for path in all.chain([workspace.to_owned()]) {
        // Files that user already owns keep their change time: tests tell by it what changed during a run.
        let is_theirs = fs::symlink_metadata(&path).is_ok_and(|it| (it.uid(), it.gid()) == (USER, USER));
        if !is_theirs {
            // A file that has disappeared meanwhile needs no owner.
            let _ = lchown(path, Some(USER), Some(USER));
        }
    }
}
