//! The shim's session with the agent's container: what the two send each other, and what goes on to the parent and the caller.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::SendFlags;
use rustix::process::Signal;
use rustix::termios::Winsize;
use sys::cgroup::Usage;
use sys::process::Exit;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Interval, MissedTickBehavior};

use super::attached::{Attached, EndedBy, next_output};
use super::brief::Brief;
use super::mux::{Channel, Frames, LONGEST_FRAME, WINDOW, frame};
use super::streams::{self, Mailbox, ShimEvent, Streams};
use crate::event::Event;
use crate::failure::Failure;
use crate::socket_broker;

/// How often the shim sends the container a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How often the size of a terminal is polled.
const SIZE: Duration = Duration::from_millis(150);
/// How many pieces of output may wait for a writer thread before no more output is read.
const MOST_PIECES: usize = 16;

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The command has ended, or never began.
    Command,
    /// The parent is gone, or wants the run to end.
    Parent,
    /// The sidecar is gone, and without it the run ends.
    SidecarGone,
}

/// Whether the command still has to wait for the certificate of the run's authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Authority {
    Awaited,
    NotNeeded,
}

/// A session with the agent's container, from its start to the end of the command.
pub(super) struct AgentSession {
    attached: Attached,
    frames: Frames,
    /// What the container writes to its standard error.
    complaint: String,
    lingers: bool,
    /// The brief, until it is sent.
    brief: Option<Brief>,
    authority: Authority,
    is_sidecar_ready: bool,
    /// Signals that came before there was a command.
    early_signals: Vec<i32>,
    control: OwnedFd,
    terminal: Option<OwnedFd>,
    size: Option<(u16, u16)>,
    /// The command's input, until the thread that reads it starts.
    input: Option<std::fs::File>,
    /// How many octets of input were sent and not yet acknowledged.
    in_flight: usize,
    /// A piece of input for which the window has no room yet.
    waiting_input: Option<Vec<u8>>,
    output: Option<Sender<Vec<u8>>>,
    errors: Option<Sender<Vec<u8>>>,
    /// How many writer threads have not finished.
    unwritten: usize,
    mailbox: Mailbox,
    /// Input has a channel of its own: input that nobody takes must not keep a signal back.
    inputs: Option<Receiver<ShimEvent>>,
    /// The socket broker, which asks for the health of a companion.
    broker: Option<OwnedFd>,
    heartbeat: Interval,
    sizes: Interval,
    /// How the command ended; the parent is told after all output is written.
    end: Option<Event>,
}

impl AgentSession {
    pub(super) fn new(
        attached: Attached,
        brief: Brief,
        authority: Authority,
        control: OwnedFd,
        streams: Streams,
        mailbox: Mailbox,
    ) -> Self {
        let mut unwritten = 0;
        let mut writer = |file, which| {
            let (sender, pieces) = channel(MOST_PIECES);
            streams::write_output(file, which, pieces, mailbox.sender.clone());
            unwritten += 1;
            sender
        };
        let output = Some(writer(streams.output, Channel::Output));
        let errors = streams.errors.map(|errors| writer(errors, Channel::Errors));
        let terminal = streams.terminal.map(|terminal| {
            // The parent connects the person's terminal to it.
            let _ = Event::Terminal(terminal.master).send(control.as_fd());
            terminal.ours
        });
        let every = |period| {
            let mut interval = tokio::time::interval(period);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval
        };
        Self {
            attached,
            frames: Frames::default(),
            complaint: String::new(),
            lingers: brief.lingers,
            brief: Some(brief),
            authority,
            is_sidecar_ready: false,
            early_signals: Vec::new(),
            control,
            terminal,
            size: None,
            input: Some(streams.input),
            in_flight: 0,
            waiting_input: None,
            output,
            errors,
            unwritten,
            mailbox,
            inputs: None,
            broker: None,
            heartbeat: every(HEARTBEAT),
            sizes: every(SIZE),
            end: None,
        }
    }

    /// Answers the socket broker's requests from now on.
    pub(super) fn serve(&mut self, broker: OwnedFd) -> io::Result<()> {
        streams::watch_broker(broker.try_clone()?, self.mailbox.sender.clone());
        self.broker = Some(broker);
        Ok(())
    }

    /// Whether the container was sent its brief.
    pub(super) fn has_begun(&self) -> bool {
        self.brief.is_none()
    }

    /// Whether the command has begun and ended.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.end, Some(Event::Ended(_)))
    }

    /// Waits for the next event and handles it. Returns why the session is over, once it is.
    pub(super) async fn advance(&mut self) -> Result<Option<Ended>, Failure> {
        let takes_input = self.waiting_input.is_none() && self.inputs.is_some();
        let inputs = async {
            match &mut self.inputs {
                Some(inputs) => inputs.recv().await,
                None => None,
            }
        };
        tokio::select! {
            event = self.mailbox.receiver.recv() => self.handle(event).await,
            event = inputs, if takes_input => {
                self.take_input(event).await;
                Ok(None)
            }
            // Output is read no faster than the caller takes it; the parent is heard meanwhile.
            octets = async {
                for writer in [&self.output, &self.errors].into_iter().flatten() {
                    let _ = writer.reserve().await;
                }
                next_output(&mut self.attached.output, &mut self.complaint).await
            } => match octets {
                Some(octets) => {
                    self.frames.feed(&octets);
                    self.take_frames().await
                }
                None => self.lost().await,
            },
            _ = self.heartbeat.tick() => {
                self.send(Channel::Alive, &[]).await;
                Ok(None)
            }
            _ = self.sizes.tick(), if self.terminal.is_some() => {
                self.follow_size().await;
                Ok(None)
            }
        }
    }

    /// Returns how the session ends when the container is gone.
    async fn lost(&mut self) -> Result<Option<Ended>, Failure> {
        let by = self.attached.ended_by(self.complaint.trim()).await;
        if by != EndedBy::WantOfMemory {
            return Err(Failure::new("hear from the agent's container", by.cause()));
        }
        let used = Usage { out_of_memory: 1, ..Usage::default() };
        let _ = Event::Used(used).send(self.control.as_fd());
        self.end = Some(Event::Ended(Exit::Signal(Signal::KILL.as_raw())));
        Ok(Some(Ended::Command))
    }

    /// Handles an event of the mailbox; a closed mailbox counts as the parent's end.
    async fn handle(&mut self, event: Option<ShimEvent>) -> Result<Option<Ended>, Failure> {
        match event {
            Some(ShimEvent::Signal(number)) if self.has_begun() => {
                self.send(Channel::Signal, &number.to_le_bytes()).await;
            }
            Some(ShimEvent::Signal(number)) => self.early_signals.push(number),
            Some(ShimEvent::SidecarReady) => {
                self.is_sidecar_ready = true;
                self.begin().await;
            }
            Some(ShimEvent::Authority(pem)) => {
                self.authority = Authority::NotNeeded;
                if let Some(brief) = &mut self.brief {
                    brief.authority = Some(pem);
                }
                self.begin().await;
            }
            Some(ShimEvent::SidecarGone) => return Ok(Some(Ended::SidecarGone)),
            Some(ShimEvent::BrokerRequest(request)) => self.answer(request).await,
            Some(ShimEvent::Closed(which)) => self.send(Channel::Closed, &[which as u8]).await,
            Some(ShimEvent::Written) => self.unwritten = self.unwritten.saturating_sub(1),
            Some(ShimEvent::ParentGone) | None => return Ok(Some(Ended::Parent)),
            Some(ShimEvent::Input(_) | ShimEvent::InputEnd) => {}
        }
        Ok(None)
    }

    /// Answers a request of the socket broker, or passes it on. A broker that is gone is noticed elsewhere.
    async fn answer(&mut self, request: u8) {
        let Some(broker) = &self.broker else { return };
        match request {
            socket_broker::PROBE if !self.has_begun() => {
                drop(sys::descriptor::send(broker, &[request, 0], &[]))
            }
            socket_broker::PROBE | socket_broker::STOP => self.send(Channel::Probe, &[request]).await,
            _ => {}
        }
    }

    /// Sends the brief, once the sidecar serves and the authority is known.
    async fn begin(&mut self) {
        if !self.is_sidecar_ready || self.authority == Authority::Awaited {
            return;
        }
        let Some(brief) = self.brief.take() else { return };
        let mut brief = serde_json::to_vec(&brief).unwrap_or_default();
        // The last frame is known by being shorter than the longest.
        if brief.len() % LONGEST_FRAME == 0 {
            brief.push(b' ');
        }
        self.send(Channel::Begin, &brief).await;
        self.follow_size().await;
        for number in std::mem::take(&mut self.early_signals) {
            self.send(Channel::Signal, &number.to_le_bytes()).await;
        }
        if let Some(input) = self.input.take() {
            let (sender, inputs) = channel(1);
            streams::read_input(input, sender);
            self.inputs = Some(inputs);
        }
    }

    /// Sends a piece of input, or keeps it until the window has room.
    async fn take_input(&mut self, event: Option<ShimEvent>) {
        match event {
            Some(ShimEvent::Input(octets)) if self.in_flight + octets.len() > WINDOW => {
                self.waiting_input = Some(octets);
            }
            Some(ShimEvent::Input(octets)) => {
                self.in_flight += octets.len();
                self.send(Channel::Input, &octets).await;
            }
            _ => {
                self.inputs = None;
                self.send(Channel::InputEnd, &[]).await;
            }
        }
    }

    /// Handles all complete frames, and passes the output among them to the writer threads.
    async fn take_frames(&mut self) -> Result<Option<Ended>, Failure> {
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let taken = self.sort_frames(&mut output, &mut errors).await;
        for (writer, octets) in [(&self.output, output), (&self.errors, errors)] {
            if let Some(writer) = writer.as_ref().filter(|_| !octets.is_empty()) {
                // `advance` reserved room for one piece, and nobody else sends.
                let _ = writer.try_send(octets);
            }
        }
        taken
    }

    /// Handles all complete frames but output, which it collects.
    async fn sort_frames(
        &mut self,
        output: &mut Vec<u8>,
        errors: &mut Vec<u8>,
    ) -> Result<Option<Ended>, Failure> {
        loop {
            let (channel, payload) = match self.frames.next_frame() {
                Ok(Some((channel, payload))) => (channel, payload.to_vec()),
                Ok(None) => return Ok(None),
                Err(error) => return Err(Failure::new("hear from the agent's container", error)),
            };
            match channel {
                Channel::Output => output.extend(payload),
                Channel::Errors => errors.extend(payload),
                Channel::Taken => {
                    let taken = payload.try_into().map_or(0, u32::from_le_bytes) as usize;
                    self.in_flight = self.in_flight.saturating_sub(taken);
                    if let Some(octets) = self.waiting_input.take() {
                        self.take_input(Some(ShimEvent::Input(octets))).await;
                    }
                }
                Channel::Probe => {
                    if let (Some(broker), [well]) = (&self.broker, payload.as_slice()) {
                        // A companion that answers more often than it was asked must not block the shim.
                        let answer = [socket_broker::PROBE, *well];
                        let _ = rustix::net::send(broker, &answer, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                    }
                }
                Channel::Event => {
                    if let Some(ended) = self.take_event(&payload) {
                        // Podman's containers wait for this; others have ended.
                        if self.lingers {
                            self.send(Channel::Stop, &[]).await;
                        }
                        return Ok(Some(ended));
                    }
                }
                _ => {}
            }
        }
    }

    /// Passes an event on to the parent; keeps the one that ends the session.
    fn take_event(&mut self, message: &[u8]) -> Option<Ended> {
        match Event::parse(message, Vec::new()) {
            Ok(event @ (Event::Ended(_) | Event::Failed(_) | Event::NotExecuted { .. })) => {
                self.end = Some(event);
                Some(Ended::Command)
            }
            Ok(event @ (Event::Started { .. } | Event::SetUp { .. } | Event::Used(_))) => {
                let _ = event.send(self.control.as_fd());
                None
            }
            Ok(Event::Terminal(_)) | Err(_) => None,
        }
    }

    async fn follow_size(&mut self) {
        let Some(terminal) = &self.terminal else { return };
        let Ok(Winsize { ws_row, ws_col, .. }) = rustix::termios::tcgetwinsize(terminal) else { return };
        if self.size != Some((ws_row, ws_col)) {
            self.size = Some((ws_row, ws_col));
            let payload = [ws_row.to_le_bytes(), ws_col.to_le_bytes()].concat();
            // The brief must come first.
            if self.has_begun() {
                self.send(Channel::Size, &payload).await;
            } else {
                self.size = None;
            }
        }
    }

    /// Sends a frame. A container that takes nothing any more is noticed when its output ends.
    async fn send(&mut self, channel: Channel, payload: &[u8]) {
        let _ = self.attached.input.write_all(&frame(channel, payload)).await;
        let _ = self.attached.input.flush().await;
    }

    /// Waits until the caller has the command's output, as long as the parent lets the run go on; then tells the parent how the command
    /// ended. Returns the container's streams.
    pub(super) async fn close(mut self) -> Attached {
        (self.output, self.errors, self.terminal) = (None, None, None);
        let Some(end) = self.end.take() else { return self.attached };
        while self.unwritten > 0 {
            match self.mailbox.receiver.recv().await {
                Some(ShimEvent::Written) => self.unwritten -= 1,
                Some(event) if !event.asks_to_end() => {}
                _ => break, // who asks for an end waits for no reader
            }
        }
        let _ = end.send(self.control.as_fd());
        self.attached
    }
}
