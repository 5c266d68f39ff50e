//! One request on its way out, as a value that each stage consumes and returns in its next state.
//!
//! Only [`policy::Policy::decide`] makes a grant, only [`Exchange::guard`] makes a [`PinnedAddr`], and only those are
//! dialled: a stage cannot be left out, because the next one does not accept what came before it.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use policy::{Denial, Grant, Guard, Port, Proxy};

use crate::audit::Record;
use crate::credentials::Held;
use crate::gate::Gate;
use crate::inject::draft::{Draft, Injected};
use crate::llm::Admitted;
use crate::resolve::Answers;

/// What was asked; nothing has been decided.
#[derive(Debug)]
pub(crate) struct Asked(policy::Asked);

/// The policy granted it; no name has been resolved.
#[derive(Debug)]
pub(crate) struct Granted(Grant);

/// The name has addresses; none has been judged.
#[derive(Debug)]
pub(crate) struct Resolved {
    grant: Grant,
    found: Vec<IpAddr>,
    proxy: Option<Arc<Proxy>>,
}

/// Every address has been judged. The only state that can be dialled.
#[derive(Debug)]
pub(crate) struct Pinned {
    grant: Grant,
    addresses: Vec<PinnedAddr>,
    /// The proxy it goes through instead of to one of the addresses.
    proxy: Option<Arc<Proxy>>,
    reached: Option<PinnedAddr>,
}

/// Credentials have been put into it, or none belong there. The only state that is sent to an upstream as a request.
pub(crate) struct Ready {
    pinned: Pinned,
    injected: Option<Injected>,
}

/// A state in which there are addresses to reach.
pub(crate) trait Reach {
    fn pinned(&self) -> &Pinned;
    fn pinned_mut(&mut self) -> &mut Pinned;
}

impl Reach for Pinned {
    fn pinned(&self) -> &Pinned {
        self
    }

    fn pinned_mut(&mut self) -> &mut Pinned {
        self
    }
}

impl Reach for Ready {
    fn pinned(&self) -> &Pinned {
        &self.pinned
    }

    fn pinned_mut(&mut self) -> &mut Pinned {
        &mut self.pinned
    }
}

/// Where one exchange may be dialled: what passed the guard for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PinnedAddr(Pin);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Pin {
    /// An address and port of the world's.
    Outside(SocketAddr),
    /// A port of the companion that was granted, which has no address.
    Companion(Port),
}

impl PinnedAddr {
    /// The address and port; or the port of the companion that was granted.
    pub(crate) fn place(self) -> Result<SocketAddr, Port> {
        match self.0 {
            Pin::Outside(address) => Ok(address),
            Pin::Companion(port) => Err(port),
        }
    }
}

/// A request in one of its states, with the record that will be written of it whatever happens.
#[derive(Debug)]
pub(crate) struct Exchange<S> {
    stage: S,
    record: Record,
}

impl Exchange<Asked> {
    /// Begins an exchange: from here on there is exactly one audit record of it.
    pub(crate) fn begin(gate: &Rc<Gate>, action: &str, target: String, asked: policy::Asked) -> Self {
        let record = Record::begin(gate, asked.plane, action, target);
        Self { stage: Asked(asked), record }
    }

    /// Says what the connection turned out to carry.
    pub(crate) fn carries(mut self, action: &str, view: policy::View) -> Self {
        self.stage.0.view = view;
        self.record.action(action);
        self
    }

    /// Lets go of it: its requests are exchanges of their own.
    pub(crate) fn into_requests(self) {
        self.record.discard();
    }

    /// Goes through every stage up to the address guard.
    pub(crate) async fn pin(self, gate: &Gate) -> Result<Exchange<Pinned>, Denial> {
        self.authorize(gate)?.pin(gate).await
    }

    /// Asks the policy.
    pub(crate) fn authorize(mut self, gate: &Gate) -> Result<Exchange<Granted>, Denial> {
        if gate.audit().borrow().is_broken() {
            let denial = Denial::new(
                Guard::Audit,
                "the audit cannot be written: the disk is full, or this run has filled its 256 MiB of records",
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

    /// Records a request that was refused before it said beyond doubt where it goes.
    pub(crate) fn refuse_unreadable(
        gate: &Rc<Gate>,
        plane: policy::Plane,
        target: &str,
        denial: Denial,
    ) -> Denial {
        Record::begin(gate, plane, "HTTP", target.escape_default().to_string()).deny(denial)
    }

    /// Records a request that the gateway answers by itself, with a status.
    pub(crate) fn answered(gate: &Rc<Gate>, method: &str, target: &str, status: u16) {
        let target = target.escape_default().to_string();
        Record::begin(gate, policy::Plane::Gateway, method, target).answered(status);
    }

    /// Records that a name was not answered.
    pub(crate) fn refuse_name(gate: &Rc<Gate>, name: &str, denial: Denial) {
        Record::begin(gate, policy::Plane::Dns, "DNS", name.to_owned()).deny(denial);
    }
}

impl Exchange<Granted> {
    /// What was granted.
    pub(crate) fn grant(&self) -> &Grant {
        &self.stage.0
    }

    /// Lets go of it: its requests are exchanges of their own.
    pub(crate) fn into_requests(self) {
        self.record.discard();
    }

    /// Refuses it after all: what came over the connection was not what was granted.
    pub(crate) fn refuse(self, denial: Denial) -> Denial {
        let rule = self.stage.0.rule().as_str().to_owned();
        self.record.deny(denial.with_rule(rule))
    }

    /// Ends it: it was let through and came to nothing.
    pub(crate) fn fail(mut self, why: &str) {
        self.record.fail(why);
    }

    /// Goes through the stages that are left up to the address guard.
    pub(crate) async fn pin(self, gate: &Gate) -> Result<Exchange<Pinned>, Denial> {
        if self.stage.0.is_companion() {
            return Ok(self.pin_companion());
        }
        let proxy = gate.policy().proxies().on_the_way_to(self.stage.0.host()).cloned();
        self.resolve(gate.answers(), proxy).await?.guard(gate)
    }

    /// The same, through a proxy that the request itself names.
    pub(crate) async fn pin_through(
        self,
        gate: &Gate,
        proxy: Arc<Proxy>,
    ) -> Result<Exchange<Pinned>, Denial> {
        if self.stage.0.is_companion() {
            return Ok(self.pin_companion());
        }
        self.resolve(gate.answers(), Some(proxy)).await?.guard(gate)
    }

    /// A companion is part of the run: its name is not resolved, and no proxy is on the way to it.
    fn pin_companion(self) -> Exchange<Pinned> {
        let grant = self.stage.0;
        let addresses = vec![PinnedAddr(Pin::Companion(grant.port()))];
        Exchange { stage: Pinned { grant, addresses, proxy: None, reached: None }, record: self.record }
    }

    /// Finds the addresses of the host, unless the rule itself gives them.
    pub(crate) async fn resolve(
        mut self,
        answers: &Answers,
        proxy: Option<Arc<Proxy>>,
    ) -> Result<Exchange<Resolved>, Denial> {
        let grant = self.stage.0;
        let found = match grant.addresses() {
            Some(given) => Ok(given.to_vec()),
            None => answers.of(grant.host()).await,
        };
        match found {
            Ok(found) => Ok(Exchange { stage: Resolved { grant, found, proxy }, record: self.record }),
            // Behind a proxy the names of the world need not resolve here; the proxy is asked by name (S1.44).
            Err(denial) if proxy.is_some() && denial.guard == Guard::NoAddress => {
                Ok(Exchange { stage: Resolved { grant, found: Vec::new(), proxy }, record: self.record })
            }
            Err(denial) => {
                self.record.rule(grant.rule().as_str());
                Err(self.record.deny(denial.with_rule(grant.rule().as_str())))
            }
        }
    }
}

impl Exchange<Resolved> {
    /// Judges every address, every time (E14).
    pub(crate) fn guard(self, gate: &Gate) -> Result<Exchange<Pinned>, Denial> {
        let Resolved { grant, found, proxy } = self.stage;
        if proxy.is_some() && found.is_empty() {
            return Ok(Exchange {
                stage: Pinned { grant, addresses: Vec::new(), proxy, reached: None },
                record: self.record,
            });
        }
        let named = |ip: &IpAddr| grant.addresses().is_some_and(|list| list.contains(ip));
        let vetted = grant.vet(&found).and_then(|()| {
            found.iter().filter(|ip| !named(ip)).try_for_each(|ip| match gate.is_own(*ip) {
                Ok(false) => Ok(()),
                Ok(true) => Err(Denial::new(Guard::Address, grant.placed(*ip, "this machine"))),
                Err(error) => {
                    let why =
                        format!("{ip} may be this machine's own, and the kernel does not tell: {error}");
                    Err(Denial::new(Guard::Address, why))
                }
            })
        });
        if let Err(denial) = vetted {
            // Where a deny rule names an address, that one decided.
            let rule = denial.rule.clone().unwrap_or_else(|| grant.rule().as_str().to_owned());
            return Err(self.record.deny(denial.with_rule(rule)));
        }
        let port = grant.port().number();
        // What goes through a proxy is dialled by the proxy: the addresses have been judged and are not used.
        let direct = found.into_iter().filter(|_| proxy.is_none());
        let addresses = direct.map(|ip| PinnedAddr(Pin::Outside(SocketAddr::new(ip, port)))).collect();
        Ok(Exchange { stage: Pinned { grant, addresses, proxy, reached: None }, record: self.record })
    }
}

impl Exchange<Pinned> {
    /// Notes the credential that is part of it from now on. Only `inject` calls this, after it has looked at the request.
    pub(crate) fn ready(mut self, injected: Option<Injected>) -> Exchange<Ready> {
        if let Some(injected) = &injected {
            self.record.provider(injected.held.provider());
        }
        Exchange { stage: Ready { pinned: self.stage, injected }, record: self.record }
    }
}

impl Exchange<Ready> {
    /// The credential that is part of the request, which must not be in the answer.
    pub(crate) fn held(&self) -> Option<&Rc<Held>> {
        self.stage.injected.as_ref().map(|injected| &injected.held)
    }

    /// The request before the credential was put in.
    pub(crate) fn draft(&self) -> Option<&Draft> {
        self.stage.injected.as_ref().map(|injected| &injected.draft)
    }

    /// Notes that another credential has taken the place of the one that was refused.
    pub(crate) fn hold(&mut self, new: Rc<Held>) {
        if let Some(injected) = &mut self.stage.injected {
            injected.held = new;
        }
    }

    /// Whether it asks a model for something, and stands in the run's account.
    pub(crate) fn is_counted(&self) -> bool {
        self.stage.injected.as_ref().is_some_and(|injected| injected.admitted.is_some())
    }

    /// Notes that it has gone out: what it takes is no longer given back.
    pub(crate) fn mark_sent(&mut self) {
        let injected = self.stage.injected.iter_mut();
        injected.filter_map(|injected| injected.admitted.as_mut()).for_each(Admitted::mark_sent);
    }
}

impl<S: Reach> Exchange<S> {
    /// What was granted.
    pub(crate) fn grant(&self) -> &Grant {
        &self.stage.pinned().grant
    }

    /// The addresses that may be dialled, in the order in which they were found.
    pub(crate) fn addresses(&self) -> &[PinnedAddr] {
        &self.stage.pinned().addresses
    }

    /// Refuses it after all: what came over the connection was not what was granted.
    pub(crate) fn refuse(self, denial: Denial) -> Denial {
        let rule = self.grant().rule().as_str().to_owned();
        self.record.deny(denial.with_rule(rule))
    }

    /// Notes which of them answered.
    pub(crate) fn reach(&mut self, address: PinnedAddr) {
        self.stage.pinned_mut().reached = Some(address);
        match address.place() {
            Ok(address) => self.record.reached(address),
            Err(port) => self.record.reached_companion(port),
        }
    }

    /// The proxy it goes through.
    pub(crate) fn proxy(&self) -> Option<&Arc<Proxy>> {
        self.stage.pinned().proxy.as_ref()
    }

    /// Notes that the proxy answered.
    pub(crate) fn reach_through(&mut self, proxy: &str) {
        self.record.reached_through(proxy);
    }

    /// Which of them answered.
    pub(crate) fn reached(&self) -> Option<PinnedAddr> {
        self.stage.pinned().reached
    }

    /// The record, to be completed as the exchange goes on.
    pub(crate) fn record(&mut self) -> &mut Record {
        &mut self.record
    }
}

/// What has moved in an exchange so far. It reaches the record even when the exchange is cut off in the middle.
pub(crate) struct Flow<'a> {
    record: &'a mut Record,
    pub(crate) sent: Cell<u64>,
    pub(crate) received: Cell<u64>,
}

impl<'a> Flow<'a> {
    /// Begins to count, with what has gone on already.
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
