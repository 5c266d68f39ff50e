//! Runs a docker daemon of the bench's own, in a folder of the bench's and in namespaces that take its networks and mounts with
//! them. It touches neither the machine's daemon, if there is one, nor its network, and fetches no image.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::images::SMALL;
use super::person::{Person, owned, shown};
use super::server::Server;
use super::subject::COMMAND;
use super::{Bench, machine};

/// How long a daemon may take to answer.
const READY: Duration = Duration::from_secs(30);
const SOCKET: &str = "docker.sock";
/// How often the containers are removed at the end, at most, and the pause for a process that is just making one.
const REMOVALS: usize = 5;
const REMOVAL: Duration = Duration::from_secs(1);

/// How docker's containers reach others: arguments of the daemon, and of each start.
pub(crate) struct Network {
    daemon: &'static [&'static str],
    pub(crate) run: &'static [&'static str],
}

const BRIDGE: Network = Network { daemon: &[], run: &["run", "--rm"] };
/// Without a bridge, for a machine on which the default fails.
const ALONE: Network =
    Network { daemon: &["--bridge=none", "--iptables=false"], run: &["run", "--rm", "--network", "none"] };

/// A docker daemon of the bench's own, with the small image. It runs in its own network and mount namespaces, so its bridge, rules
/// and mounts end with it.
pub(crate) struct Engine<'a> {
    pub(crate) person: &'a Person,
    pub(crate) docker: PathBuf,
    folder: PathBuf,
    pub(crate) network: Network,
    /// Its control group, which it leaves behind.
    group: String,
    /// `None` only during the drop.
    server: Option<Server>,
}

impl<'a> Engine<'a> {
    pub(crate) fn start(bench: &Bench, person: &'a Person, archive: &Path, name: &str) -> Result<Self> {
        ensure!(person.name == "root", "only root can start a daemon");
        let daemon = machine::find("dockerd").context("dockerd is not installed")?;
        let docker = machine::find("docker").context("docker is not installed")?;
        let attempt = |name: &str, network| {
            let folder = bench.folder.join(name);
            Self::attempt(folder, person, archive, [&daemon, &docker], network)
        };
        attempt(name, BRIDGE).or_else(|_| attempt(&format!("{name}-alone"), ALONE))
    }

    fn attempt(
        folder: PathBuf,
        person: &'a Person,
        archive: &Path,
        [daemon, docker]: [&Path; 2],
        network: Network,
    ) -> Result<Self> {
        fs::create_dir(&folder).context("failed to make docker's folder")?;
        let group = format!("lockgate-bench-{}", std::process::id());
        let mut args = owned(&["--net", "--mount", "--", shown(daemon)?]);
        let own =
            [("host=unix://", SOCKET), ("data-root=", "data"), ("exec-root=", "exec"), ("pidfile=", "pid")];
        args.extend(own.map(|(option, name)| format!("--{option}{}", folder.join(name).display())));
        args.push(format!("--cgroup-parent=/{group}"));
        args.extend(owned(network.daemon));
        let server = Some(Server::start("dockerd", Path::new("unshare"), &args, &folder)?);
        let engine = Self { person, docker: docker.to_owned(), folder, network, group, server };
        let deadline = Instant::now() + READY;
        while let Err(error) = engine.ask(&["version"]) {
            if Instant::now() > deadline {
                let log = fs::read_to_string(engine.folder.join("dockerd.log")).unwrap_or_default();
                return Err(error.context(log.lines().last().unwrap_or_default().to_owned()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        engine.ask(&["import", shown(archive)?, SMALL])?;
        engine.ask(&[engine.network.run, &[SMALL, COMMAND]].concat())?;
        Ok(engine)
    }

    /// Returns the daemon's address, in the form of `DOCKER_HOST`.
    pub(crate) fn host(&self) -> String {
        format!("unix://{}", self.folder.join(SOCKET).display())
    }

    /// Returns docker's arguments to run a command at this daemon.
    pub(crate) fn client(&self, args: &[&str]) -> Vec<String> {
        [format!("--host={}", self.host())].into_iter().chain(owned(args)).collect()
    }

    /// Returns the output of a docker command that is not measured.
    pub(crate) fn ask(&self, args: &[&str]) -> Result<String> {
        self.person.told(&self.docker, &self.client(args))
    }

    /// Whether a container can be on several networks.
    pub(crate) fn has_bridge(&self) -> bool {
        self.network.daemon.is_empty()
    }

    pub(crate) fn version(&self) -> Result<String> {
        Ok(self.ask(&["version", "--format", "{{.Server.Version}}"])?.trim().to_owned())
    }

    pub(crate) fn about(&self) -> String {
        let (version, run) = (self.version().unwrap_or_default(), self.network.run.join(" "));
        format!(
            "docker is {version} with a daemon of the bench's own, in a network namespace of its own, and starts by \
             `docker {run}`; it takes images in by `docker import`."
        )
    }
}

impl Drop for Engine<'_> {
    fn drop(&mut self) {
        // Containers outlive the daemon; a sidecar in the pool would end only after minutes.
        for _ in 0..REMOVALS {
            let left = self.ask(&["ps", "--all", "--quiet"]).unwrap_or_default();
            if left.trim().is_empty() {
                break;
            }
            let _ =
                self.ask(&[&["rm", "--force"][..], &left.split_whitespace().collect::<Vec<_>>()].concat());
            // A process behind the last run may just be making one.
            std::thread::sleep(REMOVAL);
        }
        self.server = None;
        // In version 2, and in each hierarchy of version 1.
        let _ = fs::remove_dir(Path::new("/sys/fs/cgroup").join(&self.group));
        for hierarchy in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            let _ = fs::remove_dir(hierarchy.path().join(&self.group));
        }
    }
}
