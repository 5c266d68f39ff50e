//! The record of one exchange, from its first moment to its last. It is written when it is dropped, so a cut
//! connection or a panic is still one line.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use policy::{Denial, Plane, Port};

use super::entry::Entry;
use crate::gate::Gate;

/// The longest target that is kept.
const LONGEST_TARGET: usize = 2048;
/// The longest reason, in characters: it may quote the agent.
const LONGEST_REASON: usize = 512;

/// A record that is still being made.
pub(crate) struct Record {
    gate: Rc<Gate>,
    plane: Plane,
    began: Instant,
    /// In a place of its own: a record goes from stage to stage with its exchange.
    entry: Box<Entry>,
    discarded: bool,
}

impl Record {
    pub(crate) fn begin(gate: &Rc<Gate>, plane: Plane, action: &str, target: String) -> Self {
        // Before it is cut: a beginning of the value would match nothing.
        let mut target = gate.credentials().veiled(target);
        let mut entry = Box::new(gate.audit().borrow_mut().blank());
        entry.plane = plane.as_str().into();
        entry.action = action.into();
        if target.len() > LONGEST_TARGET {
            let cut = (0..=LONGEST_TARGET).rev().find(|at| target.is_char_boundary(*at)).unwrap_or(0);
            target.truncate(cut);
        }
        entry.target = target;
        // Until something says otherwise: it was let through and came to nothing.
        entry.outcome = "failed".into();
        Self { gate: Rc::clone(gate), plane, began: Instant::now(), entry, discarded: false }
    }

    /// Says what kind of exchange it turned out to be.
    pub(crate) fn action(&mut self, action: &str) {
        self.entry.action = action.into();
    }

    /// Lets go of it unwritten: others stand for it.
    pub(crate) fn discard(mut self) {
        self.discarded = true;
    }

    /// Notes the rule that decided.
    pub(crate) fn rule(&mut self, rule: &str) {
        self.entry.cap = Some(rule.into());
    }

    /// Notes the address that was reached.
    pub(crate) fn reached(&mut self, address: SocketAddr) {
        self.entry.address = Some(address.to_string());
        self.entry.outcome = "allowed".into();
    }

    /// Notes the companion that was reached.
    pub(crate) fn reached_companion(&mut self, port: Port) {
        self.entry.address = Some(format!("companion, port {port}"));
        self.entry.outcome = "allowed".into();
    }

    /// Notes that a port of the command's was reached from outside.
    pub(crate) fn reached_inside(&mut self, port: Port) {
        self.entry.address = Some(format!("inside, port {port}"));
        self.entry.outcome = "allowed".into();
    }

    /// Notes the proxy it went through.
    pub(crate) fn reached_through(&mut self, proxy: &str) {
        self.entry.address = Some(format!("proxy {proxy}"));
        self.entry.outcome = "allowed".into();
    }

    /// Notes whose credential was put into it.
    pub(crate) fn provider(&mut self, provider: &policy::ProviderId) {
        self.entry.provider = Some(provider.to_string());
    }

    /// Notes something about an exchange that was let through.
    pub(crate) fn note(&mut self, what: &str) {
        self.entry.reason = Some(self.told(what));
    }

    /// Notes the upstream's status.
    pub(crate) fn status(&mut self, status: u16) {
        self.entry.status = Some(status);
    }

    /// Ends the record of what needed no upstream.
    pub(crate) fn answered(mut self, status: u16) {
        self.entry.status = Some(status);
        if status < 400 {
            self.entry.outcome = "allowed".into();
        }
    }

    /// Notes how it failed, after it was allowed.
    pub(crate) fn fail(&mut self, why: &str) {
        self.entry.outcome = "failed".into();
        self.entry.reason = Some(self.told(why));
    }

    /// What others may have had a word in, without credentials and of a bounded length.
    fn told(&self, text: &str) -> String {
        let credentials = self.gate.credentials();
        let text = credentials.veiled(text.into());
        let masked = credentials.needles().scrub_text(text.as_bytes());
        let masked = masked.map(|(masked, _)| String::from_utf8_lossy(&masked).into_owned());
        masked.unwrap_or(text).chars().take(LONGEST_REASON).collect()
    }

    /// Adds to the octets that went each way.
    pub(crate) fn count(&mut self, sent: u64, received: u64) {
        self.entry.sent += sent;
        self.entry.received += received;
    }

    /// Ends the record with a denial, and tells it.
    pub(crate) fn deny(mut self, mut denial: Denial) -> Denial {
        denial.reason = self.gate.credentials().veiled(denial.reason);
        denial.hint = denial.hint.map(|hint| hint.map(|text| self.gate.credentials().veiled(text)));
        self.entry.outcome = "denied".into();
        self.entry.guard = Some(denial.guard.code().into());
        self.entry.reason = Some(denial.reason.chars().take(LONGEST_REASON).collect());
        if let Some(rule) = &denial.rule {
            self.entry.cap = Some(rule.clone());
        }
        self.gate.notices().borrow_mut().tell(self.plane, &self.entry.target, &denial);
        denial
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.discarded {
            return;
        }
        self.entry.us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.gate.audit().borrow_mut().append(&mut self.entry);
    }
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Record").field("entry", &self.entry).finish_non_exhaustive()
    }
}
