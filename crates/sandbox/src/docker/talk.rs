//! What the shim and the agent's container say to each other, and what of it goes to the parent and the caller.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::SendFlags;
use rustix::termios::Winsize;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Interval, MissedTickBehavior};

use super::attached::{Attached, next_output};
use super::inside::Brief;
use super::mux::{Channel, Frames, LONGEST_FRAME, WINDOW, frame};
use super::streams::{self, Streams, Word};
use crate::event::Event;
use crate::failure::Failure;
use crate::socket_broker;

/// How often the container is told that its shim is there.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How often a terminal is looked at for another size.
const SIZE: Duration = Duration::from_millis(150);
/// How many pieces may wait to be written before no more is taken of the command's.
const WAITING: usize = 16;
/// How long the caller may take to read the last of what the command wrote, once it is not there any more.
const LAST_READ: Duration = Duration::from_secs(30);

/// Why the shim stops watching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The command has, or never began.
    Command,
    /// The parent is gone, or wants this to end.
    Parent,
    /// The sidecar is gone, and without it the run ends.
    SidecarGone,
}

/// One conversation.
pub(super) struct Talk {
    attached: Attached,
    frames: Frames,
    complaint: String,
    lingers: bool,
    brief: Option<Brief>,
    awaits_authority: bool,
    is_sidecar_ready: bool,
    /// Signals that came before there was a command.
    early_signals: Vec<i32>,
    control: OwnedFd,
    terminal: Option<OwnedFd>,
    size: Option<(u16, u16)>,
    /// The input, before it is read of, and how much of it was sent and not taken.
    input: Option<std::fs::File>,
    under_way: usize,
    waiting_input: Option<Vec<u8>>,
    output: Option<Sender<Vec<u8>>>,
    errors: Option<Sender<Vec<u8>>>,
    unwritten: usize,
    words: Sender<Word>,
    heard: Receiver<Word>,
    /// Its own channel: input that nobody takes must not keep a signal back.
    inputs: Option<Receiver<Word>>,
    /// On which the health of a companion is asked for.
    broker: Option<OwnedFd>,
    heartbeat: Interval,
    sizes: Interval,
    /// How it ended: told once everything it wrote is written.
    end: Option<Event>,
}

impl Talk {
    pub(super) fn new(
        attached: Attached,
        brief: Brief,
        awaits_authority: bool,
        control: OwnedFd,
        streams: Streams,
        words: Sender<Word>,
        heard: Receiver<Word>,
    ) -> Self {
        let mut unwritten = 0;
        let mut writer = |file, which| {
            let (sender, pieces) = channel(WAITING);
            streams::write_out(file, which, pieces, words.clone());
            unwritten += 1;
            sender
        };
        let output = Some(writer(streams.output, Channel::Output));
        let errors = streams.errors.map(|errors| writer(errors, Channel::Errors));
        let terminal = streams.terminal.map(|(master, ours)| {
            // The parent ties the person's terminal to it.
            let _ = Event::Terminal(master).send(control.as_fd());
            ours
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
            awaits_authority,
            is_sidecar_ready: false,
            early_signals: Vec::new(),
            control,
            terminal,
            size: None,
            input: Some(streams.input),
            under_way: 0,
            waiting_input: None,
            output,
            errors,
            unwritten,
            words,
            heard,
            inputs: None,
            broker: None,
            heartbeat: every(HEARTBEAT),
            sizes: every(SIZE),
            end: None,
        }
    }

    /// Hears and answers what is asked of a companion.
    pub(super) fn answer_on(&mut self, broker: OwnedFd, words: Sender<Word>) -> io::Result<()> {
        streams::serve_broker(broker.try_clone()?, words);
        self.broker = Some(broker);
        Ok(())
    }

    /// Whether the command was given the word to begin.
    pub(super) fn has_begun(&self) -> bool {
        self.brief.is_none()
    }

    /// Whether the command has begun and ended.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.end, Some(Event::Ended(_)))
    }

    /// Takes whatever comes next.
    pub(super) async fn slot(&mut self) -> Result<Option<Ended>, Failure> {
        let takes_input = self.waiting_input.is_none() && self.inputs.is_some();
        let inputs = async {
            match &mut self.inputs {
                Some(inputs) => inputs.recv().await,
                None => None,
            }
        };
        tokio::select! {
            word = self.heard.recv() => self.hear(word).await,
            word = inputs, if takes_input => {
                self.take_input(word).await;
                Ok(None)
            }
            // Nothing more is taken of the command's than the caller takes, and meanwhile the parent is still heard.
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
                None => self.lost(),
            },
            _ = self.heartbeat.tick() => {
                self.say(Channel::Alive, &[]).await;
                Ok(None)
            }
            _ = self.sizes.tick(), if self.terminal.is_some() => {
                self.follow_size().await;
                Ok(None)
            }
        }
    }

    /// The container is gone.
    fn lost(&mut self) -> Result<Option<Ended>, Failure> {
        if self.end.is_some() {
            return Ok(Some(Ended::Command));
        }
        let cause = if self.complaint.is_empty() {
            "it ended and did not say how, or its engine has gone".to_owned()
        } else {
            self.complaint.trim().to_owned()
        };
        Err(Failure::new("hear from the agent's container", cause))
    }

    async fn hear(&mut self, word: Option<Word>) -> Result<Option<Ended>, Failure> {
        match word {
            Some(Word::Signal(number)) if self.has_begun() => {
                self.say(Channel::Signal, &number.to_le_bytes()).await;
            }
            Some(Word::Signal(number)) => self.early_signals.push(number),
            Some(Word::SidecarReady) => {
                self.is_sidecar_ready = true;
                self.begin().await;
            }
            Some(Word::Authority(pem)) => {
                self.awaits_authority = false;
                if let Some(brief) = &mut self.brief {
                    brief.authority = Some(pem);
                }
                self.begin().await;
            }
            Some(Word::SidecarGone) => return Ok(Some(Ended::SidecarGone)),
            Some(Word::Asked(wish)) => self.answer(wish).await,
            Some(Word::Closed(which)) => self.say(Channel::Closed, &[which as u8]).await,
            Some(Word::Written) => self.unwritten = self.unwritten.saturating_sub(1),
            Some(Word::ParentGone) | None => return Ok(Some(Ended::Parent)),
            Some(Word::Input(_) | Word::InputEnd) => {}
        }
        Ok(None)
    }

    /// Answers what is asked of a companion, or passes it on; whoever asks may be gone, which is seen elsewhere.
    async fn answer(&mut self, wish: u8) {
        let Some(broker) = &self.broker else { return };
        match wish {
            socket_broker::PROBE if !self.has_begun() => drop(sys::descriptor::send(broker, &[wish, 0], &[])),
            socket_broker::PROBE | socket_broker::STOP => self.say(Channel::Probe, &[wish]).await,
            _ => {}
        }
    }

    /// The word to begin, once all that it needs is there.
    async fn begin(&mut self) {
        if !self.is_sidecar_ready || self.awaits_authority {
            return;
        }
        let Some(brief) = self.brief.take() else { return };
        let mut brief = serde_json::to_vec(&brief).unwrap_or_default();
        // The last frame is a shorter one, by which it is known.
        if brief.len() % LONGEST_FRAME == 0 {
            brief.push(b' ');
        }
        self.say(Channel::Begin, &brief).await;
        self.follow_size().await;
        for number in std::mem::take(&mut self.early_signals) {
            self.say(Channel::Signal, &number.to_le_bytes()).await;
        }
        if let Some(input) = self.input.take() {
            let (sender, inputs) = channel(1);
            streams::read_in(input, sender);
            self.inputs = Some(inputs);
        }
    }

    async fn take_input(&mut self, word: Option<Word>) {
        match word {
            Some(Word::Input(octets)) if self.under_way + octets.len() > WINDOW => {
                self.waiting_input = Some(octets);
            }
            Some(Word::Input(octets)) => {
                self.under_way += octets.len();
                self.say(Channel::Input, &octets).await;
            }
            _ => {
                self.inputs = None;
                self.say(Channel::InputEnd, &[]).await;
            }
        }
    }

    async fn take_frames(&mut self) -> Result<Option<Ended>, Failure> {
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let taken = self.sort_frames(&mut output, &mut errors).await;
        for (writer, octets) in [(&self.output, output), (&self.errors, errors)] {
            if let Some(writer) = writer.as_ref().filter(|_| !octets.is_empty()) {
                // There was room for one, and nobody else writes.
                let _ = writer.try_send(octets);
            }
        }
        taken
    }

    async fn sort_frames(
        &mut self,
        output: &mut Vec<u8>,
        errors: &mut Vec<u8>,
    ) -> Result<Option<Ended>, Failure> {
        loop {
            let (channel, payload) = match self.frames.next_frame() {
                Ok(Some((channel, payload))) => (channel, payload.to_vec()),
                Ok(None) => return Ok(None),
                Err(error) => {
                    return Err(Failure::new("hear from the agent's container", error));
                }
            };
            match channel {
                Channel::Output => output.extend(payload),
                Channel::Errors => errors.extend(payload),
                Channel::Taken => {
                    let taken = payload.try_into().map_or(0, u32::from_le_bytes) as usize;
                    self.under_way = self.under_way.saturating_sub(taken);
                    if let Some(octets) = self.waiting_input.take() {
                        self.take_input(Some(Word::Input(octets))).await;
                    }
                }
                Channel::Probe => {
                    if let (Some(broker), [well]) = (&self.broker, payload.as_slice()) {
                        // A companion that says more than it was asked must not keep its shim waiting.
                        let answer = [socket_broker::PROBE, *well];
                        let _ = rustix::net::send(broker, &answer, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                    }
                }
                Channel::Event => {
                    if let Some(ended) = self.take_event(&payload) {
                        // Podman's containers wait for it; others have ended.
                        if self.lingers {
                            self.say(Channel::Stop, &[]).await;
                        }
                        return Ok(Some(ended));
                    }
                }
                _ => {}
            }
        }
    }

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
            // After the word to begin, which is the first.
            if self.has_begun() {
                self.say(Channel::Size, &payload).await;
            } else {
                self.size = None;
            }
        }
    }

    /// A container that takes nothing any more is found out by what comes of it.
    async fn say(&mut self, channel: Channel, payload: &[u8]) {
        let _ = self.attached.input.write_all(&frame(channel, payload)).await;
        let _ = self.attached.input.flush().await;
    }

    /// Waits until the caller has what the command wrote, and then tells the parent how it ended. The container's streams are
    /// what is left.
    pub(super) async fn close(mut self) -> Attached {
        (self.output, self.errors, self.terminal) = (None, None, None);
        let Some(end) = self.end.take() else { return self.attached };
        let written = async {
            while self.unwritten > 0 {
                match self.heard.recv().await {
                    Some(Word::Written) => self.unwritten -= 1,
                    Some(Word::ParentGone) | None => return,
                    Some(_) => {}
                }
            }
        };
        let _ = tokio::time::timeout(LAST_READ, written).await;
        drop(self.words);
        let _ = end.send(self.control.as_fd());
        self.attached
    }
}
