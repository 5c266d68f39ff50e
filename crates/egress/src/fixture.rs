//! What tests of several modules share: a gate, and what it recorded.

use std::fs::File;
use std::io::{Read, Seek};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use crate::{Answers, Gate, GateOptions, SigningKey};

/// Returns the options of a gate with this policy, given as the text of a file.
pub(crate) fn options_for(policy: &str) -> GateOptions {
    let mut layers = policy::Layers::default();
    layers.push(policy::Origin::Named("test".into()), toml::from_str(policy).unwrap());
    let spec = layers.compile().unwrap();
    GateOptions::new(spec.policy, spec.spending, policy::RunId::from_random([0; 12]))
}

/// Opens a gate whose resolver has these addresses for every name, and whose audit goes to a file.
pub(crate) fn gate_for(policy: &str, addresses: Vec<IpAddr>, audit: Option<File>) -> Rc<Gate> {
    Gate::open(GateOptions {
        answers: Some(Answers::Given(addresses)),
        audit: audit.map(|file| (Arc::new(file), SigningKey::generate().unwrap().0)),
        ..options_for(policy)
    })
    .unwrap()
}

/// Reads the records in the file of an audit, from its beginning.
pub(crate) fn records_in(audit: &mut File) -> String {
    let mut records = String::new();
    audit.rewind().unwrap();
    audit.read_to_string(&mut records).unwrap();
    records
}
