//! Checks whether a companion is healthy: its own command succeeds, or every declared port accepts a connection. At an engine a command
//! of this program's checks the ports, inside.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use image::HealthCheck;
use policy::{Companion, IpFamily, Port};
use rustix::event::{PollFd, PollFlags, Timespec};
use sandbox::{HealthLine, Probed, SocketBroker};

/// The pause between two checks.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// How long the health command may take.
const LONGEST_PROBE: Duration = Duration::from_secs(10);
/// The longest pause that an image's own health check gets: its interval is meant for a service that already runs, and this one is
/// waited for.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long a connection may take.
const CONNECT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The health of a companion.
pub(super) struct Health {
    ports: Vec<Port>,
    /// The line on which its health command is asked for; `None` if the ports are checked from here.
    line: Option<HealthLine>,
    /// The reason it is not healthy when its command fails.
    refused: String,
    /// When the running health command was started.
    asked: Option<Instant>,
    next: Instant,
    well: bool,
    why: String,
    /// The pause between two checks, and how long the health command may take.
    pause: Duration,
    longest: Duration,
}

const NOT_BEGUN: &str =
    "its health command cannot be executed: the image has no such program, or it is not executable";

impl Health {
    /// Starts checking: by a command if there is a line for it, else by the ports. `image` is the image's own health check, if that
    /// counts; its times are clamped.
    pub(super) fn of(companion: &Companion, image: Option<&HealthCheck>, line: Option<HealthLine>) -> Self {
        let within = |said: u64, least, most, unsaid| match said {
            0 => unsaid,
            said => Duration::from_millis(said).clamp(least, most),
        };
        let why = "nothing has been heard of it yet".into();
        let refused = match (&companion.probe, companion.ports.as_slice()) {
            (Some(_), _) => "its health command does not exit with 0".into(),
            (None, [port]) => format!("port {port} accepts no connection"),
            (None, ports) => {
                let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
                format!("one of the ports {} accepts no connection", ports.join(", "))
            }
        };
        Self {
            ports: companion.ports.clone(),
            line,
            refused,
            asked: None,
            next: Instant::now(),
            well: false,
            why,
            pause: image.map_or(PAUSE, |it| within(it.interval, PAUSE, LONGEST_PAUSE, PAUSE)),
            longest: image
                .map_or(LONGEST_PROBE, |it| within(it.timeout, PAUSE, LONGEST_PROBE, LONGEST_PROBE)),
        }
    }

    pub(super) fn is_well(&self) -> bool {
        self.well
    }

    /// Why it is not healthy.
    pub(super) fn why(&self) -> &str {
        &self.why
    }

    /// Checks, if it is time to.
    pub(super) fn look(&mut self, broker: &SocketBroker) {
        if self.well || Instant::now() < self.next {
            return;
        }
        if self.line.is_some() {
            self.look_by_command();
        } else {
            self.look_at_ports(broker);
        }
        self.next = Instant::now() + if self.asked.is_some() { PAUSE } else { self.pause };
    }

    fn look_by_command(&mut self) {
        let Some(line) = &self.line else { return };
        let Some(asked) = self.asked else {
            self.asked = line.begin_probe().ok().map(|()| Instant::now());
            return;
        };
        if super::wait::readable(line.as_fd()) {
            self.asked = None;
            match line.probed() {
                Ok(Probed::Well) => self.well = true,
                Ok(Probed::NotBegun) => self.why = NOT_BEGUN.into(),
                _ => self.why.clone_from(&self.refused),
            }
        } else if asked.elapsed() > self.longest {
            self.why = format!("its health command took longer than {:?}", self.longest);
            // Its end arrives as an answer, and is taken as any other.
            let _ = line.end_probe();
        }
    }

    fn look_at_ports(&mut self, broker: &SocketBroker) {
        while let Some(port) = self.ports.last() {
            if !accepts(broker, *port) {
                self.why = format!("port {port} accepts no connection");
                return;
            }
            self.ports.pop();
        }
        self.well = true;
    }
}

/// Whether something listens at a port inside, on loopback or on every address.
fn accepts(broker: &SocketBroker, port: Port) -> bool {
    let own = [
        (IpFamily::V4, SocketAddr::from((Ipv4Addr::LOCALHOST, port.number()))),
        (IpFamily::V6, SocketAddr::from((Ipv6Addr::LOCALHOST, port.number()))),
    ];
    own.into_iter()
        .any(|(family, address)| broker.socket(family).is_ok_and(|socket| connects(&socket, address)))
}

fn connects(socket: &OwnedFd, address: SocketAddr) -> bool {
    let other = || rustix::net::getpeername(socket).ok()?.map(SocketAddr::try_from)?.ok();
    let own = || SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok();
    // If nobody listens, a socket whose own port is the same one connects to itself.
    is_connected(socket, address) && own().zip(other()).is_some_and(|(own, other)| own != other)
}

fn is_connected(socket: &OwnedFd, address: SocketAddr) -> bool {
    match rustix::net::connect(socket, &address) {
        Ok(()) => true,
        Err(rustix::io::Errno::INPROGRESS) => {
            let mut ready = [PollFd::new(socket, PollFlags::OUT)];
            let done = rustix::event::poll(&mut ready, Some(&CONNECT)).is_ok_and(|n| n > 0);
            done && matches!(rustix::net::sockopt::socket_error(socket), Ok(Ok(())))
        }
        Err(_) => false,
    }
}
