//! The audit: one JSON line for each request, allowed or not, in a hash chain that shows any change or removal.
//!
//! Each record holds the hash of the one before it (SHA-256). The first record, the last, and at least one a second in between are
//! signed (Ed25519); a signature vouches for all records before it. A record exists from the start of its exchange and is written when
//! it is dropped, however the exchange ends: a denial at once, any other before the sidecar waits for anything again.

mod chain;
mod clock;
mod companion;
mod draft;
mod entry;
mod key;
mod no_exchange;
mod record;
mod verify;
mod word;
mod writer;

pub(crate) use chain::{Audit, UnwrittenRecords, write_batches};
pub use companion::{CompanionChain, first_hash, named_companions};
pub use entry::{Digest, Entry, digest};
pub use key::SigningKey;
pub(crate) use no_exchange::{
    record_datagram, record_denied_name, record_own_answer, record_own_port, record_refused_unasked,
};
pub(crate) use record::Record;
pub use verify::{LONGEST_RECORD, VerifyError, VerifyReport, verify};
pub use word::{EntryPlane, GateAction, Outcome, Word};
