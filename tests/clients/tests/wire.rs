//! The public corpus of HTTP/1 messages, each sent unchanged to the forward plane and to the gateway: an ambiguous message reaches nobody,
//! a forwarded one has one meaning, and the next message on the connection is judged on its own. S0.28, S0.29; E03, E18, C21.

use std::fs;

use lockgate_clients::{Answer, Plane, Site, ask_at, corpus_policy};
use serde_json::{Value, json};

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../corpora/http_wire_public.jsonl");

/// The events that a server of the world records for octets of a request.
const ARRIVED: [&str; 3] = ["request", "request-cut", "malformed"];

/// RFC 4648 §4, as characters of the same number as the octets.
fn decoded(text: &str) -> String {
    let value = |letter: u8| match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("{letter} is no base64"),
    };
    let mut octets = Vec::new();
    for group in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits = group.iter().fold(0_u32, |bits, letter| bits << 6 | u32::from(value(*letter)));
        let bits = bits << (6 * (4 - group.len()));
        octets.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    octets.into_iter().map(char::from).collect()
}

fn refused(id: &str, answer: &Answer, wrong: &mut Vec<String>) {
    match answer.status {
        0 if answer.closed => {}
        0 => wrong.push(format!("{id}: neither answered nor closed within {} ms", answer.ms)),
        400..600 => {}
        other => wrong.push(format!("{id}: status {other}")),
    }
    // A server that was dialled and received nothing is no harm; an octet of the message is.
    if let Some(record) = answer.seen.iter().find(|record| ARRIVED.contains(&event(record))) {
        wrong.push(format!("{id}: it reached {record}"));
    }
}

fn event(record: &Value) -> &str {
    record["event"].as_str().unwrap_or_default()
}

/// Checks that what arrived is one message that every reader reads alike. The world's own reader is strict; `as_sent` checks the rest.
fn clean(row: &Value, answer: &Answer, wrong: &mut Vec<String>) {
    let id = row["id"].as_str().unwrap_or_default();
    let arrived: Vec<&Value> = answer.seen.iter().filter(|record| ARRIVED.contains(&event(record))).collect();
    let [record] = arrived.as_slice() else {
        return wrong.push(format!("{id}: not one request, status {}: {arrived:?}", answer.status));
    };
    let mut bad = |what: &str| wrong.push(format!("{id}: {what} in {record}"));
    let detail = &record["detail"];
    if event(record) != "request" || detail["path"] != "/a" || detail["host"] != "files.example.com" {
        bad("another request");
    }
    let headers: Vec<(&str, &str)> = detail["headers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|pair| Some((pair[0].as_str()?, pair[1].as_str()?)))
        .collect();
    let count = |name: &str| headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name)).count();
    if count("content-length") + count("transfer-encoding") > 1 || count("host") != 1 {
        bad("two readings of its length or host");
    }
    // RFC 9110 §7.6.1, and the sidecar's own headers.
    let ours = ["x-target", "x-provider"];
    let hops = ["proxy-authorization", "proxy-connection", "te", "trailer", "upgrade", "http2-settings"];
    for name in hops.into_iter().chain(ours) {
        if count(name) > 0 {
            bad(name);
        }
    }
    if id != "W103" && headers.iter().any(|(_, value)| value.contains("evil.test")) {
        bad("another host");
    }
    // A trailer is no header: the trailer of W048 must not become a credential.
    if id != "W098" && count("authorization") > 0 {
        bad("a credential from nowhere");
    }
}

/// Checks that no connection carried octets that two readers take differently: a CR or LF alone, a NUL, a folded line.
fn as_sent(site: &Site, wrong: &mut Vec<String>) {
    for record in site.visits().into_iter().filter(|record| record.event == "closed") {
        let raw = record.text("raw");
        if raw.replace("\r\n", "").contains(['\r', '\n', '\0'])
            || raw.contains("\r\n ")
            || raw.contains("\r\n\t")
        {
            wrong.push(format!("octets that readers take differently: {raw:?}"));
        }
    }
}

#[test]
fn every_message_is_refused_or_has_one_meaning() {
    // S0.28
    judged_on(Plane::Forward);
}

#[test]
fn and_so_it_is_on_the_gateway() {
    // S0.29: an absolute target on 8080 means the same as on 8081.
    judged_on(Plane::Gateway);
}

fn rows() -> Vec<Value> {
    let text = fs::read_to_string(CORPUS).expect("the corpus");
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    assert!(rows.len() >= 105, "the corpus has shrunk");
    rows
}

#[test]
fn a_malformed_body_is_refused_however_it_is_cut() {
    let Some(site) = Site::for_test(&[]) else { return };
    let mut said = Vec::new();
    let rows = rows();
    let chunked = rows.iter().filter(|row| row["category"] == "chunk" && row["expect"] == "reject");
    for row in chunked {
        let (id, send) =
            (row["id"].as_str().expect("an id"), decoded(row["raw_b64"].as_str().expect("octets")));
        let body = send.find("\r\n\r\n").expect("a head") + 4;
        let next = send[body..].find("GET http").map_or(send.len(), |at| body + at);
        for (name, at) in [("head", body), ("body", (body + next) / 2)] {
            let (id, at) = (format!("{id} {name}"), send[..at].chars().count());
            said.push(json!({ "id": id, "send": send, "pause_at": at, "settle": true }));
        }
    }
    assert!(said.len() >= 16, "the corpus has shrunk: {}", said.len());
    let answers = ask_at(Plane::Forward, &site, env!("CARGO_BIN_EXE_talk"), corpus_policy(), &said);
    let mut wrong = Vec::new();
    for (id, answer) in &answers {
        if id.ends_with("head") {
            refused(id, answer, &mut wrong);
        } else if answer.events("request").next().is_some() || answer.events("malformed").next().is_some() {
            wrong.push(format!("{id}: it was taken for whole: {:?}", answer.seen));
        } else if !answer.closed && answer.status < 400 {
            wrong.push(format!("{id}: status {}, and the connection goes on", answer.status));
        }
    }
    as_sent(&site, &mut wrong);
    assert!(wrong.is_empty(), "{} rows do not agree:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_trailer_is_left_out_and_its_request_goes_on() {
    let Some(site) = Site::for_test(&[]) else { return };
    let send = "POST http://files.example.com/a HTTP/1.1\r\nHost: files.example.com\r\nTransfer-Encoding: chunked\r\n\
                Trailer: X-Checksum\r\n\r\n1\r\nA\r\n0\r\nX-Checksum: abc\r\n\r\n";
    let row = json!({ "id": "trailer", "expect": "forward", "send": send, "settle": true });
    let said =
        [row.clone(), json!({ "id": "cut", "send": send, "pause_at": send.len() - 9, "settle": true })];
    let answers = ask_at(Plane::Forward, &site, env!("CARGO_BIN_EXE_talk"), corpus_policy(), &said);
    let mut wrong = Vec::new();
    for (id, answer) in &answers {
        assert_eq!(answer.status, 200, "{id}: {:.300}", answer.received);
        clean(&row, answer, &mut wrong);
    }
    as_sent(&site, &mut wrong);
    let requests: Vec<_> = site.visits().into_iter().filter(|record| record.event == "request").collect();
    assert!(requests.len() == 2 && wrong.is_empty(), "{wrong:?} {requests:?}");
    assert!(requests.iter().all(|record| record.detail["trailers"] == json!([])), "{requests:?}");
}

fn judged_on(plane: Plane) {
    let Some(site) = Site::for_test(&[]) else { return };
    let rows = rows();
    let said = |row: &Value| {
        let answers = if row["expect"] == "forward_then_deny" { 2 } else { 1 };
        json!({ "id": row["id"], "send": decoded(row["raw_b64"].as_str().expect("octets")), "answers": answers, "settle": true })
    };
    let said: Vec<Value> = rows.iter().map(said).collect();
    let answers = ask_at(plane, &site, env!("CARGO_BIN_EXE_talk"), corpus_policy(), &said);
    let mut wrong = Vec::new();
    for row in &rows {
        let id = row["id"].as_str().expect("an id");
        let answer = &answers[id];
        let was_refused = answer.status == 0 || answer.status >= 400;
        match row["expect"].as_str().expect("a verdict") {
            "reject" => refused(id, answer, &mut wrong),
            "deny" => {
                refused(id, answer, &mut wrong);
                if answer.events("connect").next().is_some() {
                    wrong.push(format!("{id}: a server was dialled"));
                }
            }
            "reject_or_clean" if was_refused => refused(id, answer, &mut wrong),
            "reject_or_clean" => clean(row, answer, &mut wrong),
            "forward" => {
                if answer.status != 200 {
                    wrong.push(format!("{id}: not forwarded: {:.300}", answer.received));
                }
                clean(row, answer, &mut wrong);
            }
            "forward_then_deny" => {
                clean(row, answer, &mut wrong);
                if answer.status != 200 || !answer.received.contains("HTTP/1.1 403") {
                    wrong.push(format!("{id}: not forwarded and then denied: {:.600}", answer.received));
                }
            }
            other => wrong.push(format!("{id}: a verdict this test does not know: {other}")),
        }
    }
    as_sent(&site, &mut wrong);
    assert!(wrong.is_empty(), "{} rows do not agree:\n{}", wrong.len(), wrong.join("\n"));
}
