//! The first process of a sidecar's container. It waits for the bootstrap message (perhaps in a pool), wires the network of the run,
//! starts the sidecar as in any run, and carries between the sidecar and the line. It is trusted, and has given up everything but its
//! descriptors before the sidecar reads the first octet of the agent's.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use egress::NameRange;
use policy::RunSpec;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::MemfdFlags;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use sandbox::{Channel, Frames, Identity, frame, wait_for};
use zeroize::Zeroizing;

use super::bootstrap::{Bootstrap, BootstrapError, ParsedBootstrap};
use super::stand_in::send_all;
use super::{CHUNK, HEARTBEAT, PATIENCE};
use crate::error::{Error, plumbing};
use crate::inbound;
use crate::platform::PlatformLink;
use crate::proxy_url::{self, ProxyVariables};
use crate::sidecar::{self, SidecarConfig, SidecarCredentials, SidecarEndpoints};

/// How long a container that was spoken to waits for its bootstrap message: the engine makes the agent's container meanwhile.
const UNTOLD: Duration = Duration::from_secs(120);
/// The ids of nobody, which the sidecar takes: even an engine without root has so many.
const NOBODY: u32 = 65_534;

/// Serves as the first process of a sidecar's container, and returns its exit status. Standard error says why it could not serve.
#[must_use]
pub fn run_engine_sidecar() -> i32 {
    match live() {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(io::stderr(), "failed to {error}");
            1
        }
    }
}

fn live() -> Result<(), Error> {
    let _ = sandbox::undumpable();
    let (input, output) = (io::stdin(), io::stdout());
    let mut frames = Frames::default();
    let message = await_bootstrap(&mut frames).map_err(plumbing("read the bootstrap message"))?;
    let Some(message) = message else { return Ok(()) };
    let network = message.network;
    let (config, ends) = unpack(message)?;
    let place = where_ports_are(&config).map_err(plumbing("say where it is"))?;
    let listeners = sandbox::wire_run_network(network).map_err(plumbing("wire the run's network"))?;
    let _sidecar = sidecar::start(&config)?;
    drop(config);
    listeners.send(ends.link.as_fd()).map_err(plumbing("hand the listeners over"))?;
    drop(listeners);
    // What this process needs from now on is open.
    sandbox::confine_sidecar(None).map_err(plumbing("shut itself in"))?;
    let host = Host {
        frames,
        ends: &ends,
        output: output.lock(),
        place,
        records_open: true,
        notices_open: true,
        questions_open: true,
    };
    host.run(input.as_fd()).map_err(plumbing("carry for the sidecar"))
}

/// Returns the address at which connections to the run's declared ports are taken, as it goes over the line: empty where no port is
/// declared.
fn where_ports_are(config: &SidecarConfig) -> io::Result<Vec<u8>> {
    match config.endpoints.inbound {
        Some(_) => Ok(sandbox::outward()?.own.octets().to_vec()),
        None => Ok(Vec::new()),
    }
}

/// Waits for the bootstrap message, and answers every sign of life meanwhile. Returns `None` when the other end is gone or says to
/// stop, or when nobody comes in time.
fn await_bootstrap(frames: &mut Frames) -> io::Result<Option<Bootstrap>> {
    let input = io::stdin();
    let mut buffer = Zeroizing::new([0; CHUNK]);
    let mut until = Instant::now() + sandbox::POOL_MAX_IDLE;
    loop {
        match frames.next_frame()? {
            Some((Channel::Begin, text)) => return Ok(Some(serde_json::from_slice(text)?)),
            Some((Channel::Stop, _)) => return Ok(None),
            Some((Channel::Alive, _)) => {
                until = Instant::now() + UNTOLD;
                say(&mut io::stdout(), Channel::Alive, &[])?;
                continue;
            }
            Some(_) => return Err(io::ErrorKind::InvalidData.into()),
            None => {}
        }
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        match rustix::event::poll(&mut [PollFd::new(&input, PollFlags::IN)], left.as_ref()) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        match rustix::io::read(&input, &mut buffer[..]) {
            Ok(0) => return Ok(None),
            Ok(length) => frames.feed(&buffer[..length]),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// One side's ends of the channels between this process and the sidecar.
struct ChannelEnds {
    link: OwnedFd,
    notices: OwnedFd,
    records: OwnedFd,
    platform: OwnedFd,
    generation: File,
}

/// Both ends of every channel between this process and the sidecar.
struct Channels {
    host: ChannelEnds,
    sidecar: ChannelEnds,
}

/// Opens every channel between this process and the sidecar.
fn open_channels() -> Result<Channels, Error> {
    let socket = plumbing("make a socket");
    let open = || {
        let (link, link_inside) = sandbox::message_pair()?;
        let (notices, notices_inside) = sandbox::message_pair()?;
        let (records, records_inside) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let flags = SocketFlags::CLOEXEC;
        let (platform, platform_inside) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok([
            (link, link_inside),
            (notices, notices_inside),
            (records, records_inside),
            (platform, platform_inside),
        ])
    };
    let [
        (link, link_inside),
        (notices, notices_inside),
        (records, records_inside),
        (platform, platform_inside),
    ] = open().map_err(socket)?;
    let generation = memory_file(&[0; 8])?;
    let sidecar = ChannelEnds {
        link: link_inside,
        notices: notices_inside,
        records: records_inside,
        platform: platform_inside,
        generation: generation.try_clone().map_err(plumbing("keep a file in memory"))?,
    };
    Ok(Channels { host: ChannelEnds { link, notices, records, platform, generation }, sidecar })
}

/// Makes a file without a name that holds `contents`.
fn memory_file(contents: &[u8]) -> Result<File, Error> {
    let made = rustix::fs::memfd_create("lockgate", MemfdFlags::CLOEXEC).map(File::from);
    let file = made.map_err(|errno| plumbing("keep a file in memory")(errno.into()))?;
    file.write_all_at(contents, 0).map_err(plumbing("keep a file in memory"))?;
    Ok(file)
}

/// Compiles the policy of the command, or of the companion whose sidecar this is.
fn compile_policy(message: &mut ParsedBootstrap) -> Result<RunSpec, Error> {
    let mut spec = std::mem::take(&mut message.layers).compile()?;
    if let Some(name) = &message.companion {
        let its = spec.companions.iter().find(|it| it.name == *name);
        spec.policy = its.ok_or_else(|| unreadable(BootstrapError::Companion))?.policy.clone();
        // The declared ports are the command's.
        spec.inbound.clear();
    }
    if let Some(ProxyVariables { url, no_proxy }) = message.proxy.take() {
        proxy_url::fall_back_to(&mut spec, &url, &no_proxy)?;
    }
    Ok(spec)
}

fn unreadable(error: BootstrapError) -> Error {
    plumbing("read the bootstrap message")(io::Error::other(error))
}

/// Turns a bootstrap message into what a sidecar is given in any run.
fn unpack(message: Bootstrap) -> Result<(SidecarConfig, ChannelEnds), Error> {
    let mut message = ParsedBootstrap::try_from(message).map_err(unreadable)?;
    let RunSpec { policy, spending, inbound, organisation, .. } = compile_policy(&mut message)?;
    let network = message.network;
    let inbound = inbound::published(inbound, network.command(), message.forwarder)
        .map_err(plumbing("open the declared ports"))?;
    let Channels { host, sidecar: inside } = open_channels()?;
    let credentials = SidecarCredentials {
        platform: message.token.map(|token| PlatformLink { socket: inside.platform, token }),
        own: None,
        generation: Some(inside.generation),
        vault: None,
        placeholders: message.placeholders,
        exposed: message.exposed,
        organisation,
    };
    let config = SidecarConfig {
        run: message.run,
        companion: message.companion,
        policy,
        spending,
        identity: Identity::with_sidecar_id(NOBODY),
        bundle: None,
        other_bundle: Some(memory_file(message.bundle.as_bytes())?),
        names: NameRange::after(network.sidecar(), network.names()),
        audit: Arc::new(inside.records.into()),
        audit_path: None,
        key: message.key,
        endpoints: SidecarEndpoints {
            init: inside.link,
            notices: inside.notices,
            credentials,
            allowed_peer: None,
            companions: message.companions,
            inbound,
            chains: message.chains,
        },
        watcher_opens_files: false, // those of its container are others
        machine: message.machine,
    };
    Ok((config, host))
}

/// What the host waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Line,
    Link,
    Notices,
    Records,
    Questions,
}

/// Carries between the line and the sidecar.
struct Host<'a> {
    frames: Frames,
    ends: &'a ChannelEnds,
    output: io::StdoutLock<'a>,
    /// Sent with the word that the sidecar serves.
    place: Vec<u8>,
    /// Whether the sidecar's end of the records, the notices and the questions is open.
    records_open: bool,
    notices_open: bool,
    questions_open: bool,
}

impl Host<'_> {
    /// Carries until the sidecar has ended and everything it told has been passed on, or until the line is gone, and the container with
    /// it.
    fn run(mut self, input: BorrowedFd<'_>) -> io::Result<()> {
        let (mut heard, mut spoke, mut is_ready) = (Instant::now(), Instant::now(), false);
        let ChannelEnds { link, notices, records, platform, .. } = self.ends;
        self.take_frames()?;
        while self.records_open || self.notices_open {
            // A descriptor whose other end is closed would be ready for ever.
            let all = [
                (true, (Source::Line, input, PollFlags::IN)),
                (!is_ready, (Source::Link, link.as_fd(), PollFlags::IN)),
                (self.notices_open, (Source::Notices, notices.as_fd(), PollFlags::IN)),
                (self.records_open, (Source::Records, records.as_fd(), PollFlags::IN)),
                (self.questions_open, (Source::Questions, platform.as_fd(), PollFlags::IN)),
            ];
            let open: Vec<_> =
                all.into_iter().filter_map(|(is_open, source)| is_open.then_some(source)).collect();
            let ready = wait_for(&open, Some(HEARTBEAT))?;
            if ready.contains(&Source::Line) {
                heard = Instant::now();
                self.hear(input)?;
            } else if heard.elapsed() > PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if ready.contains(&Source::Link) {
                is_ready = true;
                if sandbox::await_ready(link.as_fd()).is_ok() {
                    say(&mut self.output, Channel::Ready, &self.place)?;
                }
            }
            if ready.contains(&Source::Notices) {
                self.notices_open = self.pass(Channel::SidecarMessage, |buffer| recv(notices, buffer))?;
            }
            if ready.contains(&Source::Records) {
                let read = |buffer: &mut [u8]| Ok(rustix::io::read(records, buffer)?);
                self.records_open = self.pass(Channel::Record, read)?;
            }
            if ready.contains(&Source::Questions) {
                self.questions_open = self.pass(Channel::Platform, |buffer| recv(platform, buffer))?;
            }
            if spoke.elapsed() >= HEARTBEAT {
                spoke = Instant::now();
                self.say(Channel::Alive, &[])?;
            }
        }
        // So that nobody waits for the engine to notice that this container has ended.
        self.say(Channel::Stop, &[])
    }

    fn hear(&mut self, input: BorrowedFd<'_>) -> io::Result<()> {
        let mut buffer = Zeroizing::new([0; CHUNK]);
        match rustix::io::read(input, &mut buffer[..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => self.frames.feed(&buffer[..length]),
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        self.take_frames()
    }

    fn take_frames(&mut self) -> io::Result<()> {
        while let Some((channel, payload)) = self.frames.next_frame()? {
            match channel {
                // A sidecar that went asks nothing more.
                Channel::Platform => drop(send_all(&self.ends.platform, payload)),
                Channel::Generation => self.ends.generation.write_all_at(payload, 0)?,
                Channel::Stop => {
                    rustix::net::shutdown(&self.ends.link, rustix::net::Shutdown::Both)?;
                }
                Channel::Alive => {}
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(())
    }

    /// Passes on what the sidecar says. Returns whether more may come.
    fn pass(&mut self, channel: Channel, read: impl Fn(&mut [u8]) -> io::Result<usize>) -> io::Result<bool> {
        let mut buffer = [0; CHUNK];
        match read(&mut buffer) {
            Ok(0) => Ok(false),
            Ok(length) => self.say(channel, &buffer[..length]).map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn say(&mut self, channel: Channel, payload: &[u8]) -> io::Result<()> {
        say(&mut self.output, channel, payload)
    }
}

fn say(output: &mut impl Write, channel: Channel, payload: &[u8]) -> io::Result<()> {
    output.write_all(&frame(channel, payload))?;
    output.flush()
}

fn recv(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::net::recv(socket, buffer, RecvFlags::empty())?.0)
}
