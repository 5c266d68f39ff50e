//! Ends companions: those whose image names a stop signal are asked first, then all are killed at once.

use std::time::{Duration, Instant};

use policy::RunId;
use sandbox::{Taken, UndoLog};

use super::running::{Companions, Running};
use super::wait::wait_for;

/// How long companions that were asked to end may take before they are killed.
const GRACE: Duration = Duration::from_secs(2);

impl Companions {
    /// Asks companions whose image names a stop signal to end, and waits a moment for them. The others are not waited for.
    fn ask_to_end(&mut self) {
        for it in self.0.iter().filter(|it| !it.ended) {
            if let Some(signal) = it.image.stop_signal() {
                it.sandbox.signal(signal);
            }
        }
        let deadline = Instant::now() + GRACE;
        let ends = |it: &Running| !it.ended && it.image.stop_signal().is_some();
        while Instant::now() < deadline && self.0.iter().any(ends) {
            let said = self.0.iter().filter(|it| ends(it));
            let lines = said.flat_map(|it| [Some(it.sandbox.events()), it.output.descriptor()]).flatten();
            wait_for(lines, deadline.saturating_duration_since(Instant::now()));
            for it in self.0.iter_mut().filter(|it| ends(it)) {
                // A companion that writes its last output must not block.
                it.output.read();
                let _ = it.end_if_any();
            }
        }
    }
}

impl Companions {
    /// Ends all companions, and removes from the undo log what those at an engine have taken away themselves.
    pub(crate) fn end(&mut self, undo: &mut UndoLog) {
        self.end_all().iter().for_each(|run| undo.engine_is_done(run));
    }

    /// Ends all companions at once, then waits for each: what held them is taken away after this. Returns those at an engine that have
    /// taken everything away themselves.
    fn end_all(&mut self) -> Vec<RunId> {
        self.ask_to_end();
        self.0.iter().for_each(|it| it.sandbox.kill());
        let mut done = Vec::new();
        for mut it in self.0.drain(..) {
            let taken = it.sandbox.wait();
            done.extend(it.name_at_engine.filter(|_| taken == Taken::All));
            it.sandbox.release();
            it.sidecar.end();
        }
        done
    }
}

impl Drop for Companions {
    fn drop(&mut self) {
        self.end_all();
    }
}
