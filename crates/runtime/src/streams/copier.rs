//! Copies the standard streams, each in a thread of its own, so that a slow reader holds nothing else up.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use sandbox::Signals;

use super::input::Input;
use super::output::{A_MOMENT, Output, Told, Unwritten};
use crate::end_signals::end_asked;

/// The name of a thread that copies an output.
const OUTPUT: &str = "output";
/// How long the last output of a command that was ended from outside may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// The streams to copy.
#[derive(Default)]
pub(crate) struct Copiers {
    pub(super) input: Option<Input>,
    pub(super) outputs: Vec<Output>,
    /// Whether the command has the caller's terminal to read from.
    pub(super) reads_terminal: bool,
}

/// The streams that are being copied.
pub(crate) struct RunningCopiers {
    /// Where anything is copied.
    ends: Option<Ends>,
    threads: Vec<JoinHandle<()>>,
    reads_terminal: bool,
    told: Option<Told>,
    /// Whether the last wait for it was in vain. Until one is not, none waits again, however much there is to tell.
    is_stuck: Cell<bool>,
    /// Whether a thread still waits for its reader.
    is_left: bool,
    unwritten: Receiver<Unwritten>,
}

/// Our ends of the pipes by which the threads are told and tell.
struct Ends {
    /// Closed when the run is over.
    going_on: OwnedFd,
    /// Closed when the readers of the output are given up.
    patient: OwnedFd,
    /// Closed by the threads once none of them is left.
    done: OwnedFd,
}

impl Copiers {
    /// Starts the threads. The run must have begun: its processes are forked from this one, and a fork has one thread.
    pub(crate) fn start(self) -> io::Result<RunningCopiers> {
        let (tell, unwritten) = mpsc::channel();
        let reads_terminal = self.reads_terminal;
        if self.input.is_none() && self.outputs.is_empty() {
            let (ends, threads, told) = (None, Vec::new(), None);
            return Ok(RunningCopiers::of(ends, threads, reads_terminal, told, unwritten));
        }
        let told = self.outputs.iter().find_map(Output::told);
        let (over, going_on) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (given_up, patient) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (done, busy) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let mut threads = Vec::with_capacity(3);
        if let Some(input) = self.input {
            let (over, busy) = (over.try_clone()?, busy.try_clone()?);
            threads.push(thread("input", move || {
                input.carry(over.as_fd());
                drop(busy);
            })?);
        }
        for output in self.outputs {
            let (over, given_up, busy) = (over.try_clone()?, given_up.try_clone()?, busy.try_clone()?);
            let tell = tell.clone();
            threads.push(thread(OUTPUT, move || {
                if let Err(error) = output.carry(over.as_fd(), given_up.as_fd()) {
                    let _ = tell.send(error);
                }
                drop(busy);
            })?);
        }
        let ends = Some(Ends { going_on, patient, done });
        Ok(RunningCopiers::of(ends, threads, reads_terminal, told, unwritten))
    }
}

impl RunningCopiers {
    fn of(
        ends: Option<Ends>,
        threads: Vec<JoinHandle<()>>,
        reads_terminal: bool,
        told: Option<Told>,
        unwritten: Receiver<Unwritten>,
    ) -> Self {
        Self { ends, threads, reads_terminal, told, is_stuck: Cell::default(), is_left: false, unwritten }
    }

    /// Waits until the last output is copied, now that nobody inside writes any more: without bound, unless `signals` ask for an end;
    /// for a moment at most where no signals are given.
    pub(crate) fn finish(&mut self, signals: Option<&Signals>) {
        let Some(Ends { going_on, patient, done }) = self.ends.take() else { return };
        drop(going_on);
        let patience = if signals.is_some() { None } else { Some(PATIENCE) };
        let all_written = is_done(&done, patience, signals);
        drop(patient);
        // A reader that is given up holds no thread up, unless its stream could not be reopened.
        if all_written || is_done(&done, Some(PATIENCE), None) {
            // This process may be forked again from here on.
            self.threads.drain(..).for_each(|thread| drop(thread.join()));
        } else {
            let is_output = |thread: &JoinHandle<()>| thread.thread().name() == Some(OUTPUT);
            self.is_left = self.threads.iter().any(|thread| is_output(thread) && !thread.is_finished());
        }
    }

    /// Waits a moment, until what the command has written where this program tells its messages is passed on.
    pub(crate) fn settle(&self) {
        if let Some(told) = &self.told {
            let moment = if self.is_stuck.get() { Duration::ZERO } else { A_MOMENT };
            self.is_stuck.set(!told.settle(moment));
        }
    }

    /// Whether the command has the caller's terminal to read from.
    pub(crate) fn reads_terminal(&self) -> bool {
        self.reads_terminal
    }

    /// Returns an output of the command that could not be written.
    pub(crate) fn unwritten(&self) -> Option<Unwritten> {
        let told = self.unwritten.try_recv().ok();
        told.or_else(|| self.is_left.then(|| Unwritten::given_up("its output")))
    }
}

/// Waits until no thread is left. Returns whether that is so: false once there is no more patience, or `signals` ask for an end.
fn is_done(done: &OwnedFd, patience: Option<Duration>, signals: Option<&Signals>) -> bool {
    let patience = patience.and_then(|patience| Timespec::try_from(patience).ok());
    let mut ready = vec![PollFd::new(done, PollFlags::IN)];
    ready.extend(signals.map(|signals| PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)));
    loop {
        match rustix::event::poll(&mut ready, patience.as_ref()) {
            Err(Errno::INTR) => {}
            Ok(1..) if !ready[0].revents().is_empty() => return true,
            Ok(1..) if signals.is_some_and(|signals| end_asked(signals).is_none()) => {}
            _ => return false,
        }
    }
}

fn thread(name: &str, carry: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).stack_size(128 * 1024).spawn(carry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_is_given_up_holds_no_thread_up() {
        let (reader, stream) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (output, theirs) = Output::to(stream.as_fd(), "standard output").unwrap();
        let mut running = Copiers { outputs: vec![output], ..Copiers::default() }.start().unwrap();
        rustix::io::ioctl_fionbio(&theirs, true).unwrap();
        // Until nothing more is taken from the pipe: the thread waits for the reader then.
        let fill = || (0..).take_while(|_| rustix::io::write(&theirs, &[b'x'; 4096]).is_ok()).count();
        while fill() > 0 {
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(theirs);
        running.finish(None);
        assert!(running.threads.is_empty(), "it still waits for the reader");
        let lost = running.unwritten().expect("what nobody read is lost");
        assert!(lost.is_given_up() && lost.name == "standard output");
        drop(reader);
    }
}
