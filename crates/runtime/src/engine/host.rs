//! The first process of a sidecar's container: it waits for the letter, in a pool perhaps, wires the network of the run, starts the sidecar as in any
//! run, and carries between it and the line. It is trusted, and has given up everything but its descriptors before the sidecar
//! has read one octet of the agent's.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use credential::Secret;
use egress::{Entrance, NameRange};
use policy::Hostname;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::MemfdFlags;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use sandbox::{Caller, Channel, Frames, Identity, frame};
use zeroize::Zeroizing;

use super::carrier::send_all;
use super::{CHUNK, HEARTBEAT, Letter, PATIENCE, run_id};
use crate::error::{Error, plumbing};
use crate::inbound;
use crate::platform::PlatformLink;
use crate::proxy_url;
use crate::sidecar::{self, SidecarConfig, SidecarCredentials};

/// How long one that was spoken to waits for its letter: the engine makes the agent's container meanwhile.
const UNTOLD: Duration = Duration::from_secs(120);
/// Nobody's ids, which the sidecar takes: also an engine without root has as many.
const NOBODY: u32 = 65_534;

/// The life of a sidecar's container, and the status it ends with. Why it could not serve is said on its standard error.
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
    let Some(letter) = await_letter(&mut frames).map_err(plumbing("read the letter"))? else { return Ok(()) };
    let (config, ends) = unpack(letter)?;
    let network = ends.network;
    let place = where_ports_are(&config).map_err(plumbing("say where it is"))?;
    let listeners = sandbox::wire_run_network(network).map_err(plumbing("wire the run's network"))?;
    let _sidecar = sidecar::start(&config)?;
    drop(config);
    listeners.send(ends.link.as_fd()).map_err(plumbing("hand the listeners over"))?;
    drop(listeners);
    // What this process needs from now on is open.
    sandbox::confine_sidecar(None).map_err(plumbing("shut itself in"))?;
    Host { frames, ends: &ends, output: output.lock(), place, records: true, told: true, platform: true }
        .run(input.as_fd())
        .map_err(plumbing("carry for the sidecar"))
}

/// Where connections to the run's declared ports are taken, as it is told: nothing where there are none.
fn where_ports_are(config: &SidecarConfig) -> io::Result<Vec<u8>> {
    match config.inbound {
        Some(_) => Ok(sandbox::outward()?.own.octets().to_vec()),
        None => Ok(Vec::new()),
    }
}

/// Waits for the letter; nothing where nobody is there any more, or nobody comes. Whoever says that it is there is told the same.
fn await_letter(frames: &mut Frames) -> io::Result<Option<Letter>> {
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

/// This process's ends of what the sidecar has.
struct Ends {
    network: sandbox::RunNetwork,
    link: OwnedFd,
    notices: OwnedFd,
    records: OwnedFd,
    platform: OwnedFd,
    generation: File,
}

/// What a sidecar is given in any run, out of a letter.
fn unpack(letter: Letter) -> Result<(SidecarConfig, Ends), Error> {
    let bad =
        |what: &str| Error::Plumbing { what: "read the letter", source: io::Error::other(what.to_owned()) };
    let socket = |source| Error::Plumbing { what: "make a socket", source };
    let Letter {
        run,
        network,
        layers,
        proxy,
        companion,
        companions,
        chains,
        porter,
        placeholders,
        exposed,
        token,
        key,
        bundle,
        machine,
    } = letter;
    let mut spec = layers.compile()?;
    if let Some(name) = &companion {
        let its = spec.companions.iter().find(|it| it.name.as_str() == name);
        spec.policy = its.ok_or_else(|| bad("there is no such companion"))?.policy.clone();
    }
    let place = |(name, address): (String, _)| Some((Hostname::parse(&name).ok()?, Entrance::at(address)));
    let declared = if companion.is_none() { std::mem::take(&mut spec.inbound) } else { Vec::new() };
    let porter = porter.map(|secret| Secret::new(secret.to_vec()));
    let inbound = inbound::published(declared, network.command(), porter);
    let companions = companions.into_iter().map(place).collect::<Option<Vec<_>>>();
    if let Some((proxy, direct)) = proxy {
        let variable = |name: &str, value: String| (name.into(), value.into());
        let environment = vec![variable("PROXY_URL", proxy), variable("NO_PROXY", direct)];
        let caller =
            Caller { uid: 0, gid: 0, superuser: false, home: None, directory: "/".into(), environment };
        proxy_url::fall_back(&mut spec.policy, &caller)?;
    }
    let placeholders = placeholders
        .into_iter()
        .map(|(placeholder, id)| Some((placeholder.parse().ok()?, id.parse().ok()?)))
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| bad("a placeholder is none"))?;
    let value =
        |(id, value): (String, Zeroizing<Vec<u8>>)| Some((id.parse().ok()?, Secret::new(value.to_vec())));
    let exposed = exposed.into_iter().map(value).collect::<Option<Vec<_>>>();
    let (link, link_inside) = sandbox::message_pair().map_err(socket)?;
    let (notices, notices_inside) = sandbox::message_pair().map_err(socket)?;
    let (records, records_inside) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|errno| socket(errno.into()))?;
    let flags = SocketFlags::CLOEXEC;
    let (platform, platform_inside) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|errno| socket(errno.into()))?;
    let memory = || rustix::fs::memfd_create("lockgate", MemfdFlags::CLOEXEC).map(File::from);
    let memory = || memory().map_err(|errno| plumbing("keep a file in memory")(errno.into()));
    let generation = memory()?;
    generation.write_all_at(&[0; 8], 0).map_err(plumbing("keep a file in memory"))?;
    let trusted = memory()?;
    trusted.write_all_at(bundle.as_bytes(), 0).map_err(plumbing("keep a file in memory"))?;
    let credentials = SidecarCredentials {
        platform: token
            .map(|token| PlatformLink { socket: platform_inside, token: Secret::new(token.to_vec()) }),
        own: None,
        generation: Some(generation.try_clone().map_err(plumbing("keep a file in memory"))?),
        vault: None,
        placeholders,
        exposed: exposed.ok_or_else(|| bad("a provider has no name"))?,
        organisation: spec.organisation,
    };
    let config = SidecarConfig {
        run: run_id(&run).ok_or_else(|| bad("the run has no name"))?,
        policy: spec.policy,
        spending: spec.spending,
        identity: Identity::beside_of(NOBODY),
        bundle: None,
        other_bundle: Some(trusted),
        names: NameRange::after(network.sidecar(), network.names()),
        audit: records_inside.into(),
        audit_path: None,
        key: Secret::new(key.to_vec()),
        link: link_inside,
        notices: notices_inside,
        credentials,
        allowed_peer: None,
        companions: companions.ok_or_else(|| bad("a companion has no name"))?,
        inbound: inbound.map_err(plumbing("open the declared ports"))?,
        chains,
        machine,
    };
    Ok((config, Ends { network, link, notices, records, platform, generation }))
}

/// Carries between the line and the sidecar.
struct Host<'a> {
    frames: Frames,
    ends: &'a Ends,
    output: io::StdoutLock<'a>,
    /// What is told of it with the word that it serves.
    place: Vec<u8>,
    /// Which of the sidecar's ends are open.
    records: bool,
    told: bool,
    platform: bool,
}

impl Host<'_> {
    /// Until the sidecar has ended and everything of it is told, or the line is gone, and the container with it.
    fn run(mut self, input: std::os::fd::BorrowedFd<'_>) -> io::Result<()> {
        let patience = Timespec::try_from(HEARTBEAT).ok();
        let (mut heard, mut spoke, mut is_ready) = (Instant::now(), Instant::now(), false);
        self.take_frames()?;
        while self.records || self.told {
            let Ends { link, notices, records, platform, .. } = self.ends;
            // What is closed at its other end would be ready for ever.
            let all = [
                (true, input),
                (!is_ready, link.as_fd()),
                (self.told, notices.as_fd()),
                (self.records, records.as_fd()),
                (self.platform, platform.as_fd()),
            ];
            let open: Vec<usize> = (0..all.len()).filter(|at| all[*at].0).collect();
            let mut fds: Vec<PollFd<'_>> =
                open.iter().map(|at| PollFd::from_borrowed_fd(all[*at].1, PollFlags::IN)).collect();
            match rustix::event::poll(&mut fds, patience.as_ref()) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let mut ready = [false; 5];
            for (at, fd) in open.iter().zip(&fds) {
                ready[*at] = !fd.revents().is_empty();
            }
            let [said, link_said, told, recorded, asked] = ready;
            if said {
                heard = Instant::now();
                self.hear(input)?;
            } else if heard.elapsed() > PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if link_said {
                is_ready = true;
                if sandbox::await_ready(link.as_fd()).is_ok() {
                    say(&mut self.output, Channel::Ready, &self.place)?;
                }
            }
            if told {
                self.told = self.pass(Channel::SidecarMessage, |buffer| recv(notices, buffer))?;
            }
            if recorded {
                self.records = self.pass(Channel::Record, |buffer| Ok(rustix::io::read(records, buffer)?))?;
            }
            if asked {
                self.platform = self.pass(Channel::Platform, |buffer| recv(platform, buffer))?;
            }
            if spoke.elapsed() >= HEARTBEAT {
                spoke = Instant::now();
                self.say(Channel::Alive, &[])?;
            }
        }
        // Nobody waits for the engine to notice that this container has ended.
        self.say(Channel::Stop, &[])
    }

    fn hear(&mut self, input: std::os::fd::BorrowedFd<'_>) -> io::Result<()> {
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

    /// Passes what the sidecar says on; whether there is more to come.
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
