//! Runs a server beside the bench: starts it under a deadline, waits until it answers, and ends it on drop.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::processes;
use crate::bounded::Bounded;

/// The longest life of a server, in seconds, whatever happens to the bench.
const LIFETIME: &str = "900";
/// How long a server may take to answer, and to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running server.
pub(crate) struct Server {
    name: String,
    child: Child,
}

impl Server {
    /// Starts a server that ends by itself at its deadline.
    pub(crate) fn start(name: &str, program: &Path, args: &[String], within: &Path) -> Result<Self> {
        let mut command = Command::new("timeout");
        command.arg("--kill-after=5").arg(LIFETIME).arg(program).args(args).current_dir(within);
        command.env("XDG_STATE_HOME", within.join("server-state")).env_remove("RUST_BACKTRACE");
        let log = std::fs::File::create(within.join(format!("{name}.log")))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("failed to start {name}"))?;
        Ok(Self { name: name.to_owned(), child })
    }

    /// Waits until its TCP port accepts.
    pub(crate) fn await_port(mut self, address: SocketAddr, within: &Path) -> Result<Self> {
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            if self.child.try_wait()?.is_some() || Instant::now() > deadline {
                let log =
                    std::fs::read_to_string(within.join(format!("{}.log", self.name))).unwrap_or_default();
                bail!("{} does not listen at {address}: {}", self.name, log.trim());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(self)
    }

    /// Returns its processes: all below the `timeout` that starts it.
    pub(crate) fn processes(&self) -> Vec<u32> {
        processes::tree(self.child.id()).split_off(1)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // `timeout` passes the signal on.
        let _ = Bounded::new("kill", &["-TERM", &self.child.id().to_string()], PATIENCE).run();
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a loopback port that nobody uses, for TCP and UDP. Another process could take it before its use; then the server fails
/// and the bench ends.
pub(crate) fn free_port() -> Result<SocketAddr> {
    for _ in 0..100 {
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        if UdpSocket::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("found no free port")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ends_at_once_is_told_with_its_words() {
        let folder = tempfile::tempdir().unwrap();
        let args = ["-c", "echo no such luck >&2"].map(str::to_owned);
        let server = Server::start("sh", Path::new("/bin/sh"), &args, folder.path()).unwrap();
        let error = server.await_port(free_port().unwrap(), folder.path()).err().unwrap().to_string();
        assert!(error.ends_with("no such luck"), "{error}");
    }
}
