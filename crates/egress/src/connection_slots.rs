//! How many connections one sidecar serves at once. More wait to be accepted. With what is read ahead of each this bounds its
//! memory, and where it may open few files, its descriptors: a sidecar without any could not even say that it is alive.

use std::cell::OnceCell;
use std::rc::Rc;

use rustix::process::{Resource, getrlimit};
use tokio::sync::Semaphore;

use crate::idle;

/// Connections of all doors.
const MOST: usize = 1024;
/// More of them that the gateway's doors alone take, so that it answers while the proxy is full.
const MOST_KEPT: usize = 64;
/// The same of connections from outside to one port, which take no place of the command's or of another port.
const MOST_INBOUND: usize = 128;
/// Connections to upstreams that wait for another request.
const MOST_IDLE: usize = 64;
/// Each door holds a place for whoever comes next, and there are five.
const FEWEST: usize = 12;
/// Descriptors that are no connection's: listeners, the audit, the platform, the kernel's queues of events.
const OTHER_DESCRIPTORS: u64 = 32;

thread_local! {
    static BOUNDS: Bounds = Bounds::within(getrlimit(Resource::Nofile).current);
    static PLACES: OnceCell<[Rc<Semaphore>; 2]> = const { OnceCell::new() };
}

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    common: usize,
    kept: usize,
    idle: usize,
}

impl Bounds {
    /// Of a process that may have so many descriptors. A connection takes two, one to the agent and one to the upstream.
    fn within(descriptors: Option<u64>) -> Self {
        let Some(descriptors) = descriptors else {
            return Self { common: MOST, kept: MOST_KEPT, idle: MOST_IDLE };
        };
        let left = usize::try_from(descriptors.saturating_sub(OTHER_DESCRIPTORS)).unwrap_or(usize::MAX);
        // Two for each place, and one idle for four places.
        let all = (left / 9 * 4).clamp(FEWEST, MOST + MOST_KEPT);
        let kept = (all / 8).clamp(2, MOST_KEPT);
        Self { common: (all - kept).min(MOST), kept, idle: (all / 4).min(MOST_IDLE) }
    }
}

/// How many connections to upstreams may wait for another request.
pub(crate) fn most_idle() -> usize {
    BOUNDS.with(|bounds| bounds.idle)
}

/// The places that one door gives.
#[derive(Clone)]
pub(crate) struct ConnectionSlots {
    first: Rc<Semaphore>,
    /// What it gives when there are no others.
    kept: Option<Rc<Semaphore>>,
}

impl ConnectionSlots {
    /// Those that all doors share.
    pub(crate) fn common() -> Self {
        Self { first: shared(0), kept: None }
    }

    /// Those, and some that are kept for the gateway's doors.
    pub(crate) fn gateway() -> Self {
        Self { first: shared(0), kept: Some(shared(1)) }
    }

    /// Those of one port that is reached from outside.
    pub(crate) fn inbound() -> Self {
        let most = BOUNDS.with(|bounds| bounds.common.min(MOST_INBOUND));
        Self { first: Rc::new(Semaphore::new(most)), kept: None }
    }

    /// Waits for one.
    pub(crate) async fn take(&self) -> ConnectionPermit {
        let Some(kept) = &self.kept else { return ConnectionPermit::of(&self.first).await };
        tokio::select! {
            biased;
            place = ConnectionPermit::of(&self.first) => place,
            place = ConnectionPermit::of(kept) => place,
        }
    }
}

/// The places of this thread's sidecar.
fn shared(at: usize) -> Rc<Semaphore> {
    let made = || BOUNDS.with(|it| [it.common, it.kept].map(|many| Rc::new(Semaphore::new(many))));
    PLACES.with(|places| Rc::clone(&places.get_or_init(made)[at]))
}

/// A place among the connections that are served at once, given back when it is dropped.
pub(crate) struct ConnectionPermit(Rc<Semaphore>);

impl ConnectionPermit {
    async fn of(places: &Rc<Semaphore>) -> Self {
        if let Ok(permit) = places.acquire().await {
            permit.forget();
        }
        Self(Rc::clone(places))
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.add_permits(1);
        idle::touch();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_descriptors_are_few_places() {
        let most = Bounds { common: 1024, kept: 64, idle: 64 };
        assert_eq!(Bounds::within(None), most);
        assert_eq!(Bounds::within(Some(8192)), most);
        for descriptors in [64, 100, 256, 1024, 2048] {
            let Bounds { common, kept, idle } = Bounds::within(Some(descriptors));
            let taken = OTHER_DESCRIPTORS + 2 * (common + kept) as u64 + idle as u64;
            assert!(taken <= descriptors, "{taken} of {descriptors}");
            assert!(common >= 10 && kept >= 2 && kept < common);
        }
        assert_eq!(Bounds::within(Some(0)), Bounds { common: 10, kept: 2, idle: 3 });
    }
}
