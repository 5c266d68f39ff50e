//! Records in a chain.
//!
//! A line is the record's own JSON object with `hash` as its last field but one and `sig`, where there is one, as its
//! last. `hash` is the SHA-256 of the object as it would be without the two; `sig` signs the hash.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use policy::{Provider, RunId};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::clock::Clock;
use super::companion::{CompanionChain, NAMES};
use super::key::SigningKey;
use super::sheet::Sheet;
use crate::notice::Summary;

/// The plane of the records that open and close a chain.
pub(super) const GATE: &str = "gate";

/// What the record does that names a variable with a credential in it.
const EXPOSES: &str = "expose";

/// At most this long, and at most this many records, go by without a signature.
const SIGN_EVERY: Duration = Duration::from_secs(1);
const SIGN_EVERY_RECORDS: u64 = 256;

/// How much one run may write to the host's disk by being recorded.
const MOST_WRITTEN: u64 = 256 << 20;

/// A SHA-256 in hexadecimal.
pub type Digest = String;

/// One record, as it is written.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Entry {
    /// Its number in the chain, from 0.
    pub seq: u64,
    /// When the exchange began, RFC 3339 UTC with microseconds.
    pub ts: String,
    /// The run.
    pub run: String,
    /// The way it came in; `gate` for the records that open and close a chain.
    pub plane: Cow<'static, str>,
    /// The rule that decided, if one did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cap: Option<String>,
    /// A method, `CONNECT`, `TCP`, `DNS`, `open`, `expose`, `companion` or `close`.
    pub action: String,
    /// What was asked for.
    pub target: String,
    /// `allowed`, `denied` or `failed`.
    pub outcome: Cow<'static, str>,
    /// The guard that refused.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub guard: Option<String>,
    /// Why it was refused, or how it failed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// Whose credential was put into it, or into the sandbox.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub provider: Option<String>,
    /// The address that was dialled.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub address: Option<String>,
    /// Of a companion that is named: the digest of its image.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub image: Option<String>,
    /// Of a companion that is named: the hash of the first record of its own chain.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub chain: Option<Digest>,
    /// The upstream's HTTP status.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub status: Option<u16>,
    /// Octets from the agent to the upstream.
    pub sent: u64,
    /// Octets from the upstream to the agent.
    pub received: u64,
    /// How long it took, in microseconds.
    pub us: u64,
    /// The hash of the record before; 64 zeros for the first.
    pub prev: Digest,
}

/// The chain being written.
#[derive(Debug)]
pub(crate) struct Audit {
    sink: Option<(Sheet, SigningKey)>,
    clock: Clock,
    run: String,
    next: u64,
    prev: Digest,
    signed_at: Instant,
    unsigned: u64,
    summary: Summary,
    written: u64,
    /// The first write that failed: from then on nothing is allowed, see [`Audit::is_broken`].
    broken: bool,
}

impl Audit {
    /// Begins a chain with a signed record. Without a sink, records are only numbered.
    pub(crate) fn begin(sink: Option<(File, SigningKey)>, run: &RunId) -> io::Result<Self> {
        let mut audit = Self {
            sink: sink.map(|(file, key)| (Sheet::of(file), key)),
            clock: Clock::default(),
            run: run.to_string(),
            next: 0,
            prev: "0".repeat(64),
            signed_at: Instant::now(),
            unsigned: SIGN_EVERY_RECORDS,
            summary: Summary::default(),
            written: 0,
            broken: false,
        };
        let open = audit.blank();
        audit.append(&mut Entry { plane: GATE.into(), action: "open".into(), ..open });
        if audit.broken { Err(io::Error::other("the first record could not be written")) } else { Ok(audit) }
    }

    /// A record that begins now.
    pub(crate) fn blank(&mut self) -> Entry {
        Entry { ts: self.clock.now(), outcome: "allowed".into(), ..Entry::default() }
    }

    /// Has whoever is notified write what is added.
    pub(super) fn write_later(&mut self, writer: &Rc<Notify>) {
        if let Some((sheet, _)) = &mut self.sink {
            sheet.wait_for(Rc::clone(writer));
        }
    }

    /// Writes what was added.
    pub(super) fn write(&mut self) {
        if let Some((sheet, _)) = &mut self.sink {
            self.broken |= sheet.write().is_err();
        }
    }

    /// Whether records are being lost. A sidecar that cannot record does not allow.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken || self.written > MOST_WRITTEN
    }

    /// What the exchanges so far came to.
    pub(crate) fn summary(&self) -> Summary {
        self.summary.clone()
    }

    /// Adds a record to the chain.
    pub(crate) fn append(&mut self, entry: &mut Entry) {
        if entry.plane != GATE {
            match &*entry.outcome {
                "allowed" => self.summary.allowed += 1,
                "denied" => self.summary.denied += 1,
                _ => self.summary.failed += 1,
            }
        }
        entry.seq = self.next;
        if self.written > MOST_WRITTEN && entry.plane != GATE {
            return; // nothing is allowed any more, see `is_broken`
        }
        let Some((sheet, key)) = &mut self.sink else {
            self.next += 1;
            return;
        };
        entry.run = std::mem::take(&mut self.run);
        entry.prev = std::mem::take(&mut self.prev);
        let lines = sheet.lines();
        let start = lines.len();
        let made = serde_json::to_writer(&mut *lines, entry);
        self.run = std::mem::take(&mut entry.run);
        self.prev = std::mem::take(&mut entry.prev);
        if made.is_err() {
            lines.truncate(start);
            return;
        }
        let hash = digest(&lines[start..]);
        lines.pop(); // the closing brace
        lines.extend_from_slice(b",\"hash\":\"");
        lines.extend_from_slice(hash.as_bytes());
        self.unsigned += 1;
        if self.unsigned >= SIGN_EVERY_RECORDS || self.signed_at.elapsed() >= SIGN_EVERY {
            lines.extend_from_slice(b"\",\"sig\":\"");
            lines.extend_from_slice(key.sign(hash.as_bytes()).as_bytes());
            self.signed_at = Instant::now();
            self.unsigned = 0;
        }
        lines.extend_from_slice(b"\"}\n");
        self.written += (lines.len() - start) as u64;
        self.next += 1;
        self.prev = hash;
        let waits = entry.plane != GATE && entry.outcome != "denied";
        let written = if waits { sheet.add() } else { sheet.write() };
        self.broken |= written.is_err();
    }

    /// Names a companion of the run, and where its own chain begins.
    pub(crate) fn name_companion(&mut self, companion: &CompanionChain) {
        let CompanionChain { name, image, first } = companion.clone();
        let (image, chain) = (Some(image), Some(first));
        let (plane, action) = (GATE.into(), NAMES.into());
        let named = self.blank();
        self.append(&mut Entry { plane, action, target: name, image, chain, ..named });
    }

    /// Names the variables in which the command holds a provider's credential itself.
    pub(crate) fn name_exposed(&mut self, provider: &Provider) {
        for name in provider.exposed() {
            let (plane, action) = (GATE.into(), EXPOSES.into());
            let named = self.blank();
            let of = Some(provider.id().to_string());
            self.append(&mut Entry { plane, action, target: name.clone(), provider: of, ..named });
        }
    }

    /// Ends the chain with a signed record.
    pub(crate) fn close(&mut self) {
        self.unsigned = SIGN_EVERY_RECORDS;
        let close = self.blank();
        self.append(&mut Entry { plane: GATE.into(), action: "close".into(), ..close });
    }
}

/// SHA-256 in hexadecimal.
#[must_use]
pub fn digest(bytes: &[u8]) -> Digest {
    hex(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref())
}

pub(super) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut out = String::with_capacity(bytes.len() * 2);
    for octet in bytes {
        out.push(char::from(DIGITS[usize::from(octet >> 4)]));
        out.push(char::from(DIGITS[usize::from(octet & 15)]));
    }
    out
}
