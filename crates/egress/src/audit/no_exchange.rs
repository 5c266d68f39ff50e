//! The records of what never becomes an exchange, because nothing is asked of the policy for it.

use std::rc::Rc;

use policy::agreed::SIDECAR_NAME;
use policy::{Denial, Guard, Plane};

use super::Record;
use crate::gate::Gate;

/// Records a request that is refused before the policy is asked, and returns its denial.
pub(crate) fn record_refused_unasked(gate: &Rc<Gate>, plane: Plane, target: &str, denial: Denial) -> Denial {
    Record::begin(gate, plane, "HTTP", target.escape_default().to_string()).deny(denial)
}

/// Records a request that the gateway answered by itself.
pub(crate) fn record_own_answer(gate: &Rc<Gate>, method: &str, target: &str, status: u16) {
    Record::begin(gate, Plane::Gateway, method, target.escape_default().to_string()).answered(status);
}

/// Records a connection to a port of the sidecar's own address that serves nothing.
pub(crate) fn record_own_port(gate: &Rc<Gate>, port: u16) {
    let denial = Denial::new(Guard::ReservedName, format!("the sidecar serves nothing at port {port}"));
    Record::begin(gate, Plane::Transparent, "TCP", format!("{SIDECAR_NAME}:{port}")).deny(denial);
}

/// Records a datagram, which no rule can allow.
pub(crate) fn record_datagram(gate: &Rc<Gate>, target: String, denial: Denial) {
    Record::begin(gate, Plane::Transparent, "UDP", target).deny(denial);
}

/// Records a denied question of DNS.
pub(crate) fn record_denied_name(gate: &Rc<Gate>, name: &str, denial: Denial) {
    Record::begin(gate, Plane::Dns, "DNS", name.to_owned()).deny(denial);
}
