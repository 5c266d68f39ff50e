//! Limits what the gateway holds of whole bodies, of requests and of answers: one limit for all of a sidecar.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::head::BodyLength;

/// How much of bodies the gateway holds in memory at once, in KiB.
const MEMORY_KIB: usize = 64 * 1024;

thread_local! {
    static MEMORY: Arc<Semaphore> = Arc::new(Semaphore::new(MEMORY_KIB));
}

/// How much a body without a declared length reserves at a time, in octets.
const STEP: usize = 64 * 1024;

/// Why a request is refused for which there is no memory.
pub(super) const NO_ROOM: &str =
    "the gateway holds as much of requests and answers as it has room for; try again";

/// The memory that one body takes. Dropping it gives the memory back.
pub(super) struct ReservedMemory {
    permit: OwnedSemaphorePermit,
    octets: usize,
}

impl ReservedMemory {
    /// Reserves a body's declared length, or one step of a body that declares none. Returns `None` if others hold what it needs.
    pub(super) fn for_body(length: BodyLength, limit: usize) -> Option<Self> {
        let octets = match length {
            BodyLength::None => 0,
            BodyLength::Sized(size) => usize::try_from(size).unwrap_or(usize::MAX).min(limit),
            BodyLength::Chunked => STEP.min(limit),
        };
        Self::for_octets(octets)
    }

    /// Reserves room for this many octets.
    pub(super) fn for_octets(octets: usize) -> Option<Self> {
        Some(Self { permit: permit(octets)?, octets })
    }

    /// Reserves more steps until `octets` fit.
    pub(super) fn grow_to(&mut self, octets: usize) -> Option<()> {
        while self.octets < octets {
            self.permit.merge(permit(STEP)?);
            self.octets += STEP;
        }
        Some(())
    }
}

fn permit(octets: usize) -> Option<OwnedSemaphorePermit> {
    let kibibytes = u32::try_from(octets.div_ceil(1024)).unwrap_or(u32::MAX);
    MEMORY.with(Arc::clone).try_acquire_many_owned(kibibytes).ok()
}
