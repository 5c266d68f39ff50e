//! The audit: one JSON line for each request, allowed or not, in a chain that shows what was changed or taken out.
//!
//! Each record holds the hash of the one before it (SHA-256), and records are signed (Ed25519): the first, the last,
//! and one at least every second in between, so that a signature vouches for all before it. A record is written when
//! its exchange ends, by whatever way: it is held from the start and written on drop, a denial at once and all else before the
//! sidecar waits for anything again.

mod chain;
mod clock;
mod companion;
mod draft;
mod entry;
mod key;
mod record;
mod verify;
mod word;
mod writer;

pub(crate) use chain::{Audit, write_in_turns};
pub use companion::{CompanionChain, first_hash, named_companions};
pub use entry::{Digest, Entry, digest};
pub use key::SigningKey;
pub(crate) use record::Record;
pub use verify::{VerifyError, VerifyReport, verify};
pub use word::{EntryPlane, GateAction, Outcome, Word};
