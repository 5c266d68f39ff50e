//! Answers one DNS message. Its only effect is that an allowed name is added to the table.

use std::net::IpAddr;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, PTR};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use policy::{Denial, Guard, Hostname};

use super::names::NameAddresses;
use super::reverse::address_of;
use crate::gate::Gate;

/// The TTL of a record, in seconds. The address stands for the name for the whole run.
const TTL: u32 = 60;
/// The header of a message, in octets (RFC 1035 §4.1.1).
pub(super) const HEADER: usize = 12;
/// The largest UDP payload that EDNS offers (RFC 9715).
const UDP_PAYLOAD: u16 = 1232;

/// The targets in the records of what asks for no name. There is one record of each.
const UNREADABLE: &str = "unreadable question";
const NO_QUESTION: &str = "message without one question";
/// The record's target of questions in another class than IN. By their names they would hide those of IN.
const OTHER_CLASS: &str = "question in another class";

/// The outcome of a question.
pub(super) struct Answered {
    /// The answer; `None` for octets that are no question.
    pub(super) bytes: Option<Vec<u8>>,
    /// What was denied.
    pub(super) denied: Option<DeniedName>,
}

/// A name that was denied, or what was asked in place of one, and why.
pub(super) struct DeniedName {
    pub(super) name: String,
    pub(super) denial: Denial,
}

/// Answers the octets of one datagram or one framed message.
pub(super) fn answer(gate: &Gate, question: &[u8]) -> Answered {
    let Ok(request) = Message::from_vec(question) else { return unreadable(question) };
    if request.metadata.message_type != MessageType::Query {
        return unreadable(question);
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
                Err(refusal) => {
                    response.metadata.response_code = refusal.code;
                    denied = refusal.denied;
                }
            }
        }
        queries => {
            response.metadata.response_code = ResponseCode::NotImp;
            denied = Some(no_question(request.metadata.op_code, queries.len()));
        }
    }
    Answered { bytes: response.to_vec().ok(), denied }
}

/// Returns the denial of a message of another kind than a question for one name.
fn no_question(kind: OpCode, questions: usize) -> DeniedName {
    let reason = match kind {
        OpCode::Query => format!("it has {questions} questions, and one is answered"),
        kind => format!("it is a {kind}, and only questions are answered"),
    };
    DeniedName { name: NO_QUESTION.into(), denial: Denial::new(Guard::Protocol, reason) }
}

/// Answers a question that cannot be read with a format error, if it has a whole header (RFC 1035 §4.1.1). To an answer nothing is said.
fn unreadable(question: &[u8]) -> Answered {
    const ANSWER: u8 = 0x80;
    let denial = Denial::new(Guard::Framing, "it is no question that can be read");
    let denied = Some(DeniedName { name: UNREADABLE.into(), denial });
    let Some(&[first, second, flags, ..]) = question.get(..HEADER).filter(|header| header[2] & ANSWER == 0)
    else {
        return Answered { bytes: None, denied };
    };
    // The kind of question, and whether recursion was asked for, are the asker's.
    let (flags, code) = (ANSWER | flags & 0x79, ResponseCode::FormErr.low());
    Answered { bytes: Some(vec![first, second, flags, code, 0, 0, 0, 0, 0, 0, 0, 0]), denied }
}

/// An answer without data: its code, and the name if it was denied.
struct Refusal {
    code: ResponseCode,
    denied: Option<DeniedName>,
}

impl Refusal {
    fn denied(name: String, denial: Denial) -> Self {
        Self { code: ResponseCode::NXDomain, denied: Some(DeniedName { name, denial }) }
    }
}

/// Returns the record of an allowed name, or none if it has no data of that type. A denied name is NXDOMAIN.
fn decide(gate: &Gate, query: &Query) -> Result<Option<Record>, Refusal> {
    let text = query.name().to_ascii();
    let class = query.query_class();
    if class != DNSClass::IN {
        let denial = Denial::new(Guard::Protocol, format!("its class is {class}, and only IN is answered"));
        let name = OTHER_CLASS.to_owned();
        return Err(Refusal { code: ResponseCode::Refused, denied: Some(DeniedName { name, denial }) });
    }
    if query.query_type() == RecordType::PTR
        && let Some(address) = address_of(&text)
    {
        return name_at(gate, address, query);
    }
    // Names that no host can have do not exist: service labels, escapes, other alphabets.
    let name = match Hostname::parse(&text) {
        Ok(name) => name,
        Err(_) if host_of_service(&text).is_some_and(|host| may_resolve(gate, &host)) => {
            return Err(Refusal { code: ResponseCode::NXDomain, denied: None });
        }
        Err(why) => {
            let denial = Denial::new(Guard::HostForm, format!("it is not the name of a host: {why}"));
            return Err(Refusal::denied(text.escape_default().to_string(), denial));
        }
    };
    let own = gate.names().borrow().own(&name);
    let NameAddresses { v4, v6 } = match own {
        Some(addresses) => addresses,
        None => {
            if let Err(denial) = gate.policy().decide_name(&name) {
                return Err(Refusal::denied(name.to_string(), denial));
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
        // No data for HTTPS and SVCB, so no encrypted ClientHello and no HTTP/3.
        _ => return Ok(None),
    };
    Ok(Some(Record::from_rdata(query.name().clone(), TTL, data)))
}

/// Returns the record of the name that an address stands for. That there is none is no denial: a program that lists its connections asks
/// so for each address.
fn name_at(gate: &Gate, address: IpAddr, query: &Query) -> Result<Option<Record>, Refusal> {
    let names = gate.names().borrow();
    let name = names.reverse(address).and_then(|name| Name::from_ascii(format!("{name}.")).ok());
    let none = Refusal { code: ResponseCode::NXDomain, denied: None };
    let data = RData::PTR(PTR(name.ok_or(none)?));
    Ok(Some(Record::from_rdata(query.name().clone(), TTL, data)))
}

fn may_resolve(gate: &Gate, name: &Hostname) -> bool {
    gate.names().borrow().own(name).is_some() || gate.policy().decide_name(name).is_ok()
}

/// Returns the host of a name that asks for a service of it or for a fact about it, as `_443._https.a.example` (RFC 8552).
fn host_of_service(name: &str) -> Option<Hostname> {
    let mut rest = name;
    while let Some(label) = rest.strip_prefix('_') {
        let (label, behind) = label.split_once('.')?;
        let is_plain = label.bytes().all(|it| it.is_ascii_alphanumeric() || b"-_".contains(&it));
        rest = is_plain.then_some(behind)?;
    }
    Hostname::parse(rest).ok()
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use std::rc::Rc;

    use policy::{Layers, NameNetwork, Origin, RunId, Wiring};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::dns::NameRange;
    use crate::gate::GateOptions;

    /// The start of a small range, and how many names it has room for.
    const SMALL: (Ipv4Addr, u32) = (Ipv4Addr::new(198, 18, 7, 3), 3);

    fn gate(names: NameRange) -> Rc<Gate> {
        let rules = "[[egress.allow]]\nhost = \"api.example.com\"\n\n\
                     [[egress.allow]]\nhost = \"**.allowed.example.com\"\n\n\
                     [[egress.deny]]\nhost = \"not.allowed.example.com\"\n";
        let mut layers = Layers::default();
        layers.push(Origin::Named("test".into()), toml::from_str(rules).unwrap());
        let spec = layers.compile().unwrap();
        let options = GateOptions::new(spec.policy, spec.spending, RunId::from_random([0; 12]));
        Gate::open(GateOptions { names, ..options }).unwrap()
    }

    fn ranges() -> impl Strategy<Value = NameRange> {
        let default = NameNetwork::default();
        let own = "22.0.0.0/16".parse().unwrap();
        let of_networks =
            [(default, Wiring::Veth), (own, Wiring::Redirect)].map(|(it, by)| NameRange::of(it, by));
        select([&of_networks[..], &[NameRange::default(), NameRange::after(SMALL.0, SMALL.1)]].concat())
    }

    type Labels = Vec<Vec<u8>>;

    /// Names near the allowed ones, in any letter case, with any labels in front.
    fn labels() -> impl Strategy<Value = Labels> {
        let known = [
            "api.example.com",
            "allowed.example.com",
            "not.allowed.example.com",
            "example.com",
            "sidecar",
            "localhost",
            "",
        ];
        let ldh = "[a-zA-Z0-9]{1,8}".prop_map(String::into_bytes);
        let front = prop_oneof![4 => ldh, 1 => vec(any::<u8>(), 1..=63), 1 => Just(b"api.example".to_vec())];
        (vec(front, 0..3), select(known.to_vec()), any::<u64>()).prop_map(|(mut labels, known, upper)| {
            labels.extend(known.split('.').filter(|label| !label.is_empty()).map(|l| l.as_bytes().to_vec()));
            for (at, octet) in labels.iter_mut().flatten().enumerate() {
                if upper >> (at % 64) & 1 == 1 {
                    octet.make_ascii_uppercase();
                }
            }
            labels
        })
    }

    /// The question section: a name, a type, a class.
    fn section(labels: &Labels, kind: u16, class: u16) -> Vec<u8> {
        let mut section = Vec::new();
        for label in labels {
            section.push(label.len() as u8);
            section.extend(label);
        }
        section.push(0);
        section.extend(kind.to_be_bytes());
        section.extend(class.to_be_bytes());
        section
    }

    fn message(id: u16, section: &[u8]) -> Vec<u8> {
        [&id.to_be_bytes()[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0], section].concat()
    }

    /// Nearly valid questions: some octets are changed, some are missing.
    fn damaged() -> impl Strategy<Value = Vec<u8>> {
        let kinds = prop_oneof![4 => select(vec![1_u16, 28]), 1 => any::<u16>()];
        let classes = prop_oneof![6 => Just(1_u16), 1 => any::<u16>()];
        let others = vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
        (any::<u16>(), labels(), kinds, classes, others, any::<prop::sample::Index>(), any::<bool>())
            .prop_map(|(id, labels, kind, class, others, end, is_cut)| {
                let mut octets = message(id, &section(&labels, kind, class));
                for (at, octet) in others {
                    let at = at.index(octets.len());
                    octets[at] = octet;
                }
                if is_cut {
                    octets.truncate(end.index(octets.len()));
                }
                octets
            })
    }

    /// Whether the rules of `gate` allow a name, or it is the sandbox's own: an implementation independent of the policy's.
    fn is_allowed(labels: &Labels) -> bool {
        let labels: Vec<Vec<u8>> = labels.iter().map(|label| label.to_ascii_lowercase()).collect();
        let is = |name: &str| labels.iter().map(Vec::as_slice).eq(name.split('.').map(str::as_bytes));
        let below: Vec<&[u8]> = "allowed.example.com".split('.').map(str::as_bytes).collect();
        let plain = |label: &Vec<u8>| {
            let ends = [label.first(), label.last()];
            label.iter().all(|o| o.is_ascii_alphanumeric() || *o == b'-') && !ends.contains(&Some(&b'-'))
        };
        ["api.example.com", "sidecar", "localhost"].iter().any(|name| is(name))
            || labels.len() > below.len()
                && labels.ends_with(&below.iter().map(|label| label.to_vec()).collect::<Vec<_>>())
                && labels.iter().all(plain)
                && !is("not.allowed.example.com")
    }

    /// An answer, parsed without the library that wrote it.
    struct Read {
        labels: Labels,
        code: u8,
        address: Option<IpAddr>,
    }

    fn read(question: &[u8], answer: &[u8]) -> Read {
        assert!(answer.len() >= 12 && answer.len() <= 512, "{} octets", answer.len()); // RFC 1035 §4.2.1
        assert_eq!(answer[..2], question[..2], "the id");
        assert_eq!(answer[2] & 0x80, 0x80, "it is an answer");
        let code = answer[3] & 15;
        assert!(matches!(code, 0 | 1 | 3 | 4 | 5), "code {code}");
        let count = |at: usize| u16::from_be_bytes([answer[at], answer[at + 1]]);
        assert!(count(4) <= 1 && count(6) <= count(4) && count(8) == 0 && count(10) <= 1, "{answer:?}");
        let mut labels = Labels::new();
        let mut at = 12;
        if count(4) == 1 {
            while answer[at] != 0 {
                let length = usize::from(answer[at]);
                assert!(length < 64, "a question is not compressed");
                labels.push(answer[at + 1..=at + length].to_vec());
                at += length + 1;
            }
            at += 1;
        }
        let (asked, address) = (answer.get(at..at + 4), answer.get(at + 4..));
        let address = (count(6) == 1).then(|| {
            // The record's name is a pointer to the question's, or the root.
            let record = address.unwrap().strip_prefix(&[0xc0, 12]).or(address.unwrap().strip_prefix(&[0]));
            let record = record.expect("a record of the name that was asked for");
            assert_eq!(record[..4], *asked.unwrap(), "a record of another type or class");
            let (length, data) = (usize::from(record[9]), &record[10..]);
            match (&record[..4], length) {
                (&[0, 1, 0, 1], 4) => IpAddr::from(<[u8; 4]>::try_from(&data[..4]).unwrap()),
                (&[0, 28, 0, 1], 16) => IpAddr::from(<[u8; 16]>::try_from(&data[..16]).unwrap()),
                other => panic!("a record of {other:?}"),
            }
        });
        Read { labels, code, address }
    }

    /// Asks a question, and checks the invariants of any answer.
    fn put(gate: &Gate, question: &[u8]) -> Option<Read> {
        let answered = answer(gate, question);
        let Some(bytes) = answered.bytes else {
            assert!(answered.denied.is_some(), "nothing was said, and nothing is recorded");
            return None;
        };
        let read = read(question, &bytes);
        if let Some(address) = read.address {
            assert!(read.code == 0 && is_allowed(&read.labels), "{:?} has {address}", read.labels);
            let text = read.labels.join(&b'.').to_ascii_lowercase();
            let name = Hostname::parse(std::str::from_utf8(&text).unwrap()).unwrap();
            let known = gate.names().borrow().name_of(address) == Some(&name);
            let own = match name.as_str() {
                "localhost" => {
                    [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()].contains(&address)
                }
                "sidecar" => gate.names().borrow().is_sidecar(address),
                _ => false,
            };
            assert!(known || own, "{name} has {address}, which leads nowhere of ours");
        }
        Some(read)
    }

    #[test]
    fn what_cannot_be_read_is_told_so_and_recorded() {
        let gate = gate(NameRange::default());
        let good = message(7, &section(&vec![b"api".to_vec(), b"example".to_vec(), b"com".to_vec()], 1, 1));
        let compressed_loop = message(7, &[0xc0, 12, 0, 1, 0, 1]);
        for question in [&good[..20], &compressed_loop[..], &good[..12]] {
            let answered = answer(&gate, question);
            assert_eq!(answered.bytes.unwrap(), [0, 7, 0x81, 1, 0, 0, 0, 0, 0, 0, 0, 0], "{question:?}");
            let denied = answered.denied.unwrap();
            assert_eq!((denied.name.as_str(), denied.denial.guard), (UNREADABLE, Guard::Framing));
        }
        let mut reply = good[..20].to_vec();
        reply[2] |= 0x80;
        let mut whole_reply = good.clone();
        whole_reply[2] |= 0x80;
        for nothing in [&good[..11], &reply[..], &whole_reply[..], b""] {
            let answered = answer(&gate, nothing);
            let denied = answered.denied.map(|denied| (denied.name, denied.denial.guard));
            assert_eq!(
                (answered.bytes, denied),
                (None, Some((UNREADABLE.into(), Guard::Framing))),
                "{nothing:?}"
            );
        }
    }

    #[test]
    fn what_asks_for_nothing_that_is_answered_is_recorded() {
        let gate = gate(NameRange::default());
        let section = |class| section(&vec![b"api".to_vec(), b"example".to_vec(), b"com".to_vec()], 1, class);
        let good = message(7, &section(1));
        let of_kind = |kind: u8| [&good[..2], &[kind << 3 | 1], &good[3..]].concat();
        let two = [&good[..4], &[0, 2], &good[6..], &section(1)].concat();
        let none = [&good[..4], &[0, 0], &good[6..12]].concat();
        for (question, code, name, word) in [
            (message(7, &section(3)), 5, OTHER_CLASS, "class"),
            (message(7, &section(4)), 5, OTHER_CLASS, "class"),
            (message(7, &section(255)), 5, OTHER_CLASS, "class"),
            (of_kind(2), 4, NO_QUESTION, "only questions"),
            (of_kind(4), 4, NO_QUESTION, "only questions"),
            (of_kind(5), 4, NO_QUESTION, "only questions"),
            (two, 4, NO_QUESTION, "2 questions"),
            (none, 4, NO_QUESTION, "0 questions"),
        ] {
            let answered = answer(&gate, &question);
            assert_eq!(answered.bytes.unwrap()[3] & 15, code, "{question:?}");
            let DeniedName { name: of, denial } = answered.denied.unwrap();
            assert_eq!((of.as_str(), denial.guard), (name, Guard::Protocol), "{question:?}");
            assert!(denial.reason.contains(word), "{}", denial.reason);
        }
        assert!(answer(&gate, &good).denied.is_none());
    }

    #[test]
    fn what_is_asked_about_an_allowed_host_is_no_denial() {
        let gate = gate(NameRange::default());
        for (name, is_denied) in [
            ("_18443._https.api.example.com", false),
            ("_xmpp-client._tcp.a.allowed.example.com", false),
            ("_DMARC.API.example.com", false),
            ("_dmarc.other.example.com", true),
            ("_x.not.allowed.example.com", true),
            ("_tcp._a b.api.example.com", true),
            ("a._tcp.api.example.com", true),
            ("_tcp", true),
        ] {
            let labels = name.split('.').map(|label| label.as_bytes().to_vec()).collect();
            for kind in [1, 16, 33, 65] {
                let answered = answer(&gate, &message(7, &section(&labels, kind, 1)));
                assert_eq!(answered.bytes.unwrap()[3] & 15, 3, "{name} {kind}");
                assert_eq!(answered.denied.is_some(), is_denied, "{name} {kind}");
            }
        }
    }

    #[test]
    fn who_asks_for_the_name_of_an_address_is_told_ours_and_never_denied() {
        let gate = gate(NameRange::default());
        let labels = |name: &str| name.split('.').map(|label| label.as_bytes().to_vec()).collect::<Labels>();
        let asked = |name: &str, kind: u16| answer(&gate, &message(7, &section(&labels(name), kind, 1)));
        assert!(asked("api.example.com", 1).denied.is_none());
        for (name, told) in [
            ("1.0.18.198.in-addr.arpa", Some("api.example.com.")),
            ("0.0.18.198.IN-ADDR.arpa", Some("sidecar.")),
            ("1.0.0.127.in-addr.arpa", Some("localhost.")),
            ("2.0.18.198.in-addr.arpa", None),
            ("34.216.184.93.in-addr.arpa", None),
        ] {
            let answered = asked(name, 12);
            assert!(answered.denied.is_none(), "{name}");
            let answered = Message::from_vec(&answered.bytes.unwrap()).unwrap();
            let names: Vec<String> = answered.answers.iter().map(|record| record.data.to_string()).collect();
            assert_eq!(names, Vec::from_iter(told), "{name}");
            let code = if told.is_some() { ResponseCode::NoError } else { ResponseCode::NXDomain };
            assert_eq!(answered.metadata.response_code, code, "{name}");
        }
        // What it is not: a question for another kind of data, or with something else in the name.
        assert!(asked("1.0.18.198.in-addr.arpa", 1).denied.is_some());
        assert!(asked("secret.0.18.198.in-addr.arpa", 12).denied.is_some());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

        // S2.14, E04: only allowed names resolve, and only to addresses of our range.
        #[test]
        fn any_octets_have_a_good_answer_or_none(octets in vec(any::<u8>(), 0..1500), range in ranges()) {
            put(&gate(range), &octets);
        }

        #[test]
        fn so_have_damaged_questions_one_after_another(
            questions in vec(damaged(), 1..30),
            range in ranges(),
        ) {
            let gate = gate(range);
            for question in questions {
                put(&gate, &question);
            }
        }

        #[test]
        fn a_good_question_is_repeated_and_answered_by_the_rules(
            id: u16,
            labels in labels(),
            is_v6: bool,
            range in ranges(),
        ) {
            let gate = gate(range);
            let section = section(&labels, if is_v6 { 28 } else { 1 }, 1);
            prop_assume!(section.len() <= 255 + 4); // RFC 1035 §2.3.4
            let question = message(id, &section);
            let said = answer(&gate, &question).bytes.expect("a good question has an answer");
            prop_assert_eq!(&said[12..12 + section.len()], &section[..]);
            let read = put(&gate, &question).expect("and the same again");
            let is_own = [&b"sidecar"[..], b"localhost"].iter().any(|own| {
                labels.len() == 1 && labels[0].eq_ignore_ascii_case(own)
            });
            if !is_allowed(&labels) {
                prop_assert_eq!((read.code, read.address), (3, None));
            } else if !is_v6 {
                prop_assert!(matches!((read.code, read.address), (0, Some(IpAddr::V4(_)))), "{:?}", read.address);
            } else if !is_own {
                let has_both = range == NameRange::default();
                prop_assert_eq!((read.code, read.address.is_some()), (0, has_both));
            }
        }
    }
}
