//! A separate network for runs that make links, which would otherwise be made in the machine's own network. It has loopback and one more
//! address, which stands for the machine's address on its LAN, and it ends with this process.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::bench::Bench;
use crate::program::{Ended, run};
use crate::seen::Seen;

/// Lets every user send ICMP echoes, prints that it is ready, and stays until its standard input is closed.
const STAY: &str = "ip link set lo up && ip link add lan type veth peer name wire && ip link set wire up && \
                    ip link set lan up && ip addr add 192.0.2.7/24 dev lan && \
                    echo '0 2147483647' > /proc/sys/net/ipv4/ping_group_range && echo up && exec cat > /dev/null";

/// The network, held by the process in it.
#[derive(Debug)]
pub struct Network(Child);

impl Network {
    /// The machine's address on the LAN.
    pub const ADDRESS: &'static str = "192.0.2.7";

    /// Returns the network of this program.
    ///
    /// # Panics
    /// When it cannot be made, as without root; `ready` tells beforehand.
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Network> = OnceLock::new();
        SHARED.get_or_init(|| {
            let mut command = Command::new("unshare");
            command.args(["--net", "/bin/sh", "-c", STAY]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().expect("`unshare` of util-linux");
            let mut said = String::new();
            let output = child.stdout.take().expect("its output");
            BufReader::new(output).read_line(&mut said).expect("its first line");
            assert!(said == "up\n", "no network of one's own could be made: {said}");
            Self(child)
        })
    }

    /// Returns the prefix of a command in this network.
    #[must_use]
    pub fn enter(&self) -> Vec<OsString> {
        let network = format!("--net=/proc/{}/ns/net", self.0.id());
        ["nsenter", &network, "--"].map(OsString::from).into()
    }

    /// Returns a command in this network, not yet started.
    #[must_use]
    pub fn command<T: AsRef<std::ffi::OsStr>>(&self, words: impl IntoIterator<Item = T>) -> Command {
        let enter = self.enter();
        let mut command = Command::new(&enter[0]);
        command.args(&enter[1..]).args(words);
        command
    }

    /// Runs a command in this network and returns its output.
    #[must_use]
    pub fn ask(&self, words: &[&str]) -> Ended {
        run(&mut self.command(words))
    }

    /// Runs the probe in this network, outside any sandbox.
    #[must_use]
    pub fn probe(&self, bench: &Bench, arguments: &[&str]) -> Seen {
        let words =
            std::iter::once(bench.probe().into_os_string()).chain(arguments.iter().map(OsString::from));
        Seen::only(&run(&mut self.command(words)))
    }

    /// Returns the names of links and packet filters in this network that contain `word`.
    #[must_use]
    pub fn made(&self, word: &str) -> Vec<String> {
        let listed = [self.ask(&["ip", "-o", "link"]), self.ask(&["nft", "list", "tables"])];
        let lines = listed.iter().flat_map(|list| list.stdout.lines());
        lines.filter(|line| line.contains(word)).map(str::to_owned).collect()
    }

    /// Returns the address of the host's end of a run's link.
    #[must_use]
    pub fn end_of(&self, run: &str) -> Option<std::net::Ipv4Addr> {
        let listed = self.ask(&["ip", "-o", "-4", "addr", "show", "dev", &format!("vh-{run}")]).stdout;
        listed.split_whitespace().skip_while(|word| *word != "inet").nth(1)?.split('/').next()?.parse().ok()
    }
}
