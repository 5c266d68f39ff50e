//! The daemon, `dockerd` or Podman's service: its arguments that keep it to its folder, whether it answers, and its orderly end. Its log is
//! a file beside its data, whose last lines are the reason when it does not start.

use std::ffi::OsString;
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::archives;
use crate::error::Error;
use crate::folder::Folder;
use crate::options::{Account, Kind, Network};
use crate::podman;
use crate::rootless;
use crate::stored::Stored;

/// The time limit from its start to its first answer.
const READY: Duration = Duration::from_secs(30);
/// The folders of the programs that dockerd starts (`containerd`, `iptables`), which an account's own PATH may lack.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The number of log lines in a message.
const LINES: usize = 3;

/// A daemon that was started.
pub(crate) struct Daemon<'a> {
    folder: &'a Folder,
    child: Child,
    deadline: Instant,
}

impl<'a> Daemon<'a> {
    pub(crate) fn start(
        folder: &'a Folder,
        kind: Kind,
        network: Network,
        stored: Option<&Stored>,
    ) -> Result<Self, Error> {
        if network == Network::Own {
            let up = Command::new("ip").env("PATH", PATH).args(["link", "set", "lo", "up"]).status();
            if !up.is_ok_and(|status| status.success()) {
                let message = "the loopback device stays down".to_owned();
                return Err(Error::Tool { program: "ip", package: "iproute2", message });
            }
        }
        let log = folder.at("log");
        let log = File::create(&log).map_err(Error::file(log))?;
        let copy = log.try_clone().map_err(Error::file(folder.at("log")))?;
        let (mut command, program, package) = match kind {
            Kind::Docker => (dockerd(folder)?, "dockerd", "docker.io"),
            Kind::DockerOf(account) => (dockerd_of(folder, account)?, "rootlesskit", "rootlesskit"),
            Kind::Podman => {
                let images = stored.map(Stored::images);
                (podman::service(folder, images.as_deref())?, "podman", "podman")
            }
            Kind::PodmanOf(account) => (podman::service_of(folder, account)?, "setpriv", "util-linux"),
        };
        command.stdin(Stdio::null()).stdout(log).stderr(copy);
        let child =
            command.spawn().map_err(|error| Error::Tool { program, package, message: error.to_string() })?;
        Ok(Self { folder, child, deadline: Instant::now() + READY })
    }

    /// Whether it answers yet.
    pub(crate) fn answers(&mut self) -> Result<bool, Error> {
        let ended = !matches!(self.child.try_wait(), Ok(None));
        if ended || Instant::now() > self.deadline {
            let log = fs::read_to_string(self.folder.at("log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let message = lines[lines.len().saturating_sub(LINES)..].join("\n");
            return Err(Error::Daemon { message });
        }
        Ok(self.folder.socket().exists() && archives::answers(&self.folder.socket()))
    }

    /// Asks it to end, and waits for that.
    pub(crate) fn end(&mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        if let Some(id) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(id, Signal::TERM);
        }
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn dockerd(folder: &Folder) -> Result<Command, Error> {
    let mut command = Command::new("dockerd");
    command.env_clear().env("PATH", PATH).args(arguments(folder)?);
    // Cgroup names of the systemd driver would have another form.
    let group = format!("--cgroup-parent=/{}", folder.group());
    command.args([&group, "--exec-opt=native.cgroupdriver=cgroupfs"]);
    Ok(command)
}

/// Returns the rootless daemon, started as by `dockerd-rootless.sh`: in namespaces of its own, with a program that leads out of its
/// network.
fn dockerd_of(folder: &Folder, account: Account) -> Result<Command, Error> {
    let state = format!("--state-dir={}", folder.at("rootlesskit").display());
    let mut command = rootless::as_account(account, "rootlesskit");
    command.env_clear().env("PATH", PATH);
    rootless::give(&mut command, folder, account)?;
    command.args([&state, "--net=slirp4netns", "--mtu=65520", "--disable-host-loopback"]);
    command.args(["--port-driver=builtin", "--copy-up=/etc", "--copy-up=/run", "--propagation=rslave"]);
    // The copy consists of links to the machine's folders, in which nothing may be made.
    let start = "rm -f /run/docker /run/containerd /run/xtables.lock; exec dockerd \"$@\"";
    command.args(["sh", "-c", start, "sh"]);
    command.args(arguments(folder)?);
    Ok(command)
}

/// Returns its arguments, and writes a file that keeps it from the machine's configuration.
fn arguments(folder: &Folder) -> Result<Vec<OsString>, Error> {
    let configuration = folder.at("daemon.json");
    fs::write(&configuration, "{}").map_err(Error::file(&configuration))?;
    let of_folder = [
        ("data-root", folder.data()),
        ("exec-root", folder.state()),
        ("pidfile", folder.at("pid")),
        ("config-file", folder.at("daemon.json")),
    ];
    let of_folder = of_folder.map(|(option, path)| format!("--{option}={}", path.display()));
    let others = [format!("--host={}", folder.host()), "--storage-driver=overlay2".to_owned()];
    Ok(of_folder.into_iter().chain(others).map(OsString::from).collect())
}
