//! Ends companions: those whose image names a stop signal are asked first, then all are killed at once.

use std::time::{Duration, Instant};

use egress::Summary;
use policy::{Hostname, RunId};
use sandbox::Taken;

use super::running::{Companions, Running, Stage};
use super::wait::wait_for;
use crate::report::Report;
use crate::run_journal::RunJournal;

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

/// What is left to say of a companion that has been ended.
struct Ended {
    name: Hostname,
    /// The last message of its sidecar. One whose sandbox was never made may not have said any.
    summary: Option<Summary>,
    begun: bool,
    /// Its run id at an engine, if it has taken everything away itself.
    gone_at_engine: Option<RunId>,
}

impl Companions {
    /// Ends all companions, notes what is missing from their audits, and removes from the undo log what those at an engine have taken away
    /// themselves.
    pub(crate) fn end(&mut self, journal: &mut RunJournal, report: &mut dyn FnMut(Report<'_>)) {
        for Ended { name, summary, begun, gone_at_engine } in self.end_all(report) {
            if begun || summary.is_some() {
                journal.note_missing_records(Some(&name), summary.as_ref(), report);
            }
            gone_at_engine.iter().for_each(|run| journal.undo.engine_is_done(run));
        }
    }

    /// Ends all companions at once, then waits for each and its sidecar's last message: what held them is taken away after this.
    fn end_all(&mut self, report: &mut dyn FnMut(Report<'_>)) -> Vec<Ended> {
        self.ask_to_end();
        self.0.iter().for_each(|it| it.sandbox.kill());
        let mut ended = Vec::new();
        for mut it in self.0.drain(..) {
            let taken = it.sandbox.wait();
            it.sandbox.stop_watching_covers();
            // As long as the sidecar lives, it writes records that wait.
            it.await_summary(report);
            it.sidecar.end();
            ended.push(Ended {
                name: it.companion.name,
                summary: it.summary,
                begun: !matches!(it.stage, Stage::Making(_)),
                gone_at_engine: it.name_at_engine.filter(|_| taken == Taken::All),
            });
        }
        ended
    }
}

impl Drop for Companions {
    fn drop(&mut self) {
        self.end_all(&mut |_| {});
    }
}
