//! One question, one answer: pure, but for the names it adds to the table.

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use policy::{Denial, Guard, Hostname};

use crate::gate::Gate;

/// How long an answer holds, in seconds: the address stays the name's for the whole run.
const TTL: u32 = 60;
/// The largest answer over UDP that is offered. RFC 9715.
const UDP_PAYLOAD: u16 = 1232;

/// What became of a question.
pub(super) struct Answered {
    /// The answer; nothing is sent for octets that are no question.
    pub(super) bytes: Option<Vec<u8>>,
    /// A name that was denied.
    pub(super) denied: Option<(String, Denial)>,
}

/// Answers the octets of one datagram or one framed message.
pub(super) fn answer(gate: &Gate, question: &[u8]) -> Answered {
    let nothing = Answered { bytes: None, denied: None };
    let Ok(request) = Message::from_vec(question) else { return nothing };
    if request.metadata.message_type != MessageType::Query {
        return nothing;
    }
    let mut response = Message::response(request.metadata.id, request.metadata.op_code);
    response.metadata.recursion_desired = request.metadata.recursion_desired;
    response.metadata.recursion_available = true;
    if request.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_PAYLOAD);
        response.edns = Some(edns);
    }
    let mut denied = None;
    match request.queries.as_slice() {
        [query] if request.metadata.op_code == OpCode::Query => {
            response.queries.push(query.clone());
            match decide(gate, query) {
                Ok(record) => response.answers.extend(record),
                Err((code, denial)) => {
                    response.metadata.response_code = code;
                    denied = denial;
                }
            }
        }
        _ => response.metadata.response_code = ResponseCode::NotImp,
    }
    Answered { bytes: response.to_vec().ok(), denied }
}

type Refusal = (ResponseCode, Option<(String, Denial)>);

/// The record for an allowed name, none where there is no data of that type, or NXDOMAIN.
fn decide(gate: &Gate, query: &Query) -> Result<Option<Record>, Refusal> {
    if query.query_class() != DNSClass::IN {
        return Err((ResponseCode::Refused, None));
    }
    // What is no name of a host does not exist: service labels, escapes, other alphabets.
    let text = query.name().to_ascii();
    let name = match Hostname::parse(&text) {
        Ok(name) => name,
        Err(why) => {
            let denial = Denial::new(Guard::HostForm, format!("it is not the name of a host: {why}"));
            return Err((ResponseCode::NXDomain, Some((text.escape_default().to_string(), denial))));
        }
    };
    let own = gate.names().borrow().own(&name);
    let (v4, v6) = match own {
        Some(pair) => pair,
        None => {
            if let Err(denial) = gate.policy().decide_name(&name) {
                return Err((ResponseCode::NXDomain, Some((name.to_string(), denial))));
            }
            gate.names().borrow_mut().addresses(&name)
        }
    };
    let data = match query.query_type() {
        RecordType::A => RData::A(A(v4)),
        RecordType::AAAA => match v6 {
            Some(v6) => RData::AAAA(AAAA(v6)),
            None => return Ok(None),
        },
        // HTTPS and SVCB among them: no encrypted client hello, no HTTP/3.
        _ => return Ok(None),
    };
    Ok(Some(Record::from_rdata(query.name().clone(), TTL, data)))
}
