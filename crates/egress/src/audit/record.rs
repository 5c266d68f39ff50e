//! The record of one exchange, from its start to its end. It is written when it is dropped, so a connection that is cut or a panic
//! leaves its line as well.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use policy::{Denial, Guard, Plane, Port};

use super::draft::RecordDraft;
use super::word::Outcome;
use crate::cause::cause;
use crate::gate::Gate;
use crate::notice::{NOT_TRUSTED, UPSTREAM_FAILED};

/// The longest target that is recorded, in octets.
const LONGEST_TARGET: usize = 2048;
/// The longest reason, in characters. It may quote the agent.
const LONGEST_REASON: usize = 512;

/// The reasons for an exchange that ended without an answer or an error.
const CUT: &str = "the sidecar ended while it was under way";
const GIVEN_UP: &str = "it was given up before it was answered";

/// The record of an exchange that is under way.
pub(crate) struct Record {
    gate: Rc<Gate>,
    plane: Plane,
    began: Instant,
    /// Boxed, because an exchange moves its record from stage to stage.
    draft: Box<RecordDraft>,
    /// Whether it awaits an answer.
    is_request: bool,
    discarded: bool,
    /// Whether it counts as under way.
    is_counted: bool,
    /// What it says besides how the exchange ended.
    remarks: Vec<String>,
}

impl Record {
    /// Begins the record of an exchange. Until it is dropped, the exchange counts as under way.
    pub(crate) fn begin(gate: &Rc<Gate>, plane: Plane, action: &str, target: String) -> Self {
        // Credentials are masked before the target is cut, because part of one would match nothing.
        let mut target = gate.credentials().veiled(target);
        if target.len() > LONGEST_TARGET {
            let cut = (0..=LONGEST_TARGET).rev().find(|at| target.is_char_boundary(*at)).unwrap_or(0);
            target.truncate(cut);
        }
        // A method is any token, and so may be a credential.
        let action = gate.credentials().veiled(action.to_owned());
        let draft = Box::new(gate.audit().borrow_mut().of_exchange(plane, &action, target));
        gate.ending().enter();
        let (is_request, discarded, is_counted) = (false, false, true);
        let (gate, began) = (Rc::clone(gate), Instant::now());
        Self { gate, plane, began, draft, is_request, discarded, is_counted, remarks: Vec::new() }
    }

    /// Replaces the action, once the exchange turned out to be of another kind.
    pub(crate) fn action(&mut self, action: &str) {
        self.draft.action = action.into();
    }

    /// Drops it unwritten, because its requests have records of their own.
    pub(crate) fn discard(mut self) {
        self.discarded = true;
    }

    /// Counts it as under way no longer, so that it holds up no end.
    pub(crate) fn rest(&mut self) {
        if std::mem::take(&mut self.is_counted) {
            self.gate.ending().leave();
        }
    }

    /// Makes it the record of a request, which has failed if it is not answered.
    pub(crate) fn awaits_answer(&mut self) {
        self.is_request = true;
    }

    /// Notes the rule that decided.
    pub(crate) fn rule(&mut self, rule: &str) {
        self.draft.rule = Some(rule.into());
    }

    /// Notes the address that was reached.
    pub(crate) fn reached(&mut self, address: SocketAddr) {
        self.draft.address = Some(address.to_string());
        self.draft.outcome = Outcome::Allowed;
    }

    /// Notes the companion that was reached.
    pub(crate) fn reached_companion(&mut self, port: Port) {
        self.draft.address = Some(format!("companion, port {port}"));
        self.draft.outcome = Outcome::Allowed;
    }

    /// Notes that a port of the command's was reached from outside.
    pub(crate) fn reached_inside(&mut self, port: Port) {
        self.draft.address = Some(format!("inside, port {port}"));
        self.draft.outcome = Outcome::Allowed;
    }

    /// Notes the proxy it went through.
    pub(crate) fn reached_through(&mut self, proxy: &str) {
        self.draft.address = Some(format!("proxy {proxy}"));
        self.draft.outcome = Outcome::Allowed;
    }

    /// Notes the provider whose credential was injected.
    pub(crate) fn provider(&mut self, provider: &policy::ProviderId) {
        self.draft.provider = Some(provider.to_string());
    }

    /// Notes something about an allowed exchange.
    pub(crate) fn note(&mut self, what: &str) {
        self.draft.reason = Some(self.masked(what));
    }

    /// Remarks something about an exchange, however it ends.
    pub(crate) fn remark(&mut self, what: &str) {
        self.remarks.push(self.masked(what));
    }

    /// Notes the upstream's status.
    pub(crate) fn status(&mut self, status: u16) {
        self.draft.status = Some(status);
    }

    /// Ends the record of a request that the sidecar answered by itself.
    pub(crate) fn answered(mut self, status: u16) {
        self.draft.status = Some(status);
        if status < 400 {
            self.draft.outcome = Outcome::Allowed;
        }
    }

    /// Notes how it failed, after it was allowed.
    pub(crate) fn fail(&mut self, why: &str) {
        self.draft.outcome = Outcome::Failed;
        self.draft.reason = Some(self.masked(why));
    }

    /// Notes the guard that stopped it, after it was allowed.
    pub(crate) fn stopped_by(&mut self, guard: Guard) {
        self.draft.guard = Some(guard.code().into());
    }

    /// Notes that its upstream could not be reached, or broke off before it had answered, and tells the person once for each host and
    /// reason.
    pub(crate) fn upstream_failed(&mut self, error: &io::Error) {
        self.fail(&cause(error));
        self.tell_failure(UPSTREAM_FAILED);
    }

    /// Notes that the program inside does not trust the run's authority, and tells the person once for each host.
    pub(crate) fn distrusted(&mut self, why: &str) {
        self.fail(why);
        self.tell_failure(NOT_TRUSTED);
    }

    fn tell_failure(&self, code: &'static str) {
        let why = self.draft.reason.as_deref().unwrap_or_default();
        self.gate.notices().borrow_mut().tell_failure(self.plane, &self.draft.target, code, why);
    }

    /// Masks credentials in a text that the agent or an upstream may have influenced, and bounds its length.
    fn masked(&self, text: &str) -> String {
        let credentials = self.gate.credentials();
        let text = credentials.veiled(text.into());
        let masked = credentials.needles().now().scrub_text(text.as_bytes());
        let masked = masked.map(|(masked, _)| String::from_utf8_lossy(&masked).into_owned());
        masked.unwrap_or(text).chars().take(LONGEST_REASON).collect()
    }

    /// Adds to the octets that were sent and received.
    pub(crate) fn count(&mut self, sent: u64, received: u64) {
        self.draft.sent += sent;
        self.draft.received += received;
    }

    /// Ends the record with a denial, or with what failed though it was allowed, and sends it as a notice.
    pub(crate) fn deny(mut self, mut denial: Denial) -> Denial {
        let reason = self.gate.credentials().veiled(denial.reason);
        denial.reason = reason.chars().take(LONGEST_REASON).collect();
        denial.hint = denial.hint.map(|hint| hint.map(|text| self.gate.credentials().veiled(text)));
        self.draft.outcome = if denial.guard.is_failure() { Outcome::Failed } else { Outcome::Denied };
        self.draft.guard = Some(denial.guard.code().into());
        self.draft.reason = Some(denial.reason.clone());
        if let Some(rule) = &denial.rule {
            self.draft.rule = Some(rule.clone());
        }
        self.gate.notices().borrow_mut().tell(self.plane, &self.draft.target, &denial);
        denial
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.rest();
        if self.discarded {
            return;
        }
        let has_failed = self.is_request || self.draft.outcome == Outcome::Failed;
        if has_failed && self.draft.status.is_none() && self.draft.reason.is_none() {
            let is_over = self.gate.ending().is_over();
            self.draft.outcome = Outcome::Failed;
            self.draft.reason = Some(if is_over { CUT } else { GIVEN_UP }.into());
        }
        if !self.remarks.is_empty() {
            let said = self.draft.reason.take().into_iter().chain(self.remarks.drain(..)).collect::<Vec<_>>();
            self.draft.reason = Some(said.join("; ").chars().take(LONGEST_REASON).collect());
        }
        self.draft.us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.gate.audit().borrow_mut().append(&self.draft);
    }
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Record").field("draft", &self.draft).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use credential::Secret;

    use super::*;
    use crate::fixture::records_in;
    use crate::{CredentialConfig, GateOptions, SigningKey};

    #[test]
    fn an_exposed_value_is_masked_wherever_the_agent_writes_it() {
        const VALUE: &str = "exposed-0123456789";
        let mut audit = tempfile::tempfile().unwrap();
        let spec = policy::Layers::default().compile().unwrap();
        let exposed = ("one".parse().unwrap(), Secret::from_text(VALUE.into()));
        let signed = (Arc::new(audit.try_clone().unwrap()), SigningKey::generate().unwrap().0);
        let gate = Gate::open(GateOptions {
            credential_config: CredentialConfig { exposed: vec![exposed], ..CredentialConfig::default() },
            audit: Some(signed),
            ..GateOptions::new(spec.policy, spec.spending, policy::RunId::from_random([0; 12]))
        })
        .unwrap();
        Record::begin(&gate, Plane::Forward, VALUE, format!("http://a.example/{VALUE}")).answered(200);
        Record::begin(&gate, Plane::Forward, &format!("X{VALUE}"), String::new()).fail(VALUE);
        let path = "x".repeat(LONGEST_REASON);
        let denial = Denial::new(Guard::Budget, format!("(POST /{VALUE}/{path}/{VALUE})"));
        let told = Record::begin(&gate, Plane::Forward, "GET", String::new()).deny(denial).reason;
        assert!(!told.contains(VALUE) && told.len() == LONGEST_REASON, "{told}");
        gate.close().unwrap();
        let records = records_in(&mut audit);
        assert!(!records.contains(VALUE), "{records}");
        assert!(records.contains(&format!("\"action\":\"{}\"", "*".repeat(VALUE.len()))), "{records}");
    }
}
