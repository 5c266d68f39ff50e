//! The second thread of the agent's container: it carries octets and events between the shim and the command.
//!
//! It never blocks on one side alone. Unread input of the command is bounded by the window; output the shim does not take is
//! bounded because the relay then reads no more of it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::termios::Winsize;
use sys::{descriptor, poll};

use super::limit_check::{LimitRequest, own_usage};
use super::mux::{CHUNK, Channel, Frames, WINDOW, frame, size_of};
use crate::event::Event;
use crate::{handshake, socket_broker};

/// How long the shim may send nothing, and how long it may take nothing: it sends a heartbeat every few seconds.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the shim may send nothing before the brief: meanwhile the engine starts the sidecar. One that ends closes the stream anyway.
const FIRST_WORD: Timespec = Timespec { tv_sec: 120, tv_nsec: 0 };
/// How long a container that has reported its end waits for the shim to let it go.
const RELEASE: Duration = Duration::from_secs(10);
/// How many octets may wait for the shim before the relay reads no more output.
const MOST_WAITING: usize = 4 * CHUNK;

/// Waits until the shim, which has not sent a whole brief yet, has sent something.
pub(super) fn await_readable(input: &OwnedFd) -> io::Result<()> {
    let mut ready = [PollFd::new(input, PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut ready, Some(&FIRST_WORD)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The container's ends of its streams to the shim, and the frames read so far.
pub(super) struct ShimStreams {
    pub(super) input: OwnedFd,
    pub(super) output: OwnedFd,
    pub(super) frames: Frames,
}

/// The relay's ends of the sockets to the supervisor in the first thread.
pub(super) struct SupervisorLinks {
    pub(super) control: OwnedFd,
    /// Stands for the sidecar.
    pub(super) sidecar: OwnedFd,
    /// Asks for the health of a companion.
    pub(super) broker: Option<OwnedFd>,
}

/// The relay's ends of the command's pipes.
pub(super) struct CommandPipes {
    pub(super) input: OwnedFd,
    pub(super) output: OwnedFd,
    pub(super) errors: OwnedFd,
}

/// What a relay does after it has reported the end of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterEnd {
    /// Waits for the shim to let it go.
    Linger,
    Leave,
}

/// Both sides, and the octets in flight between them.
pub(super) struct Relay {
    shim_input: OwnedFd,
    shim_output: OwnedFd,
    frames: Frames,
    /// When the shim last sent something. The command's output says nothing about the shim.
    heard: Instant,
    control: OwnedFd,
    /// Stands for the sidecar towards the supervisor; dropped as soon as the supervisor has closed its end.
    sidecar: Option<OwnedFd>,
    /// Asks a companion's supervisor for its health.
    broker: Option<OwnedFd>,
    /// The command's input, output and errors; none with a terminal.
    input: Option<OwnedFd>,
    output: Option<OwnedFd>,
    errors: Option<OwnedFd>,
    terminal: Option<OwnedFd>,
    /// Octets the shim has not taken yet.
    to_shim: Vec<u8>,
    /// Input the command has not read yet.
    to_command: Vec<u8>,
    /// Whether no more input follows.
    input_ended: bool,
    /// The size that came before there was a terminal.
    size: Option<Winsize>,
    /// The message that says how the command ended; sent after all its output.
    ended: Option<Vec<u8>>,
    /// The limits the engine was asked for; without them no usage is sent.
    pub(super) limits: Option<LimitRequest>,
}

/// A descriptor that the relay polls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    ShimInput,
    ShimOutput,
    Control,
    Sidecar,
    SocketBroker,
    Input,
    Output,
    Errors,
    Terminal,
}

impl Relay {
    /// Makes a relay; without `pipes` the supervisor will hand it a terminal.
    pub(super) fn new(shim: ShimStreams, supervisor: SupervisorLinks, pipes: Option<CommandPipes>) -> Self {
        let (input, output, errors) = match pipes {
            Some(pipes) => (Some(pipes.input), Some(pipes.output), Some(pipes.errors)),
            None => (None, None, None),
        };
        Self {
            shim_input: shim.input,
            shim_output: shim.output,
            frames: shim.frames,
            heard: Instant::now(),
            control: supervisor.control,
            sidecar: Some(supervisor.sidecar),
            broker: supervisor.broker,
            input,
            output,
            errors,
            terminal: None,
            to_shim: Vec::new(),
            to_command: Vec::new(),
            input_ended: false,
            size: None,
            ended: None,
            limits: None,
        }
    }

    /// Carries octets until the command has ended and everything is sent, or the shim is gone.
    pub(super) fn run(mut self, after_end: AfterEnd) -> io::Result<()> {
        self.take_frames()?;
        loop {
            if self.is_done() {
                let Some(ended) = self.ended.take() else { return self.flush() };
                self.report_end(&ended);
                self.flush()?;
                return match after_end {
                    AfterEnd::Linger => self.await_release(),
                    AfterEnd::Leave => Ok(()),
                };
            }
            for source in self.wait()? {
                match source {
                    Source::ShimInput => self.read_shim()?,
                    Source::ShimOutput => self.write_shim()?,
                    Source::Control => self.take_event()?,
                    Source::Sidecar => self.sidecar = None,
                    Source::SocketBroker => self.take_health(),
                    Source::Input => self.write_command(),
                    Source::Output => move_out(&mut self.output, Channel::Output, &mut self.to_shim),
                    Source::Errors => move_out(&mut self.errors, Channel::Errors, &mut self.to_shim),
                    Source::Terminal => self.use_terminal(),
                }
            }
        }
    }

    /// Whether nothing more can come: the supervisor has reported the end, and no writer of the output is left.
    fn is_done(&self) -> bool {
        self.ended.is_some() && self.output.is_none() && self.errors.is_none() && self.terminal.is_none()
    }

    /// Waits until some source is ready.
    ///
    /// # Errors
    /// When the shim has been silent for too long.
    fn wait(&self) -> io::Result<Vec<Source>> {
        let has_room = self.to_shim.len() < MOST_WAITING;
        let has_input = !self.to_command.is_empty();
        let mut terminal_events = PollFlags::empty();
        terminal_events.set(PollFlags::IN, has_room);
        terminal_events.set(PollFlags::OUT, has_input);
        let all = [
            (Source::ShimInput, Some(&self.shim_input), PollFlags::IN),
            (Source::ShimOutput, (!self.to_shim.is_empty()).then_some(&self.shim_output), PollFlags::OUT),
            (Source::Control, self.ended.is_none().then_some(&self.control), PollFlags::IN),
            (Source::Sidecar, self.sidecar.as_ref(), PollFlags::IN),
            (Source::SocketBroker, self.broker.as_ref().filter(|_| has_room), PollFlags::IN),
            (Source::Input, self.input.as_ref().filter(|_| has_input), PollFlags::OUT),
            (Source::Output, self.output.as_ref().filter(|_| has_room), PollFlags::IN),
            (Source::Errors, self.errors.as_ref().filter(|_| has_room), PollFlags::IN),
            (Source::Terminal, self.terminal.as_ref(), terminal_events),
        ];
        let polled = all.into_iter().filter_map(|(source, fd, events)| Some((source, fd?.as_fd(), events)));
        let left = PATIENCE.saturating_sub(self.heard.elapsed());
        let ready = poll::wait(&polled.collect::<Vec<_>>(), Some(left))?;
        // Unread input counts, however late: a container that was paused finds it waiting.
        if self.heard.elapsed() >= PATIENCE && !ready.contains(&Source::ShimInput) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(ready)
    }

    fn read_shim(&mut self) -> io::Result<()> {
        let mut buffer = [0; CHUNK];
        match rustix::io::read(&self.shim_input, &mut buffer) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                self.heard = Instant::now();
                self.frames.feed(&buffer[..length]);
                self.take_frames()
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn take_frames(&mut self) -> io::Result<()> {
        while let Some((channel, payload)) = self.frames.next_frame()? {
            match channel {
                Channel::Input if self.to_command.len() + payload.len() <= WINDOW => {
                    self.to_command.extend(payload);
                }
                Channel::InputEnd => self.input_ended = true,
                Channel::Signal => {
                    if let Ok(number) = payload.try_into() {
                        let _ = handshake::send_signal(self.control.as_fd(), i32::from_le_bytes(number));
                    }
                }
                Channel::Size => {
                    self.size = size_of(payload);
                    self.follow_size();
                }
                Channel::Probe => {
                    if let (Some(broker), [socket_broker::PROBE | socket_broker::STOP]) =
                        (&self.broker, payload)
                    {
                        let _ = descriptor::send(broker, payload, &[]);
                    }
                }
                // The command's further writes fail with EPIPE, as they would without a relay; its terminal is hung up.
                Channel::Closed if payload == [Channel::Output as u8] => {
                    (self.output, self.terminal) = (None, None);
                }
                Channel::Closed => self.errors = None,
                Channel::Alive => {}
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        self.write_command();
        Ok(())
    }

    fn follow_size(&self) {
        if let (Some(terminal), Some(size)) = (&self.terminal, self.size) {
            let _ = rustix::termios::tcsetwinsize(terminal, size);
        }
    }

    /// Writes waiting input to the command, and acknowledges what the command took.
    fn write_command(&mut self) {
        let target = self.terminal.as_ref().or(self.input.as_ref());
        let taken = match target.map(|to| rustix::io::write(to, &self.to_command)) {
            _ if self.to_command.is_empty() => 0,
            Some(Ok(taken)) => taken,
            Some(Err(Errno::AGAIN | Errno::INTR)) => 0,
            // Nobody reads it any more.
            Some(Err(_)) => self.to_command.len(),
            // With a terminal the command begins later: nobody reads it yet.
            None if self.ended.is_none() && self.input.is_none() && self.errors.is_none() => 0,
            None => self.to_command.len(),
        };
        if taken > 0 {
            self.to_command.drain(..taken);
            self.to_shim.extend(frame(Channel::Taken, &(taken as u32).to_le_bytes()));
        }
        if self.input_ended && self.to_command.is_empty() {
            self.input = None;
        }
    }

    fn write_shim(&mut self) -> io::Result<()> {
        match rustix::io::write(&self.shim_output, &self.to_shim) {
            Ok(taken) => {
                self.to_shim.drain(..taken);
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Receives an event of the supervisor.
    fn take_event(&mut self) -> io::Result<()> {
        let Some(event) = Event::receive(self.control.as_fd())? else {
            // The supervisor is done, and has reported how the command ended if one had begun.
            self.ended.get_or_insert_default();
            self.input = None;
            return Ok(());
        };
        match event {
            Event::Terminal(master) => {
                rustix::io::ioctl_fionbio(&master, true)?;
                self.terminal = Some(master);
                self.follow_size();
            }
            Event::Ended(_) | Event::NotExecuted { .. } | Event::Failed(_) => {
                self.ended = Some(event.message().0);
                self.input = None;
            }
            Event::Started { .. } | Event::SetUp { .. } | Event::Used(_) => {
                self.to_shim.extend(frame(Channel::Event, &event.message().0));
            }
        }
        Ok(())
    }

    /// Passes the supervisor's word on the companion's health to the shim. A supervisor that is gone is not polled again.
    fn take_health(&mut self) {
        let Some(broker) = &self.broker else { return };
        let mut buffer = [0; 2];
        match descriptor::receive(broker, &mut buffer) {
            Ok(([socket_broker::PROBE, well], _)) => self.to_shim.extend(frame(Channel::Probe, &[*well])),
            _ => self.broker = None,
        }
    }

    /// Writes input to the terminal, and reads output from it.
    fn use_terminal(&mut self) {
        self.write_command();
        move_out(&mut self.terminal, Channel::Output, &mut self.to_shim);
    }

    /// Sends the container's resource usage, and then how the command ended.
    fn report_end(&mut self, ended: &[u8]) {
        let used = Event::Used(own_usage(self.limits.as_ref()));
        self.to_shim.extend(frame(Channel::Event, &used.message().0));
        if !ended.is_empty() {
            self.to_shim.extend(frame(Channel::Event, ended));
        }
    }

    /// Waits, with a bound, until the shim lets the container go or is gone.
    fn await_release(&mut self) -> io::Result<()> {
        let until = Instant::now() + RELEASE;
        let mut buffer = [0; CHUNK];
        loop {
            while let Some((channel, _)) = self.frames.next_frame()? {
                if channel == Channel::Stop {
                    return Ok(());
                }
            }
            let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
            match rustix::event::poll(&mut [PollFd::new(&self.shim_input, PollFlags::IN)], left.as_ref()) {
                Ok(0) => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            match rustix::io::read(&self.shim_input, &mut buffer) {
                Ok(0) => return Ok(()),
                Ok(length) => self.frames.feed(&buffer[..length]),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Writes everything that is left to the shim.
    fn flush(&mut self) -> io::Result<()> {
        while !self.to_shim.is_empty() {
            let mut ready = [PollFd::new(&self.shim_output, PollFlags::OUT)];
            match rustix::event::poll(&mut ready, Timespec::try_from(PATIENCE).ok().as_ref()) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) | Err(Errno::INTR) => self.write_shim()?,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

/// Reads a piece of the command's output, and closes a stream that has ended. A terminal whose other side is closed fails to read.
fn move_out(from: &mut Option<OwnedFd>, channel: Channel, to_shim: &mut Vec<u8>) {
    let Some(open) = from else { return };
    let mut buffer = [0; CHUNK];
    match rustix::io::read(open, &mut buffer) {
        Ok(length @ 1..) => to_shim.extend(frame(channel, &buffer[..length])),
        Err(Errno::AGAIN | Errno::INTR) => {}
        Ok(_) | Err(_) => *from = None,
    }
}

#[cfg(test)]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    /// How long the command writes, and how often.
    const WRITES: Duration = Duration::from_secs(3);
    const PAUSE: Duration = Duration::from_millis(50);

    /// Relays a command that writes all the time, with `left` to go until the shim counts as silent, after the shim has sent
    /// `says`. Returns the relay's result and how long it ran.
    fn relayed(left: Duration, says: &[u8]) -> (io::Result<()>, Duration) {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).unwrap();
        let ((shim_input, shim), (taken, shim_output)) = (pipe(), pipe());
        let ((input_theirs, input), (output, output_theirs), (errors, errors_theirs)) =
            (pipe(), pipe(), pipe());
        let ((control, supervisor), (sidecar, sidecar_theirs)) =
            (descriptor::message_pair().unwrap(), descriptor::message_pair().unwrap());
        let began = Instant::now();
        let writes = std::thread::spawn(move || {
            let _open = (input_theirs, errors_theirs, supervisor, sidecar_theirs);
            while began.elapsed() < WRITES && rustix::io::write(&output_theirs, b".").is_ok() {
                std::thread::sleep(PAUSE);
            }
        });
        rustix::io::write(&shim, says).unwrap();
        let shim_streams = ShimStreams { input: shim_input, output: shim_output, frames: Frames::default() };
        let links = SupervisorLinks { control, sidecar, broker: None };
        let mut relay = Relay::new(shim_streams, links, Some(CommandPipes { input, output, errors }));
        relay.heard = began.checked_sub(PATIENCE).unwrap() + left;
        let ended = relay.run(AfterEnd::Leave);
        let took = began.elapsed();
        drop((shim, taken));
        writes.join().unwrap();
        (ended, took)
    }

    #[test]
    fn a_terminal_whose_output_nobody_takes_is_hung_up() {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).unwrap();
        let ((shim_input, shim), (_taken, shim_output), (_room, master)) = (pipe(), pipe(), pipe());
        let pair = || descriptor::message_pair().unwrap();
        let ((control, _supervisor), (sidecar, _sidecar_theirs)) = (pair(), pair());
        let shim_streams = ShimStreams { input: shim_input, output: shim_output, frames: Frames::default() };
        let mut relay = Relay::new(shim_streams, SupervisorLinks { control, sidecar, broker: None }, None);
        relay.terminal = Some(master);
        for (channel, is_open) in [(Channel::Errors, true), (Channel::Output, false)] {
            rustix::io::write(&shim, &frame(Channel::Closed, &[channel as u8])).unwrap();
            relay.read_shim().unwrap();
            assert_eq!(relay.terminal.is_some(), is_open);
        }
    }

    #[test]
    fn a_command_that_writes_all_the_time_does_not_outlast_a_shim_that_says_nothing() {
        let left = Duration::from_millis(500);
        let (ended, took) = relayed(left, b"");
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(took >= left && took < WRITES, "{took:?}");
        // Heard in time, or too late but heard: the command goes on until its own end.
        for left in [left, Duration::ZERO] {
            let (ended, took) = relayed(left, &frame(Channel::Alive, b""));
            assert!(ended.is_ok() && took >= WRITES, "{ended:?} after {took:?}");
        }
    }
}
