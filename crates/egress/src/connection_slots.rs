//! Limits how many connections one sidecar serves at once. Further ones wait to be accepted.
//!
//! With the limit on what is read ahead of each, this bounds the sidecar's memory. It also bounds its descriptors, if it may open only
//! few files: a sidecar without any left could not even answer a health check.

use std::cell::OnceCell;
use std::io;
use std::rc::Rc;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use tokio::sync::Semaphore;

use crate::idle;

/// Connections of all listeners but the declared ports.
const MOST: usize = 1024;
/// Further connections that only the gateway's listeners take, so that it answers while the proxy is full.
const MOST_RESERVED: usize = 64;
/// Connections to one declared port. They take no slots of the command's or of another port.
const MOST_INBOUND: usize = 128;
/// Idle connections to upstreams.
const MOST_IDLE: usize = 64;
/// Streams of HTTP/2, on all connections together. Each holds what waits to be written to it and what was read ahead of it, and may
/// take a connection to an upstream of its own.
const MOST_STREAMS: usize = 4096;
/// Attempts to connect beside another to the same host.
const MOST_BESIDE: usize = 64;
/// What one look-up of a name may take: of three name servers two questions each, of which each is sent three times, every time from a
/// socket of its own.
pub(crate) const LOOK_UP: usize = 18;
/// What all look-ups take together.
const MOST_LOOK_UPS: usize = 56 * LOOK_UP;
/// The fewest streams.
const FEWEST_STREAMS: usize = 4;
/// The fewest slots in all.
const FEWEST: usize = 10;
/// Descriptors beside connections: listeners, the audit, the platform, epoll.
const OTHER_DESCRIPTORS: u64 = 36;
/// The fewest descriptors with which there are so many slots. With fewer it would seem to serve, and answer nobody.
const FEWEST_DESCRIPTORS: u64 = 96;

thread_local! {
    static BOUNDS: Bounds = Bounds::within(getrlimit(Resource::Nofile).current);
    static SHARED: OnceCell<Shared> = const { OnceCell::new() };
}

/// The limits of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    common: usize,
    reserved: usize,
    idle: usize,
    beside: usize,
    look_ups: usize,
    streams: usize,
}

impl Bounds {
    /// The limits with so many descriptors. A connection takes two, one to the agent and one to the upstream; a stream takes one, to the
    /// upstream. What a look-up takes is counted as such.
    fn within(descriptors: Option<u64>) -> Self {
        let Some(descriptors) = descriptors else {
            return Self {
                common: MOST,
                reserved: MOST_RESERVED,
                idle: MOST_IDLE,
                beside: MOST_BESIDE,
                look_ups: MOST_LOOK_UPS,
                streams: MOST_STREAMS,
            };
        };
        let left = usize::try_from(descriptors.saturating_sub(OTHER_DESCRIPTORS)).unwrap_or(usize::MAX);
        // Half of them for the slots, two each, a sixteenth for idle connections, an eighth for look-ups, a quarter or more for streams.
        let all = (left / 4).clamp(FEWEST, MOST + MOST_RESERVED);
        let reserved = (all / 8).clamp(2, MOST_RESERVED);
        let idle = (all / 4).min(MOST_IDLE);
        let beside = (all / 8).clamp(1, MOST_BESIDE);
        let look_ups = (left / 8).clamp(LOOK_UP, MOST_LOOK_UPS);
        let taken = 2 * all + idle + beside + look_ups;
        let streams = left.saturating_sub(taken).clamp(FEWEST_STREAMS, MOST_STREAMS);
        Self { common: (all - reserved).min(MOST), reserved, idle, beside, look_ups, streams }
    }
}

/// Refuses to serve with too few descriptors.
///
/// # Errors
/// `EMFILE`, which is what would come of it.
pub(crate) fn refuse_too_few() -> io::Result<()> {
    if is_too_few(getrlimit(Resource::Nofile).current) { Err(Errno::MFILE.into()) } else { Ok(()) }
}

fn is_too_few(descriptors: Option<u64>) -> bool {
    descriptors.is_some_and(|most| most < FEWEST_DESCRIPTORS)
}

/// How many connections to upstreams may be idle.
pub(crate) fn most_idle() -> usize {
    BOUNDS.with(|bounds| bounds.idle)
}

/// How many streams of HTTP/2 are served at once, on all connections together.
pub(crate) fn most_streams() -> usize {
    BOUNDS.with(|bounds| bounds.streams)
}

/// How many descriptors all look-ups of names take together: those of one, [`LOOK_UP`], or more.
pub(crate) fn most_for_look_ups() -> usize {
    BOUNDS.with(|bounds| bounds.look_ups)
}

/// The slots that one listener's connections take.
#[derive(Clone)]
pub(crate) struct ConnectionSlots {
    first: Rc<Semaphore>,
    /// Taken when the first ones are used up.
    reserved: Option<Rc<Semaphore>>,
}

impl ConnectionSlots {
    /// The slots that all listeners share.
    pub(crate) fn common() -> Self {
        Self { first: shared(|shared| &shared.common), reserved: None }
    }

    /// The shared slots, and those that are reserved for the gateway's listeners.
    pub(crate) fn gateway() -> Self {
        Self { first: shared(|shared| &shared.common), reserved: Some(shared(|shared| &shared.reserved)) }
    }

    /// The slots of one declared port.
    pub(crate) fn inbound() -> Self {
        let most = BOUNDS.with(|bounds| bounds.common.min(MOST_INBOUND));
        Self { first: Rc::new(Semaphore::new(most)), reserved: None }
    }

    /// Waits for a free slot.
    pub(crate) async fn take(&self) -> ConnectionPermit {
        let Some(reserved) = &self.reserved else { return ConnectionPermit::of(&self.first).await };
        tokio::select! {
            biased;
            permit = ConnectionPermit::of(&self.first) => permit,
            permit = ConnectionPermit::of(reserved) => permit,
        }
    }
}

/// The slots that more than one listener takes.
struct Shared {
    common: Rc<Semaphore>,
    /// Those of the gateway's listeners alone.
    reserved: Rc<Semaphore>,
    /// Those of attempts to connect beside another.
    beside: Rc<Semaphore>,
}

/// Returns some of the shared slots of this thread's sidecar.
fn shared(which: fn(&Shared) -> &Rc<Semaphore>) -> Rc<Semaphore> {
    let slots = |many| Rc::new(Semaphore::new(many));
    let made = || {
        BOUNDS.with(|it| Shared {
            common: slots(it.common),
            reserved: slots(it.reserved),
            beside: slots(it.beside),
        })
    };
    SHARED.with(|shared| Rc::clone(which(shared.get_or_init(made))))
}

/// A place for an attempt to connect beside another, given back when it is dropped.
pub(crate) struct PlaceBeside(Rc<Semaphore>);

/// Returns a place for an attempt to connect beside another, if there is one.
pub(crate) fn place_beside() -> Option<PlaceBeside> {
    let places = shared(|shared| &shared.beside);
    places.try_acquire().ok()?.forget();
    Some(PlaceBeside(places))
}

impl Drop for PlaceBeside {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

/// A slot, given back when it is dropped.
pub(crate) struct ConnectionPermit(Rc<Semaphore>);

impl ConnectionPermit {
    async fn of(slots: &Rc<Semaphore>) -> Self {
        if let Ok(permit) = slots.acquire().await {
            permit.forget();
        }
        Self(Rc::clone(slots))
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
        let most = Bounds {
            common: 1024,
            reserved: 64,
            idle: 64,
            beside: 64,
            look_ups: MOST_LOOK_UPS,
            streams: 4096,
        };
        assert_eq!(Bounds::within(None), most);
        assert_eq!(Bounds::within(Some(8192)), most);
        for descriptors in FEWEST_DESCRIPTORS..=8192 {
            let Bounds { common, reserved, idle, beside, look_ups, streams } =
                Bounds::within(Some(descriptors));
            let connections = 2 * (common + reserved) + idle + beside;
            let taken = OTHER_DESCRIPTORS + (connections + look_ups + streams) as u64;
            assert!(taken <= descriptors, "{taken} of {descriptors}");
            assert!(common >= 8 && reserved >= 2 && reserved < common && streams >= 4);
            assert!((LOOK_UP..=MOST_LOOK_UPS).contains(&look_ups));
            assert!(descriptors < 256 || streams >= common);
        }
        assert!(!is_too_few(None) && !is_too_few(Some(FEWEST_DESCRIPTORS)));
        assert!(is_too_few(Some(FEWEST_DESCRIPTORS - 1)));
        assert_eq!(
            Bounds::within(Some(0)),
            Bounds { common: 8, reserved: 2, idle: 2, beside: 1, look_ups: LOOK_UP, streams: 4 }
        );
    }
}
