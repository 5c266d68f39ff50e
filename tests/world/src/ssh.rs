//! An SSH server: the distribution's own, in the foreground, with keys made for this world. It serves the web server's repository and
//! greets everybody else. It must need no privilege and read no account or key of the machine.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::mount::{MountFlags, mount};
use rustix::process::{getegid, geteuid};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{ChildStderr, Command};
use tokio::time::timeout;

use crate::addresses::{SSH, WEB4};
use crate::error::Error;
use crate::git::Repository;
use crate::mounts::cover;
use crate::recorder::Recorder;
use crate::tools;

const DAEMON: &str = "/usr/sbin/sshd";
/// The time limit for the daemon to listen; after it the daemon counts as absent.
const PATIENCE: Duration = Duration::from_secs(5);

/// A server that is ready to start.
pub(crate) struct Server {
    configuration: PathBuf,
}

impl Server {
    /// Makes keys, the account `git` and the configuration; the caller is in a mount namespace that only servers see.
    /// Nothing is made if the daemon or its key tool is missing.
    pub(crate) fn prepare(
        directory: &Path,
        ca_directory: &Path,
        repository: Option<&Repository>,
    ) -> Result<Option<Self>, Error> {
        let Some(keygen) = tools::find("ssh-keygen").filter(|_| Path::new(DAEMON).is_file()) else {
            return Ok(None);
        };
        let folder = directory.join("ssh");
        fs::create_dir(&folder).map_err(Error::file(&folder))?;
        let host_key = folder.join("host_key");
        let client_key = ca_directory.join("ssh_key");
        for key in [&host_key, &client_key] {
            make_key(&keygen, key)?;
        }
        let public = |key: &Path| {
            let path = key.with_extension("pub");
            fs::read_to_string(&path).map_err(Error::file(path))
        };
        write(&ca_directory.join("known_hosts"), &known_hosts(&public(&host_key)?))?;
        write(&folder.join("authorized_keys"), &public(&client_key)?)?;
        let session = folder.join("session");
        write(&session, &session_script(repository))?;
        fs::set_permissions(&session, fs::Permissions::from_mode(0o755)).map_err(Error::file(&session))?;
        account(&folder)?;
        let configuration = folder.join("sshd_config");
        write(&configuration, &configuration_of(&folder))?;
        Ok(Some(Self { configuration }))
    }

    /// Starts the daemon and returns when it listens; from then on its log goes into the records.
    pub(crate) async fn start(self, recorder: Recorder) -> Result<(), Error> {
        let failed = |message: String| Error::Tool { program: "sshd", message };
        let mut child = Command::new(DAEMON)
            .args(["-D", "-e", "-f"])
            .arg(&self.configuration)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let Some(stderr) = child.stderr.take() else { return Err(failed("it has no log".to_owned())) };
        let mut lines = BufReader::new(stderr).lines();
        let mut said = String::new();
        let listening = timeout(PATIENCE, async {
            let mut sockets = 0;
            while let Ok(Some(line)) = lines.next_line().await {
                sockets += usize::from(line.contains("Server listening on"));
                said.push_str(&line);
                said.push('\n');
                if sockets == 2 {
                    return true;
                }
            }
            false
        });
        if !matches!(listening.await, Ok(true)) {
            return Err(failed(said));
        }
        tokio::spawn(async move {
            follow(lines, &recorder).await;
            // The daemon is a child of this task as long as it logs.
            let _ = child.wait().await;
        });
        Ok(())
    }
}

/// Converts the daemon's log into records: who connected, and who was admitted.
async fn follow(mut lines: Lines<BufReader<ChildStderr>>, recorder: &Recorder) {
    while let Ok(Some(line)) = lines.next_line().await {
        let words: Vec<&str> = line.split_whitespace().collect();
        let event = match words.as_slice() {
            ["Connection", "from", ..] => "connect",
            ["Accepted", ..] => "login",
            ["Starting", "session:", ..] => "session",
            _ => continue,
        };
        let after = |word: &str| {
            let mut rest = words.iter().skip_while(|candidate| **candidate != word).skip(1);
            match (rest.next(), rest.next(), rest.next()) {
                (Some(address), Some(&"port"), Some(port)) => format!("{address}:{port}"),
                _ => String::new(),
            }
        };
        recorder.write("ssh", event, after("from"), after("on"), json!({ "log": line }));
    }
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(Error::file(path))
}

fn make_key(keygen: &Path, path: &Path) -> Result<(), Error> {
    if path.exists() {
        // Several worlds in turn may use a folder of keys.
        return Ok(());
    }
    let name = path.display().to_string();
    tools::output("ssh-keygen", keygen, ["-q", "-t", "ed25519", "-N", "", "-C", "world", "-f", &name])
        .map(drop)
}

fn known_hosts(public: &str) -> String {
    let key = public.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    format!("ssh.example.org,git.example.org,github.com,{SSH},{WEB4} {key}\n")
}

/// Returns the script of every login: git with the one repository, or a greeting.
fn session_script(repository: Option<&Repository>) -> String {
    let mut script = String::from("#!/bin/sh\ncase \"$SSH_ORIGINAL_COMMAND\" in\n");
    if let Some(Repository { git, path, .. }) = repository {
        let (git, path) = (git.display(), path.display());
        for verb in ["upload-pack", "receive-pack"] {
            script += &format!(
                "\"git-{verb} '/repo.git'\" | \"git-{verb} 'repo.git'\") exec '{git}' {verb} '{path}' ;;\n"
            );
        }
    }
    script + "*) echo 'hello from ssh.example.org' ;;\nesac\n"
}

/// Writes the account database that the daemon reads. It contains `git`, with the id of the user who runs the world.
fn account(folder: &Path) -> Result<(), Error> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let machine = Path::new("/etc/passwd");
    let others = fs::read_to_string(machine).map_err(Error::file(machine))?;
    let ours = folder.join("passwd");
    write(&ours, &format!("git:*:{user}:{group}:World:{}:/bin/sh\n{others}", folder.display()))?;
    cover("the account of the SSH server", machine, &ours)?;
    if user == 0 {
        // As root the daemon requires an empty folder for its unprivileged process (sshd(8), FILES).
        let run = Path::new("/run");
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", run, "tmpfs", flags, None).map_err(|source| Error::Mount {
            what: "a folder for the SSH server",
            target: run.into(),
            source: source.into(),
        })?;
        let empty = run.join("sshd");
        fs::create_dir(&empty).map_err(Error::file(&empty))?;
        fs::set_permissions(&empty, fs::Permissions::from_mode(0o755)).map_err(Error::file(&empty))?;
    }
    Ok(())
}

fn configuration_of(folder: &Path) -> String {
    let [first, second] = [SSH, WEB4].map(|address| SocketAddr::from((address, 22)));
    let folder = folder.display();
    format!(
        "ListenAddress {first}\nListenAddress {second}\nHostKey {folder}/host_key\nPidFile none\nUsePAM no\nStrictModes no\n\
         LogLevel VERBOSE\nUseDNS no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n\
         AuthorizedKeysFile {folder}/authorized_keys\nForceCommand {folder}/session\nPermitUserEnvironment no\n"
    )
}
