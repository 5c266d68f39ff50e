//! Tells why a run failed. The sandbox and the sidecar end together, and why one ended may be told after the end of the other is seen.

use rustix::event::{PollFd, PollFlags, Timespec};
use sandbox::Failure;

use super::{State, Watch};
use crate::error::Error;

/// How long a sidecar may take to end after its sandbox.
const LAST_WORD: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

impl Watch<'_> {
    /// Returns why a run failed. What the sidecar told of its own end comes before what others saw of it, and was told before that end.
    pub(super) fn cause(&mut self, error: Error, state: &mut State) -> Error {
        if matches!(error, Error::Unprotected { .. }) {
            return error;
        }
        self.take_notices(state);
        state.failed.take().unwrap_or(error)
    }

    /// Returns why a sandbox ended without saying so.
    pub(super) fn lost(&mut self, state: &mut State) -> Error {
        if self.lost_its_sidecar(state) {
            return Error::SidecarLost;
        }
        match state.started {
            true => Error::SandboxLost,
            false => {
                let failure =
                    Failure::new("start", "the sandbox ended before it told that the command had begun");
                sandbox::Error::Step(failure).into()
            }
        }
    }

    /// Whether the sandbox ended because its sidecar had. A sidecar that outlives its sandbox ends as well, but sends a last message.
    fn lost_its_sidecar(&mut self, state: &mut State) -> bool {
        let mut gone = [PollFd::from_borrowed_fd(self.sidecar.gone(), PollFlags::IN)];
        // Its sockets are closed a moment before the process is gone.
        let is_gone = rustix::event::poll(&mut gone, Some(&LAST_WORD)).is_ok_and(|ready| ready > 0);
        self.take_notices(state);
        state.summary.is_none() && is_gone
    }
}
