//! How companions end: asked to where their image says how, and then made to, all at once.

use std::time::{Duration, Instant};

use policy::RunId;
use sandbox::{Taken, UndoLog};

use super::running::{Companions, Running};
use super::wait::wait_for;

/// How long those that were asked to end may take before they are made to.
const GRACE: Duration = Duration::from_secs(2);

impl Companions {
    /// Asks those to end whose image says how, and leaves them a moment for it. Of others nothing outlasts their end, so it is
    /// not waited for.
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
                // One that writes its last words must not wait for somebody to read them.
                it.output.read();
                let _ = it.end_if_any();
            }
        }
    }
}

impl Companions {
    /// Ends them, and strikes out what an engine had of those that have taken it away.
    pub(crate) fn end(&mut self, undo: &mut UndoLog) {
        self.end_all().iter().for_each(|run| undo.engine_is_done(run));
    }

    /// Ends them all at once, then waits for each: what held them is taken away after this. Those that have taken away what an
    /// engine had of them are named.
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
