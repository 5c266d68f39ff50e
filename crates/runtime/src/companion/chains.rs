//! The starts of the companions' audit chains, by which the run's own audit names them.

use std::io;
use std::time::{Duration, Instant};

use egress::CompanionChain;
use policy::RunId;

use super::running::{Companions, Running};
use crate::error::Error;
use crate::state::StateDirectory;
use crate::without_waiting::open_regular;

/// How long the first record of a healthy companion may take to arrive: out of a container it comes over a line of its own.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(5);

impl Companions {
    /// Returns each companion with the hash of the first record of its chain.
    ///
    /// # Errors
    /// When an audit has no record: then nothing of that companion is recorded.
    pub(crate) fn chains(&self, state: &StateDirectory, run: &RunId) -> Result<Vec<CompanionChain>, Error> {
        self.0.iter().map(|it| it.chain(state, run)).collect()
    }
}

impl Running {
    fn chain(&self, state: &StateDirectory, run: &RunId) -> Result<CompanionChain, Error> {
        let path = state.audit_of(run, &self.companion.name);
        let first = || egress::first_hash(open_regular(&path)?);
        let until = Instant::now() + PATIENCE;
        let first = loop {
            match first() {
                Ok(None) if Instant::now() < until => std::thread::sleep(LOOK),
                Ok(first) => break first.ok_or_else(|| io::ErrorKind::UnexpectedEof.into()),
                Err(error) => break Err(error),
            }
        };
        let first: Result<_, io::Error> = first;
        let first = first.map_err(|error| self.lost(&format!("its audit has no first record: {error}")))?;
        Ok(CompanionChain { name: self.companion.name.to_string(), image: self.image.digest(), first })
    }
}
