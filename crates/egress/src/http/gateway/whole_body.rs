//! Reads whole request bodies into memory, within one limit for all requests of a sidecar.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::refused::refusal;
use crate::http::answer::Answer;
use crate::http::head::BodyLength;
use crate::http::problem::Reply;
use crate::http::request::Request;

/// How much of requests the gateway holds in memory at once, in KiB.
const MEMORY_KIB: usize = 64 * 1024;

thread_local! {
    static MEMORY: Arc<Semaphore> = Arc::new(Semaphore::new(MEMORY_KIB));
}

/// How much a body without a declared length reserves at a time, in octets.
const STEP: usize = 64 * 1024;

/// A body that was read to its end.
pub(super) struct WholeBody {
    pub(super) octets: Bytes,
    /// To be kept for as long as the octets are.
    pub(super) reserved: ReservedMemory,
}

/// The gateway's memory that one body takes. Dropping it gives the memory back.
pub(in crate::http) struct ReservedMemory {
    permit: OwnedSemaphorePermit,
    octets: usize,
}

impl ReservedMemory {
    /// Reserves a body's declared length, or one step of a body that declares none. Returns `None` if other requests hold what it needs.
    fn for_body(length: BodyLength, limit: usize) -> Option<Self> {
        let octets = match length {
            BodyLength::None => 0,
            BodyLength::Sized(size) => usize::try_from(size).unwrap_or(usize::MAX).min(limit),
            BodyLength::Chunked => STEP.min(limit),
        };
        Self::for_octets(octets)
    }

    /// Reserves room for this many octets.
    pub(in crate::http) fn for_octets(octets: usize) -> Option<Self> {
        Some(Self { permit: permit(octets)?, octets })
    }

    /// Reserves more steps until `octets` fit.
    pub(in crate::http) fn grow_to(&mut self, octets: usize) -> Option<()> {
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

/// Why a request is refused for which there is no memory.
pub(in crate::http) const NO_ROOM: &str = "the gateway holds as many requests as it has room for; try again";

/// The reply to a body for which there is no memory.
fn no_room() -> Reply {
    refusal(429, "http_framing", NO_ROOM)
}

/// The reply to a body above its limit.
fn too_large() -> Reply {
    refusal(413, "http_framing", "Request body too large")
}

/// Reads the whole body, after an interim 100 to a client that expects one. Returns the reply to send in its place if the body is larger
/// than `limit` octets or there is no memory for it.
///
/// # Errors
/// The agent's connection broke.
pub(super) async fn read_whole(
    request: &mut Request<'_>,
    answer: &mut Answer<'_>,
    limit: usize,
) -> io::Result<Result<WholeBody, Reply>> {
    let Request { head, body } = request;
    let Some(mut reserved) = ReservedMemory::for_body(head.body, limit) else { return Ok(Err(no_room())) };
    if head.waits_to_go_on() {
        answer.go_on().await?;
    }
    let mut octets = BytesMut::new();
    while let Some(piece) = body.next().await? {
        if octets.len() + piece.len() > limit {
            return Ok(Err(too_large()));
        }
        if reserved.grow_to(octets.len() + piece.len()).is_none() {
            return Ok(Err(no_room()));
        }
        octets.extend_from_slice(&piece);
    }
    Ok(Ok(WholeBody { octets: octets.freeze(), reserved }))
}
