//! Checks that the protected paths of a running sandbox are still what they were, with a rest between two checks.

use std::time::{Duration, Instant};

use sandbox::Started;

use crate::error::Error;

/// The least time between two checks. A command that makes and removes files without end makes every check due.
const INTERVAL: Duration = Duration::from_millis(20);

/// How long a check waits for the server of a file system: whoever waits for the run waits as well.
const PATIENCE: Duration = Duration::from_millis(100);
/// The same for the last checks, behind which there is none: as long as it takes. The command has ended, and what is given back to that
/// file system then waits for the server as well.
pub(crate) const AT_THE_END: Duration = Duration::MAX;

/// When the last check was.
#[derive(Debug, Default)]
pub(crate) struct ProtectionChecks {
    next: Option<Instant>,
}

impl ProtectionChecks {
    /// Returns when the next check is due, if that is later than now.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next.filter(|next| *next > Instant::now())
    }

    /// Checks the protected paths.
    ///
    /// # Errors
    /// When one of them was replaced.
    pub(crate) fn check(&mut self, sandbox: &Started) -> Result<(), Error> {
        self.check_within(PATIENCE, sandbox)
    }

    fn check_within(&mut self, patience: Duration, sandbox: &Started) -> Result<(), Error> {
        self.next = Some(Instant::now() + INTERVAL);
        match sandbox.unprotected(patience) {
            paths if paths.is_empty() => Ok(()),
            paths => Err(Error::Unprotected { paths: paths.into_iter().map(Into::into).collect() }),
        }
    }

    /// Checks once more at the end of a run, if a change since the last check may have gone unseen.
    ///
    /// # Errors
    /// When one of them was replaced.
    pub(crate) fn check_at_end(&mut self, sandbox: &Started) -> Result<(), Error> {
        if self.next.is_some() { self.check_within(AT_THE_END, sandbox) } else { Ok(()) }
    }
}
