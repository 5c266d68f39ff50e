//! One request on its way out, as a typestate: each stage consumes the exchange and returns it in its next state, so none can be skipped.
//!
//! Only [`policy::Policy::decide`] makes a grant. Only [`Pinned`] has a [`Destination`], and only a destination is dialled: addresses
//! that [`Exchange::guard`] has judged, a granted companion, or a proxy.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use policy::{Denial, Grant, Guard, Proxy, Scheme};

use crate::audit::Record;
use crate::destination::{Destination, Peer};
use crate::fetched_credential::FetchedCredential;
use crate::gate::Gate;
use crate::inject::draft::{Draft, Injected};
use crate::llm::{Admitted, Usage};
use crate::rate::Token;
use crate::upstream::Purpose;

/// The question to the policy; nothing has been decided.
#[derive(Debug)]
pub(crate) struct Asked(policy::Asked);

/// The policy has granted it; no name has been resolved.
#[derive(Debug)]
pub(crate) struct Granted(Grant);

/// The name has addresses; none has been judged.
#[derive(Debug)]
pub(crate) struct Resolved {
    grant: Grant,
    found: Vec<IpAddr>,
    proxy: Option<Arc<Proxy>>,
}

/// Its destination has been judged. The first state that can be dialled.
#[derive(Debug)]
pub(crate) struct Pinned {
    grant: Grant,
    destination: Destination,
    /// The addresses that were judged. There is none of a companion, nor where a proxy resolves the name.
    judged: Vec<IpAddr>,
    reached: Option<Peer>,
}

/// Its credential has been injected, or it needs none. The only state that is sent to an upstream as a request.
pub(crate) struct Ready {
    pinned: Pinned,
    injected: Option<Injected>,
}

/// A state that has a destination.
pub(crate) trait HasDestination {
    fn pinned(&self) -> &Pinned;
    fn pinned_mut(&mut self) -> &mut Pinned;
}

impl HasDestination for Pinned {
    fn pinned(&self) -> &Pinned {
        self
    }

    fn pinned_mut(&mut self) -> &mut Pinned {
        self
    }
}

impl HasDestination for Ready {
    fn pinned(&self) -> &Pinned {
        &self.pinned
    }

    fn pinned_mut(&mut self) -> &mut Pinned {
        &mut self.pinned
    }
}

/// A request in one of its states, with its audit record, which is written whatever happens, unless its requests are recorded in its place.
#[derive(Debug)]
pub(crate) struct Exchange<S> {
    stage: S,
    record: Record,
}

impl<S> Exchange<S> {
    /// Drops it without a record, because its requests are exchanges of their own.
    pub(crate) fn into_requests(self) {
        self.record.discard();
    }

    /// Lets it hold up no end of the sidecar, because it may be idle for long.
    pub(crate) fn rest(mut self) -> Self {
        self.record.rest();
        self
    }
}

impl Exchange<Asked> {
    /// Begins an exchange. From here on it has exactly one audit record.
    pub(crate) fn begin(gate: &Rc<Gate>, action: &str, target: String, asked: policy::Asked) -> Self {
        let record = Record::begin(gate, asked.plane, action, target);
        Self { stage: Asked(asked), record }
    }

    /// Sets what the connection turned out to carry.
    pub(crate) fn carries(mut self, action: &str, view: policy::View) -> Self {
        self.stage.0.view = view;
        self.record.action(action);
        self
    }

    /// Takes it through every stage up to the address guard.
    pub(crate) async fn pin(self, gate: &Gate) -> Result<Exchange<Pinned>, Denial> {
        self.authorize(gate)?.pin(gate).await
    }

    /// Asks the policy, unless the audit cannot be written.
    pub(crate) fn authorize(mut self, gate: &Gate) -> Result<Exchange<Granted>, Denial> {
        if gate.audit().borrow_mut().is_broken() {
            let denial = Denial::new(
                Guard::Audit,
                "the audit cannot be written: the disk is full, its file was removed, or this run has filled its 256 MiB of records",
            );
            return Err(self.record.deny(denial));
        }
        match gate.policy().decide(&self.stage.0) {
            Ok(grant) => {
                self.record.rule(grant.rule().as_str());
                Ok(Exchange { stage: Granted(grant), record: self.record })
            }
            Err(denial) => Err(self.record.deny(denial)),
        }
    }
}

impl Exchange<Granted> {
    /// The grant.
    pub(crate) fn grant(&self) -> &Grant {
        &self.stage.0
    }

    /// Refuses it after all, because the connection carries something else than was granted.
    pub(crate) fn refuse(self, denial: Denial) -> Denial {
        self.record.deny(denial.or_with_rule(self.stage.0.rule().as_str()))
    }

    /// Ends it as allowed and failed.
    pub(crate) fn fail(mut self, why: &str) {
        self.record.fail(why);
    }

    /// The same, because the program inside does not trust the run's authority.
    pub(crate) fn fail_distrusted(mut self, why: &str) {
        self.record.distrusted(why);
    }

    /// Takes it through the remaining stages up to the address guard, with the proxy that the policy has for the host.
    pub(crate) async fn pin(self, gate: &Gate) -> Result<Exchange<Pinned>, Denial> {
        let proxy = gate.policy().proxy_for(&self.stage.0).cloned();
        self.pin_by(gate, proxy).await
    }

    /// Like [`Exchange::pin`], with a proxy that the request itself names.
    pub(crate) async fn pin_through(
        self,
        gate: &Gate,
        proxy: Arc<Proxy>,
    ) -> Result<Exchange<Pinned>, Denial> {
        self.pin_by(gate, Some(proxy)).await
    }

    async fn pin_by(self, gate: &Gate, proxy: Option<Arc<Proxy>>) -> Result<Exchange<Pinned>, Denial> {
        if let Some(destination) = Destination::companion(&self.stage.0) {
            let stage = Pinned { grant: self.stage.0, destination, judged: Vec::new(), reached: None };
            return Ok(Exchange { stage, record: self.record });
        }
        self.resolve(gate, proxy).await?.guard(gate)
    }

    /// Resolves the host, unless the rule itself gives its addresses.
    pub(crate) async fn resolve(
        self,
        gate: &Gate,
        proxy: Option<Arc<Proxy>>,
    ) -> Result<Exchange<Resolved>, Denial> {
        let (grant, answers) = (self.stage.0, gate.answers());
        let needs_none = proxy.is_some() && grant.needs_no_address();
        let found = match grant.addresses() {
            Some(given) => Ok(given.to_vec()),
            None if needs_none => answers.if_told(grant.host()).await,
            None => answers.of(grant.host()).await,
        };
        match found {
            Ok(found) => Ok(Exchange { stage: Resolved { grant, found, proxy }, record: self.record }),
            // The proxy is asked by name, so the name need not resolve here (S1.44).
            Err(denial) if needs_none && denial.guard == Guard::NoAddress => {
                Ok(Exchange { stage: Resolved { grant, found: Vec::new(), proxy }, record: self.record })
            }
            Err(denial) => {
                let denial = match proxy {
                    Some(_) if !needs_none => gate.policy().not_asked_of_proxy(&grant, denial),
                    _ => denial,
                };
                Err(self.record.deny(denial.with_rule(grant.rule().as_str())))
            }
        }
    }
}

impl Exchange<Resolved> {
    /// Judges every address, every time (E14).
    pub(crate) fn guard(self, gate: &Gate) -> Result<Exchange<Pinned>, Denial> {
        let Resolved { grant, found, proxy } = self.stage;
        match Destination::judge(gate.this_machine(), &grant, &found, proxy) {
            Ok(destination) => {
                let stage = Pinned { grant, destination, judged: found, reached: None };
                Ok(Exchange { stage, record: self.record })
            }
            Err(denial) => Err(self.record.deny(denial.or_with_rule(grant.rule().as_str()))),
        }
    }
}

impl Exchange<Pinned> {
    /// Gives up its destination, because its requests are exchanges of their own.
    pub(crate) fn into_granted(self) -> Exchange<Granted> {
        Exchange { stage: Granted(self.stage.grant), record: self.record }
    }

    /// Attaches the injected credential, if there is one. Only `inject` calls this, after it has examined the request.
    pub(crate) fn ready(mut self, injected: Option<Injected>) -> Exchange<Ready> {
        self.record.awaits_answer();
        if let Some(injected) = &injected {
            self.record.provider(injected.held.provider());
        }
        Exchange { stage: Ready { pinned: self.stage, injected }, record: self.record }
    }
}

impl Exchange<Ready> {
    /// The credential in the request, which must not be in the response.
    pub(crate) fn held(&self) -> Option<&Rc<FetchedCredential>> {
        self.stage.injected.as_ref().map(|injected| &injected.held)
    }

    /// What a connection that carries it is used for.
    pub(crate) fn purpose(&self, scheme: Scheme) -> Purpose<'_> {
        Purpose { scheme, host: self.grant().host(), provider: self.held().map(|held| held.provider()) }
    }

    /// The request before the credential was injected.
    pub(crate) fn draft(&self) -> Option<&Draft> {
        self.stage.injected.as_ref().map(|injected| &injected.draft)
    }

    /// Replaces a credential that the upstream refused.
    pub(crate) fn hold(&mut self, new: Rc<FetchedCredential>) {
        if let Some(injected) = &mut self.stage.injected {
            injected.held = new;
        }
    }

    /// Whether it is a request to a model that counts towards the run's budget.
    pub(crate) fn is_counted(&self) -> bool {
        self.stage.injected.as_ref().is_some_and(|injected| injected.admitted.is_some())
    }

    /// Whether the response should report a usage, or may. Returns `None` if what it says is none.
    pub(crate) fn usage(&self) -> Option<Usage> {
        match &self.stage.injected {
            Some(injected) if injected.asks_for_stored => None,
            _ if self.is_counted() => Some(Usage::Expected),
            _ => Some(Usage::NotExpected),
        }
    }

    /// Uses up a token of the provider's rate. From here on it may be sent, whatever the agent hears of it.
    pub(crate) fn spend_token(&mut self) {
        let injected = self.stage.injected.iter_mut();
        injected.filter_map(|injected| injected.token.take()).for_each(Token::spend);
    }

    /// Notes that it has been sent, so its reservation in the budget is no longer returned.
    pub(crate) fn mark_sent(&mut self) {
        let injected = self.stage.injected.iter_mut();
        injected.filter_map(|injected| injected.admitted.as_mut()).for_each(Admitted::mark_sent);
    }
}

impl<S: HasDestination> Exchange<S> {
    /// The grant.
    pub(crate) fn grant(&self) -> &Grant {
        &self.stage.pinned().grant
    }

    /// The destination.
    pub(crate) fn destination(&self) -> &Destination {
        &self.stage.pinned().destination
    }

    /// The addresses that were judged, to which each reading of the request must be allowed to go.
    pub(crate) fn judged(&self) -> &[IpAddr] {
        &self.stage.pinned().judged
    }

    /// Refuses it after all, because the connection carries something else than was granted.
    pub(crate) fn refuse(self, denial: Denial) -> Denial {
        let denial = denial.or_with_rule(self.grant().rule().as_str());
        self.record.deny(denial)
    }

    /// Ends it as answered by the sidecar itself.
    pub(crate) fn answered(self, status: u16) {
        self.record.answered(status);
    }

    /// Notes the peer that was reached.
    pub(crate) fn reach(&mut self, peer: Peer) {
        self.stage.pinned_mut().reached = Some(peer);
        match peer {
            Peer::Address(address) => self.record.reached(address.socket_addr()),
            Peer::Companion(port) => self.record.reached_companion(port),
        }
    }

    /// Notes the proxy that was reached.
    pub(crate) fn reach_through(&mut self, proxy: &str) {
        self.record.reached_through(proxy);
    }

    /// The peer that was reached, unless it was a proxy.
    pub(crate) fn reached(&self) -> Option<Peer> {
        self.stage.pinned().reached
    }

    /// The record, to be completed as the exchange goes on.
    pub(crate) fn record(&mut self) -> &mut Record {
        &mut self.record
    }
}

/// Counts the octets of an exchange. They reach the record even if the exchange is cut off.
pub(crate) struct Flow<'a> {
    record: &'a mut Record,
    pub(crate) sent: Cell<u64>,
    pub(crate) received: Cell<u64>,
}

impl<'a> Flow<'a> {
    /// Begins to count, with the octets that were sent already.
    pub(crate) fn of(record: &'a mut Record, sent: usize) -> Self {
        Self { record, sent: Cell::new(sent as u64), received: Cell::new(0) }
    }
}

impl Drop for Flow<'_> {
    fn drop(&mut self) {
        self.record.count(self.sent.get(), self.received.get());
    }
}

/// Takes a request through every stage up to the address guard.
pub(crate) async fn pin(
    gate: &Rc<Gate>,
    action: &str,
    target: String,
    asked: policy::Asked,
) -> Result<Exchange<Pinned>, Denial> {
    Exchange::begin(gate, action, target, asked).pin(gate).await
}

#[cfg(test)]
pub(crate) mod tests {
    use policy::{Method, Plane, Target};

    use super::{Exchange, Gate, Rc, Ready};
    use crate::fixture::{gate_for, records_in};

    /// A `GET` of this URL that may be sent.
    pub(crate) async fn ready(gate: &Rc<Gate>, url: &str) -> Exchange<Ready> {
        let target = Target::parse(url).unwrap();
        let asked = policy::Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &target);
        Exchange::begin(gate, "GET", url.into(), asked).pin(gate).await.unwrap().ready(None)
    }

    #[test]
    fn what_is_cut_before_its_name_is_resolved_is_recorded_with_a_reason() {
        let mut audit = tempfile::tempfile().unwrap();
        let rule = "[egress]\nallow = [{ host = \"a.example\" }]\n";
        let gate = gate_for(rule, Vec::new(), Some(audit.try_clone().unwrap()));
        let target = Target::parse("http://a.example/").unwrap();
        let granted = |action: &str| {
            let asked = policy::Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &target);
            Exchange::begin(&gate, action, "http://a.example/".into(), asked).authorize(&gate).unwrap()
        };
        drop(granted("ABANDONED"));
        let under_way = granted("CUT");
        gate.ending().end();
        drop(under_way);
        gate.close().unwrap();
        let records = records_in(&mut audit);
        for (action, reason) in
            [("ABANDONED", "given up before it was answered"), ("CUT", "the sidecar ended while")]
        {
            let record = records.lines().find(|line| line.contains(action)).unwrap();
            assert!(record.contains("\"failed\"") && record.contains(reason), "{record}");
        }
    }

    #[test]
    fn a_denial_of_the_audits_says_that_its_file_may_have_been_removed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let rule = "[egress]\nallow = [{ host = \"a.example\" }]\n";
        let gate = gate_for(rule, Vec::new(), Some(file.reopen().unwrap()));
        file.close().unwrap();
        let target = Target::parse("http://a.example/").unwrap();
        let asked = policy::Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &target);
        let denied = Exchange::begin(&gate, "GET", "http://a.example/".into(), asked).authorize(&gate);
        let reason = denied.unwrap_err().reason;
        assert!(reason.contains("its file was removed"), "{reason}");
    }
}
