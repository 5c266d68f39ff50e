//! One request on its way out, as a value that each stage consumes and returns in its next state.
//!
//! Only [`policy::Policy::decide`] makes a grant, only [`Exchange::guard`] makes a [`PinnedAddr`], and only those are
//! dialled: a stage cannot be left out, because the next one does not accept what came before it.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use policy::{Denial, Grant, Guard};

use crate::audit::Record;
use crate::gate::Gate;
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
}

/// Every address has been judged. The only state that can be dialled.
#[derive(Debug)]
pub(crate) struct Pinned {
    grant: Grant,
    addresses: Vec<PinnedAddr>,
}

/// An address and port that passed the guard for one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PinnedAddr(SocketAddr);

impl PinnedAddr {
    pub(crate) fn socket_address(self) -> SocketAddr {
        self.0
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

    /// Asks the policy.
    pub(crate) fn authorize(mut self, gate: &Gate) -> Result<Exchange<Granted>, Denial> {
        if gate.audit().borrow().is_broken() {
            let denial = Denial::new(Guard::Audit, "the audit cannot be written; is the disk full?");
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
    pub(crate) fn refuse_unreadable(gate: &Rc<Gate>, plane: policy::Plane, target: &str, denial: Denial) -> Denial {
        Record::begin(gate, plane, "HTTP", target.escape_default().to_string()).deny(denial)
    }

    /// Records that a name was not answered.
    pub(crate) fn refuse_name(gate: &Rc<Gate>, name: &policy::Hostname, denial: Denial) {
        Record::begin(gate, policy::Plane::Dns, "DNS", name.to_string()).deny(denial);
    }

}

impl Exchange<Granted> {
    /// Finds the addresses of the host, unless the rule itself gives them.
    pub(crate) async fn resolve(mut self, answers: &Answers) -> Result<Exchange<Resolved>, Denial> {
        let grant = self.stage.0;
        let found = match grant.addresses() {
            Some(given) => Ok(given.to_vec()),
            None => answers.of(grant.host()).await,
        };
        match found {
            Ok(found) => Ok(Exchange { stage: Resolved { grant, found }, record: self.record }),
            Err(denial) => {
                self.record.rule(grant.rule().as_str());
                Err(self.record.deny(denial.with_rule(grant.rule().as_str())))
            }
        }
    }
}

impl Exchange<Resolved> {
    /// Judges every address, every time (E14).
    pub(crate) fn guard(self) -> Result<Exchange<Pinned>, Denial> {
        let Resolved { grant, found } = self.stage;
        if let Err(denial) = grant.vet(&found) {
            return Err(self.record.deny(denial));
        }
        let port = grant.port().number();
        let addresses = found.into_iter().map(|ip| PinnedAddr(SocketAddr::new(ip, port))).collect();
        Ok(Exchange { stage: Pinned { grant, addresses }, record: self.record })
    }
}

impl Exchange<Pinned> {
    /// What was granted.
    pub(crate) fn grant(&self) -> &Grant {
        &self.stage.grant
    }

    /// The addresses that may be dialled, in the order in which they were found.
    pub(crate) fn addresses(&self) -> &[PinnedAddr] {
        &self.stage.addresses
    }

    /// Refuses it after all: what came over the connection was not what was granted.
    pub(crate) fn refuse(self, denial: Denial) -> Denial {
        let rule = self.stage.grant.rule().as_str().to_owned();
        self.record.deny(denial.with_rule(rule))
    }

    /// The record, to be completed as the exchange goes on.
    pub(crate) fn record(&mut self) -> &mut Record {
        &mut self.record
    }
}

/// Takes a request through every stage up to the address guard.
pub(crate) async fn pin(
    gate: &Rc<Gate>,
    action: &str,
    target: String,
    asked: policy::Asked,
) -> Result<Exchange<Pinned>, Denial> {
    let granted = Exchange::begin(gate, action, target, asked).authorize(gate)?;
    granted.resolve(gate.answers()).await?.guard()
}
