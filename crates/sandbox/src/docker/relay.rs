//! The second thread of the agent's container: octets between the line and the command, and what happened.
//!
//! It never waits for one side alone: what a command does not read is bounded by the window, and what the shim does not take
//! is bounded by not reading more of the command's.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::termios::Winsize;
use sys::{cgroup, descriptor};

use super::mux::{CHUNK, Channel, Frames, WINDOW, frame};
use crate::event::Event;
use crate::{handshake, socket_broker};

/// How long the shim may say nothing, and how long it may take nothing: it says that it is there every few seconds.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same before the word to begin: meanwhile the engine starts the sidecar, on a busy machine. A shim that goes closes the
/// line, also then.
const FIRST_WORD: Timespec = Timespec { tv_sec: 120, tv_nsec: 0 };
/// How long a container that has told its end waits for the shim's word.
const RELEASE: Duration = Duration::from_secs(10);
/// How much may wait to be taken by the shim before no more is read of the command's.
const MOST_WAITING: usize = 4 * CHUNK;

/// Waits until there is something to read of a shim that has given no word to begin yet.
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

/// Both sides, and what is under way between them.
pub(super) struct Relay {
    line_in: OwnedFd,
    line_out: OwnedFd,
    frames: Frames,
    /// When something of the shim's was last read: whatever the command writes meanwhile says nothing of it.
    heard: Instant,
    control: OwnedFd,
    /// Stands for the sidecar towards the supervisor; dropped as soon as that has let it go.
    sidecar: Option<OwnedFd>,
    /// On which a companion's supervisor is asked for its health.
    broker: Option<OwnedFd>,
    /// The command's input, output and errors; none with a terminal.
    input: Option<OwnedFd>,
    output: Option<OwnedFd>,
    errors: Option<OwnedFd>,
    terminal: Option<OwnedFd>,
    /// What the shim has not taken yet.
    to_shim: Vec<u8>,
    /// What the command has not read yet, and whether that is all.
    to_command: Vec<u8>,
    input_ended: bool,
    /// The size that came before there was a terminal.
    size: Option<Winsize>,
    /// How it ended: told once everything it wrote is.
    ended: Option<Vec<u8>>,
}

/// What may be ready.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    LineIn,
    LineOut,
    Control,
    Sidecar,
    SocketBroker,
    Input,
    Output,
    Errors,
    Terminal,
}

impl Relay {
    pub(super) fn new(
        line_in: OwnedFd,
        line_out: OwnedFd,
        frames: Frames,
        control: OwnedFd,
        sidecar: OwnedFd,
        broker: Option<OwnedFd>,
        pipes: Option<[OwnedFd; 3]>,
    ) -> Self {
        let [input, output, errors] = pipes.map_or([None, None, None], |all| all.map(Some));
        Self {
            line_in,
            line_out,
            frames,
            heard: Instant::now(),
            control,
            sidecar: Some(sidecar),
            broker,
            input,
            output,
            errors,
            terminal: None,
            to_shim: Vec::new(),
            to_command: Vec::new(),
            input_ended: false,
            size: None,
            ended: None,
        }
    }

    /// Moves until the command has ended and all of it is told, or the shim is gone. One that lingers then waits for a last word.
    pub(super) fn run(mut self, lingers: bool) -> io::Result<()> {
        self.take_frames()?;
        loop {
            if self.is_done() {
                let Some(ended) = self.ended.take() else { return self.flush() };
                self.tell_end(&ended);
                self.flush()?;
                return if lingers { self.await_release() } else { Ok(()) };
            }
            for place in self.wait()? {
                match place {
                    Place::LineIn => self.read_line()?,
                    Place::LineOut => self.give_shim()?,
                    Place::Control => self.take_event()?,
                    Place::Sidecar => self.sidecar = None,
                    Place::SocketBroker => self.take_health(),
                    Place::Input => self.give_command(),
                    Place::Output => move_out(&mut self.output, Channel::Output, &mut self.to_shim),
                    Place::Errors => move_out(&mut self.errors, Channel::Errors, &mut self.to_shim),
                    Place::Terminal => self.use_terminal(),
                }
            }
        }
    }

    /// Whether there is nothing more to come: the supervisor has said its last word, and nobody can write any more.
    fn is_done(&self) -> bool {
        self.ended.is_some() && self.output.is_none() && self.errors.is_none() && self.terminal.is_none()
    }

    fn wait(&self) -> io::Result<Vec<Place>> {
        let mut all: Vec<(Place, BorrowedFd<'_>, PollFlags)> =
            vec![(Place::LineIn, self.line_in.as_fd(), PollFlags::IN)];
        let has_room = self.to_shim.len() < MOST_WAITING;
        let has_input = !self.to_command.is_empty();
        let others = [
            (Place::LineOut, (!self.to_shim.is_empty()).then_some(&self.line_out), PollFlags::OUT),
            (Place::Control, self.ended.is_none().then_some(&self.control), PollFlags::IN),
            (Place::Sidecar, self.sidecar.as_ref(), PollFlags::IN),
            (Place::SocketBroker, self.broker.as_ref().filter(|_| has_room), PollFlags::IN),
            (Place::Input, self.input.as_ref().filter(|_| has_input), PollFlags::OUT),
            (Place::Output, self.output.as_ref().filter(|_| has_room), PollFlags::IN),
            (Place::Errors, self.errors.as_ref().filter(|_| has_room), PollFlags::IN),
        ];
        all.extend(others.into_iter().filter_map(|(place, fd, flags)| Some((place, fd?.as_fd(), flags))));
        let mut wish = PollFlags::empty();
        wish.set(PollFlags::IN, has_room);
        wish.set(PollFlags::OUT, has_input);
        all.extend(self.terminal.as_ref().map(|terminal| (Place::Terminal, terminal.as_fd(), wish)));
        let mut fds: Vec<PollFd<'_>> =
            all.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        let left = PATIENCE.saturating_sub(self.heard.elapsed());
        let ready: Vec<Place> = match rustix::event::poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
            Ok(_) => {
                let ready = all.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
                ready.map(|((place, ..), _)| *place).collect()
            }
            Err(Errno::INTR) => Vec::new(),
            Err(errno) => return Err(errno.into()),
        };
        // What it has said is heard, however late: a container that was paused finds it waiting.
        if self.heard.elapsed() >= PATIENCE && !ready.contains(&Place::LineIn) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(ready)
    }

    fn read_line(&mut self) -> io::Result<()> {
        let mut buffer = [0; CHUNK];
        match rustix::io::read(&self.line_in, &mut buffer) {
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
                // What it writes there from now on is a broken pipe, as it would be without us in between.
                Channel::Closed if payload == [Channel::Output as u8] => self.output = None,
                Channel::Closed => self.errors = None,
                Channel::Alive => {}
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        self.give_command();
        Ok(())
    }

    fn follow_size(&self) {
        if let (Some(terminal), Some(size)) = (&self.terminal, self.size) {
            let _ = rustix::termios::tcsetwinsize(terminal, size);
        }
    }

    /// Hands waiting input over, as much as is taken, and says how much that was.
    fn give_command(&mut self) {
        let target = self.terminal.as_ref().or(self.input.as_ref());
        let taken = match target.map(|to| rustix::io::write(to, &self.to_command)) {
            _ if self.to_command.is_empty() => 0,
            Some(Ok(taken)) => taken,
            Some(Err(Errno::AGAIN | Errno::INTR)) => 0,
            // Nobody reads it any more, or not yet: with a terminal the command begins later.
            Some(Err(_)) => self.to_command.len(),
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

    fn give_shim(&mut self) -> io::Result<()> {
        match rustix::io::write(&self.line_out, &self.to_shim) {
            Ok(taken) => {
                self.to_shim.drain(..taken);
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn take_event(&mut self) -> io::Result<()> {
        let Some(event) = Event::receive(self.control.as_fd())? else {
            // The supervisor is done, and had said how it ended if anything did.
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

    /// Tells the shim what the supervisor says of the companion's health, until that is gone.
    fn take_health(&mut self) {
        let Some(broker) = &self.broker else { return };
        let mut buffer = [0; 2];
        match descriptor::receive(broker, &mut buffer) {
            Ok(([socket_broker::PROBE, well], _)) => self.to_shim.extend(frame(Channel::Probe, &[*well])),
            _ => self.broker = None,
        }
    }

    fn use_terminal(&mut self) {
        self.give_command();
        move_out(&mut self.terminal, Channel::Output, &mut self.to_shim);
    }

    fn tell_end(&mut self, ended: &[u8]) {
        let used = Event::Used(own_usage());
        self.to_shim.extend(frame(Channel::Event, &used.message().0));
        if !ended.is_empty() {
            self.to_shim.extend(frame(Channel::Event, ended));
        }
    }

    /// Waits until the shim has heard how it ended, or is gone, and not for ever.
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
            match rustix::event::poll(&mut [PollFd::new(&self.line_in, PollFlags::IN)], left.as_ref()) {
                Ok(0) => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            match rustix::io::read(&self.line_in, &mut buffer) {
                Ok(0) => return Ok(()),
                Ok(length) => self.frames.feed(&buffer[..length]),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Everything that is left goes to the shim.
    fn flush(&mut self) -> io::Result<()> {
        while !self.to_shim.is_empty() {
            let mut ready = [PollFd::new(&self.line_out, PollFlags::OUT)];
            match rustix::event::poll(&mut ready, Timespec::try_from(PATIENCE).ok().as_ref()) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) | Err(Errno::INTR) => self.give_shim()?,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

/// Reads of the command's once, and lets go of what has ended: of a terminal, that its other side is closed.
fn move_out(from: &mut Option<OwnedFd>, channel: Channel, to_shim: &mut Vec<u8>) {
    let Some(open) = from else { return };
    let mut buffer = [0; CHUNK];
    match rustix::io::read(open, &mut buffer) {
        Ok(length @ 1..) => to_shim.extend(frame(channel, &buffer[..length])),
        Err(Errno::AGAIN | Errno::INTR) => {}
        Ok(_) | Err(_) => *from = None,
    }
}

/// A size, as it comes over the line.
fn size_of(payload: &[u8]) -> Option<Winsize> {
    let [a, b, c, d] = payload.try_into().ok()?;
    let (ws_row, ws_col) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
    Some(Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 })
}

/// What this container has used, read where an engine shows it its own control group.
fn own_usage() -> cgroup::Usage {
    let base = Path::new("/sys/fs/cgroup");
    let directories: Vec<PathBuf> = if base.join("memory").is_dir() {
        ["memory", "cpu", "pids"].map(|controller| base.join(controller)).to_vec()
    } else {
        vec![base.to_path_buf()]
    };
    cgroup::usage_of(&directories)
}

#[cfg(test)]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    /// How long a command writes, a little every now and then.
    const WRITES: Duration = Duration::from_secs(3);
    const PAUSE: Duration = Duration::from_millis(50);

    /// What becomes of a command that writes all the time, and when, where the shim was last heard so long before its time is over
    /// and then says that it is there, or nothing.
    fn relayed(left: Duration, says: &[u8]) -> (io::Result<()>, Duration) {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).unwrap();
        let ((line_in, shim), (taken, line_out)) = (pipe(), pipe());
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
        let pipes = Some([input, output, errors]);
        let mut relay = Relay::new(line_in, line_out, Frames::default(), control, sidecar, None, pipes);
        relay.heard = began.checked_sub(PATIENCE).unwrap() + left;
        let ended = relay.run(false);
        let took = began.elapsed();
        drop((shim, taken));
        writes.join().unwrap();
        (ended, took)
    }

    #[test]
    fn a_command_that_writes_all_the_time_does_not_outlast_a_keeper_that_says_nothing() {
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
