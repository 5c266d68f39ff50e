//! The stand-in: the process of this machine that takes the place of a sidecar in a container. It sends the bootstrap message, hands
//! the sidecar's questions to the process that answers them, and writes the sidecar's records to the audit. When it ends, the line
//! ends, and the run with it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use credential::Secret;
use egress::{Entrance, Files, RemovalWatch};
use policy::{Hostname, Layers, ProviderId};
use rustix::event::PollFlags;
use rustix::net::{RecvFlags, SendFlags};
use sandbox::{Channel, Frames, KeepsOpen, RunNetwork, Sidecar, Writes, frame, wait_for};
use zeroize::Zeroizing;

use super::bootstrap::Bootstrap;
use super::port_forwarder::{PortForwarder, PortsHere};
use super::{CHUNK, HEARTBEAT, PATIENCE};
use crate::error::{Error, plumbing};
use crate::generation_file::{GenerationFile, UNKNOWN};
use crate::proxy_url::ProxyVariables;
use crate::sidecar::{self, SidecarConfig, SidecarEndpoints};

/// The most certificates that are sent, in octets: with the rest of the message they have to fit into a frame.
const LARGEST_BUNDLE: usize = 512 << 10;
/// How often the stand-in looks whether all goes on, and whether a credential changed, where the kernel does not tell of writes.
const LOOK: Duration = Duration::from_secs(1);

/// What a stand-in is given: what a sidecar would be, and the sources of its policy.
pub(crate) struct StandInConfig {
    pub(crate) config: SidecarConfig,
    pub(crate) layers: Layers,
    pub(crate) proxy: Option<ProxyVariables>,
    /// The ports of this machine that lead to it, where no engine opens them.
    pub(crate) ports_here: Option<PortsHere>,
}

/// Starts the stand-in of a run's sidecar. It waits for its line.
pub(crate) fn start_stand_in(given: &StandInConfig) -> Result<Sidecar, sandbox::Error> {
    sandbox::start_sidecar(given, |given| {
        sidecar::ended(|| live(given), given.config.endpoints.notices.as_fd())
    })
}

impl KeepsOpen for StandInConfig {
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let config = &self.config;
        let mut keep =
            vec![config.audit.as_fd(), config.endpoints.init.as_fd(), config.endpoints.notices.as_fd()];
        keep.extend(config.endpoints.credentials.descriptors());
        keep.extend(self.ports_here.iter().flat_map(PortsHere::descriptors));
        keep
    }
}

fn live(given: &StandInConfig) -> Result<(), Error> {
    let config = &given.config;
    let SidecarEndpoints { init, credentials, .. } = &config.endpoints;
    let bundle = read_bundle(config.bundle.as_deref())?;
    let machine = egress::own_addresses().map_err(plumbing("ask for this machine's addresses"))?;
    // Opened before the process is confined. Where the kernel does not tell of writes, the stand-in looks now and then.
    let writes = credentials.vault.as_deref().and_then(|vault| Writes::within(vault).ok());
    let forwarder = given.ports_here.as_ref().map(|ports| ports.start(config.identity)).transpose()?;
    sandbox::confine_sidecar(Some(config.identity)).map_err(plumbing("shut the sidecar's stand-in in"))?;
    let line = sandbox::receive_line(init.as_fd()).map_err(plumbing("receive the line"))?;
    let Some((line, network)) = line else { return Ok(()) };
    let mut line = UnixStream::from(line);
    let message = bootstrap(given, network, bundle, machine)?;
    line.write_all(&message).map_err(plumbing("write the bootstrap message"))?;
    drop(message);
    StandIn {
        config,
        line,
        frames: Frames::default(),
        platform: credentials.platform.as_ref().map(|link| link.socket.as_fd()),
        generation: credentials.generation_file().map_err(plumbing("read the vault's generation"))?,
        writes,
        forwarder: forwarder.as_ref(),
        told_generation: 0,
        audit_removal: RemovalWatch::over(&config.audit),
        patience: PATIENCE,
        is_over: false,
    }
    .run()
    .map_err(plumbing("carry for the sidecar"))?;
    let _ = rustix::net::shutdown(init, rustix::net::Shutdown::Both);
    Ok(())
}

/// Reads the certificates that this machine trusts, without what else their file holds.
fn read_bundle(named: Option<&str>) -> Result<String, Error> {
    let bundle = Files::open(named)?.into_certificates().map_err(plumbing("read the authorities"))?;
    if bundle.len() > LARGEST_BUNDLE {
        let why = "they are more than the 512 KiB that a sidecar at an engine can be told; name fewer with SSL_CERT_FILE";
        return Err(plumbing("read the authorities")(io::Error::other(why)));
    }
    Ok(bundle)
}

/// Encodes the bootstrap message as a frame.
fn bootstrap(
    given: &StandInConfig,
    network: RunNetwork,
    bundle: String,
    machine: Vec<IpAddr>,
) -> Result<Zeroizing<Vec<u8>>, Error> {
    let SidecarConfig { run, companion, key, endpoints, .. } = &given.config;
    let SidecarEndpoints { credentials, companions, chains, .. } = endpoints;
    let place = |(name, entrance): &(Hostname, Entrance)| Some((name.to_string(), entrance.address()?));
    let value =
        |(id, value): &(ProviderId, Secret)| (id.to_string(), Zeroizing::new(value.expose().to_vec()));
    let message = Bootstrap {
        run: run.to_string(),
        network,
        layers: given.layers.clone(),
        proxy: given.proxy.clone(),
        companion: companion.as_ref().map(ToString::to_string),
        companions: companions.iter().filter_map(place).collect(),
        chains: chains.clone(),
        forwarder: given.ports_here.as_ref().map(|it| Zeroizing::new(it.secret.expose().to_vec())),
        placeholders: credentials
            .placeholders
            .iter()
            .map(|(p, id)| (p.to_string(), id.to_string()))
            .collect(),
        exposed: credentials.exposed.iter().map(value).collect(),
        token: credentials.platform.as_ref().map(|link| Zeroizing::new(link.token.expose().to_vec())),
        key: Zeroizing::new(key.expose().to_vec()),
        bundle,
        machine,
    };
    let text = serde_json::to_vec(&message).map(Zeroizing::new);
    let text =
        text.map_err(|error| Error::Plumbing { what: "write the bootstrap message", source: error.into() })?;
    if text.len() > sandbox::LONGEST_FRAME {
        let source = io::Error::other("the policy is longer than a sidecar elsewhere can be told");
        return Err(Error::Plumbing { what: "write the bootstrap message", source });
    }
    Ok(Zeroizing::new(frame(Channel::Begin, &text)))
}

/// What the stand-in waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Line,
    /// Its end of the socket is closed when the run is over.
    Init,
    Answers,
    /// Only wakes the stand-in: what changed is looked at each time.
    Writes,
}

struct StandIn<'a> {
    config: &'a SidecarConfig,
    line: UnixStream,
    frames: Frames,
    platform: Option<BorrowedFd<'a>>,
    generation: Option<GenerationFile>,
    /// Wakes this process when the generation may have changed.
    writes: Option<Writes>,
    forwarder: Option<&'a PortForwarder>,
    told_generation: u64,
    audit_removal: RemovalWatch,
    /// How long the container may say nothing.
    patience: Duration,
    is_over: bool,
}

impl StandIn<'_> {
    fn run(mut self) -> io::Result<()> {
        let (mut heard, mut spoke) = (Instant::now(), Instant::now());
        loop {
            let mut sources = vec![(Source::Line, self.line.as_fd(), PollFlags::IN)];
            // With the run over, nothing more is asked of this side.
            if !self.is_over {
                sources.push((Source::Init, self.config.endpoints.init.as_fd(), PollFlags::IN));
                sources.extend(self.platform.map(|fd| (Source::Answers, fd, PollFlags::IN)));
            }
            sources.extend(self.writes.iter().map(|writes| (Source::Writes, writes.as_fd(), PollFlags::IN)));
            if self.forwarder.is_some_and(PortForwarder::is_gone) {
                return Err(io::Error::other("the port forwarder is gone"));
            }
            let ready = wait_for(&sources, Some(LOOK))?;
            if ready.contains(&Source::Line) {
                heard = Instant::now();
                if !self.hear()? {
                    return Ok(());
                }
            } else if heard.elapsed() > self.patience {
                return Err(silent(self.patience));
            }
            if ready.contains(&Source::Init) {
                self.is_over = true;
                self.say(Channel::Stop, &[])?;
            }
            if ready.contains(&Source::Answers) {
                self.pass_answer()?;
            }
            self.pass_generation()?;
            if spoke.elapsed() >= HEARTBEAT {
                spoke = Instant::now();
                self.say(Channel::Alive, &[])?;
            }
        }
    }

    /// Takes what the container says. Returns whether more may come.
    fn hear(&mut self) -> io::Result<bool> {
        let mut buffer = [0; CHUNK];
        match self.line.read(&mut buffer) {
            Ok(0) => return Ok(false),
            Ok(length) => self.frames.feed(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(error),
        }
        while let Some((channel, payload)) = self.frames.next_frame()? {
            match channel {
                Channel::Ready => {
                    self.forwarder.map_or(Ok(()), |forwarder| forwarder.begin(payload))?;
                    sandbox::report_ready(self.config.endpoints.init.as_fd())?;
                }
                Channel::SidecarMessage => {
                    // The process that watches may be gone; the records have it all the same.
                    let _ = rustix::net::send(&self.config.endpoints.notices, payload, SendFlags::NOSIGNAL);
                }
                // What cannot be recorded is not allowed: without its line the sidecar ends.
                Channel::Record => {
                    let SidecarConfig { audit, audit_path, .. } = self.config;
                    record(audit, audit_path.as_deref(), &self.audit_removal, payload)?;
                }
                Channel::Platform => {
                    if let Some(platform) = self.platform {
                        send_all(platform, payload)?;
                    }
                }
                Channel::Alive => {}
                Channel::Stop => return Ok(false),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(true)
    }

    fn pass_answer(&mut self) -> io::Result<()> {
        let Some(platform) = self.platform else { return Ok(()) };
        let mut buffer = Zeroizing::new([0; CHUNK]);
        match rustix::net::recv(platform, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => {
                self.platform = None;
                Ok(())
            }
            Ok((length, _)) => self.say(Channel::Platform, &buffer[..length]),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Tells the sidecar that a credential was set anew or taken away, so that the change counts from the next request on.
    fn pass_generation(&mut self) -> io::Result<()> {
        // Cleared before the look: what is written from here on wakes the stand-in again.
        if let Some(writes) = &self.writes {
            writes.forget();
        }
        let Some(file) = &self.generation else { return Ok(()) };
        let now = file.now().unwrap_or(UNKNOWN);
        if now != self.told_generation {
            self.told_generation = now;
            self.say(Channel::Generation, &now.to_be_bytes())?;
        }
        Ok(())
    }

    fn say(&mut self, channel: Channel, payload: &[u8]) -> io::Result<()> {
        self.line.write_all(&Zeroizing::new(frame(channel, payload)))
    }
}

/// Returns the error for a container that has said nothing for this long.
fn silent(patience: Duration) -> io::Error {
    let why = "it was stopped, the engine hangs, or this machine has too much to do";
    let said = format!("its container has said nothing for {} s: {why}", patience.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, said)
}

/// Appends records to the audit. The error names the file.
fn record(mut audit: &File, path: Option<&Path>, removal: &RemovalWatch, lines: &[u8]) -> io::Result<()> {
    let written = audit.write_all(lines).and_then(|()| match removal.is_removed_now(audit) {
        true => Err(io::Error::other("the file was removed")),
        false => Ok(()),
    });
    written.map_err(|source| match path {
        Some(path) => io::Error::new(source.kind(), format!("write {}: {source}", path.display())),
        None => source,
    })
}

pub(super) fn send_all(socket: impl AsFd, mut octets: &[u8]) -> io::Result<()> {
    while !octets.is_empty() {
        match rustix::net::send(&socket, octets, SendFlags::NOSIGNAL) {
            Ok(sent) => octets = &octets[sent..],
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::FileExt;

    use policy::{Policy, RunId, Spending};

    use super::*;

    /// The next generation that is said on a line.
    fn generation(line: &mut UnixStream, frames: &mut Frames) -> Vec<u8> {
        loop {
            while let Some((channel, payload)) = frames.next_frame().unwrap() {
                if channel == Channel::Generation {
                    return payload.to_vec();
                }
            }
            let mut buffer = [0; CHUNK];
            let length = line.read(&mut buffer).unwrap();
            assert!(length > 0, "the line ended");
            frames.feed(&buffer[..length]);
        }
    }

    #[test]
    fn a_bundle_that_cannot_be_told_whole_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bundle.pem");
        let authority = egress::RunAuthority::make().unwrap();
        let read = |count: usize| {
            let commented = format!("# {}\n{}", "x".repeat(2000), authority.certificate_pem());
            std::fs::write(&path, commented.repeat(count)).unwrap();
            read_bundle(path.to_str()).map_err(|error| error.to_string())
        };
        let most = LARGEST_BUNDLE / read(1).unwrap().len();
        assert_eq!(read(most).unwrap(), read(1).unwrap().repeat(most), "comments do not count");
        let refused = read(most + 1).unwrap_err();
        assert!(refused.contains("read the authorities") && refused.contains("SSL_CERT_FILE"), "{refused}");
    }

    #[test]
    fn an_audit_that_was_removed_takes_no_records() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        let audit = File::create(&path).unwrap();
        let removal = RemovalWatch::over(&audit);
        record(&audit, Some(&path), &removal, b"1\n").unwrap();
        std::fs::remove_file(&path).unwrap();
        let error = record(&audit, Some(&path), &removal, b"2\n").unwrap_err();
        assert_eq!(error.to_string(), format!("write {}: the file was removed", path.display()));
    }

    fn config(init: OwnedFd, notices: OwnedFd) -> SidecarConfig {
        SidecarConfig {
            run: RunId::from_random([7; _]),
            companion: None,
            policy: Policy::default(),
            spending: Spending::default(),
            identity: sandbox::Identity::with_sidecar_id(1),
            bundle: None,
            other_bundle: None,
            names: egress::NameRange::default(),
            audit: tempfile::tempfile().unwrap().into(),
            audit_path: None,
            key: Secret::new(Vec::new()),
            endpoints: SidecarEndpoints::without_credentials(init, notices, Vec::new()),
            watcher_opens_files: true,
            machine: Vec::new(),
        }
    }

    #[test]
    fn a_container_that_says_nothing_is_told_as_one() {
        let ((init, _run), (notices, _person)) =
            (sandbox::message_pair().unwrap(), sandbox::message_pair().unwrap());
        let config = config(init, notices);
        let (_theirs, line) = UnixStream::pair().unwrap();
        let stand_in = StandIn {
            config: &config,
            line,
            frames: Frames::default(),
            platform: None,
            generation: None,
            writes: None,
            forwarder: None,
            told_generation: 0,
            audit_removal: RemovalWatch::over(&config.audit),
            patience: Duration::ZERO,
            is_over: false,
        };
        let told = stand_in.run().unwrap_err().to_string();
        assert!(told.starts_with("its container has said nothing for 0 s: it was stopped"), "{told}");
    }

    #[test]
    fn a_credential_that_changed_is_told_at_once() {
        let vault = tempfile::tempdir().unwrap();
        let file = vault.path().join("generation");
        std::fs::write(&file, [1; 8]).unwrap();
        let ((init, run), (notices, _person)) =
            (sandbox::message_pair().unwrap(), sandbox::message_pair().unwrap());
        let config = config(init, notices);
        let (mut theirs, line) = UnixStream::pair().unwrap();
        let read = File::open(&file).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let stand_in = StandIn {
                    config: &config,
                    line,
                    frames: Frames::default(),
                    platform: None,
                    generation: Some(GenerationFile::new(read)),
                    writes: Some(Writes::within(vault.path()).unwrap()),
                    forwarder: None,
                    told_generation: 0,
                    audit_removal: RemovalWatch::over(&config.audit),
                    patience: PATIENCE,
                    is_over: false,
                };
                stand_in.run().unwrap();
            });
            theirs.write_all(&frame(Channel::Alive, &[])).unwrap();
            let mut frames = Frames::default();
            assert_eq!(generation(&mut theirs, &mut frames), [1; 8], "as it was found");
            let mut fastest = Duration::MAX;
            for now in 2..5 {
                let written = Instant::now();
                File::options().write(true).open(&file).unwrap().write_all_at(&[now; 8], 0).unwrap();
                assert_eq!(generation(&mut theirs, &mut frames), [now; 8]);
                fastest = fastest.min(written.elapsed());
            }
            assert!(fastest < Duration::from_millis(600), "told after {fastest:?}");
            std::fs::remove_file(&file).unwrap();
            assert_eq!(
                generation(&mut theirs, &mut frames),
                UNKNOWN.to_be_bytes(),
                "it is no longer the vault's"
            );
            theirs.shutdown(std::net::Shutdown::Both).unwrap();
            drop(run);
        });
    }
}
