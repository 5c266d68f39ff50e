//! A docker daemon of the bench's own, in a folder of the bench's and in namespaces whose end is the end of what it made
//! there. It touches neither the machine's daemon, if there is one, nor its network, and fetches no image.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::images::SMALL;
use super::person::{Person, owned, shown};
use super::server::Server;
use super::subject::COMMAND;
use super::{Bench, machine};

/// How long a daemon may take until it answers.
const READY: Duration = Duration::from_secs(30);
const SOCKET: &str = "docker.sock";
/// How often its containers are taken away at its end, at most, and what is left to whoever makes one meanwhile.
const REMOVALS: usize = 5;
const REMOVAL: Duration = Duration::from_secs(1);

/// How docker's containers reach others: what the daemon is told, and each start.
pub(crate) struct Network {
    daemon: &'static [&'static str],
    pub(crate) run: &'static [&'static str],
}

const BRIDGE: Network = Network { daemon: &[], run: &["run", "--rm"] };
/// For a machine on which the default fails.
const ALONE: Network =
    Network { daemon: &["--bridge=none", "--iptables=false"], run: &["run", "--rm", "--network", "none"] };

/// A docker daemon of the bench's own, with the small image in it. It is in network and mount namespaces of its own, so that
/// its bridge, its rules and its mounts end with it.
pub(crate) struct Engine<'a> {
    pub(crate) person: &'a Person,
    pub(crate) docker: PathBuf,
    folder: PathBuf,
    pub(crate) network: Network,
    /// Its control groups, which it leaves behind.
    group: String,
    /// There until the end.
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

    /// Where it answers, as `DOCKER_HOST` has it.
    pub(crate) fn host(&self) -> String {
        format!("unix://{}", self.folder.join(SOCKET).display())
    }

    /// What docker is given to reach this daemon, and to do something.
    pub(crate) fn client(&self, args: &[&str]) -> Vec<String> {
        [format!("--host={}", self.host())].into_iter().chain(owned(args)).collect()
    }

    /// What docker says, asked for something that is not measured.
    pub(crate) fn ask(&self, args: &[&str]) -> Result<String> {
        self.person.told(&self.docker, &self.client(args))
    }

    /// Whether its containers can be on several networks.
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
        // What runs in its containers does not end with it: a sidecar that waits for a run would, after minutes.
        for _ in 0..REMOVALS {
            let left = self.ask(&["ps", "--all", "--quiet"]).unwrap_or_default();
            if left.trim().is_empty() {
                break;
            }
            let _ =
                self.ask(&[&["rm", "--force"][..], &left.split_whitespace().collect::<Vec<_>>()].concat());
            // Somebody may be making one at this moment, behind the last run.
            std::thread::sleep(REMOVAL);
        }
        self.server = None;
        // Of version 2, and of each hierarchy of version 1.
        let _ = fs::remove_dir(Path::new("/sys/fs/cgroup").join(&self.group));
        for hierarchy in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            let _ = fs::remove_dir(hierarchy.path().join(&self.group));
        }
    }
}
