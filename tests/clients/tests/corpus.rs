//! The public corpus of request targets, judged three times: by the check that contacts no server, by real requests through the forward
//! plane, and by real tunnels. Each row must agree. S0.28, S0.38, S0.39, S1.39; E12, E18.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use lockgate_clients::{Answer, Site, allowing, ask, corpus_policy, product, ready, run_to_end};
use serde_json::{Value, json};

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../corpora/ssrf_public.jsonl");
const TALK: &str = env!("CARGO_BIN_EXE_talk");
/// The time limit of all rows, one after another.
const LIMIT: Duration = Duration::from_secs(60);
/// A row is refused within a second; the rest is for a pause of the machine. `talk` itself gives up after five.
const AT_ONCE_MS: u64 = 4000;
/// The address of both names when a row gives none.
const WEB: &str = "93.184.216.34";

fn rows() -> Vec<Value> {
    let text = fs::read_to_string(CORPUS).expect("the corpus");
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    assert!(rows.len() >= 183, "the corpus has shrunk");
    rows
}

fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or_default()
}

/// Returns the text between the scheme and the path.
fn authority(target: &str) -> &str {
    let rest = target.split_once("://").map_or(target, |(_, rest)| rest);
    rest.split(['/', '?', '#', '\\']).next().unwrap_or_default()
}

fn tables(row: &Value) -> Value {
    match row.get("resolves") {
        Some(addresses) => json!({ "resolves_all": addresses }),
        None => json!({ "api.example.com": [WEB], "files.example.com": [WEB] }),
    }
}

/// Returns octets as characters of the same number, the form in which a row carries them.
fn latin1(text: &str) -> String {
    text.bytes().map(char::from).collect()
}

/// Checks that nothing was opened, and that the answer is a refusal.
fn refused(id: &str, answer: &Answer, wrong: &mut Vec<String>) {
    let Answer { status, ms, received, .. } = answer;
    if !(400..500).contains(status) && *status != 502 {
        wrong.push(format!("{id}: status {status} after {ms} ms: {received:.200}"));
    }
    // Late records of an earlier row's connection do not count for this one.
    if let Some(visit) = answer.events("connect").next() {
        wrong.push(format!("{id}: somebody was reached: {visit}"));
    }
    if *ms >= AT_ONCE_MS {
        wrong.push(format!("{id}: refused after {ms} ms"));
    }
}

/// Checks that the one request that arrived is the one that was judged.
fn allowed(id: &str, effective: &Value, answer: &Answer, wrong: &mut Vec<String>) {
    if answer.status != 200 {
        return wrong.push(format!("{id}: status {}: {:.300}", answer.status, answer.received));
    }
    let requests: Vec<&Value> = answer.events("request").collect();
    let [request] = requests.as_slice() else { return wrong.push(format!("{id}: requests {requests:?}")) };
    let detail = &request["detail"];
    let query = effective["query"].as_str().map(|query| format!("?{query}")).unwrap_or_default();
    let port = effective["port"].as_u64().unwrap_or_default();
    let secure = effective["scheme"] == "https";
    let expected = json!({
        "scheme": effective["scheme"],
        "sni": if secure { effective["host"].clone() } else { Value::Null },
        "host": effective["host"],
        "path": format!("{}{query}", text(effective, "path")),
    });
    for (key, value) in expected.as_object().expect("an object") {
        if detail[key] != *value {
            wrong.push(format!("{id}: {key} is {} and not {value}", detail[key]));
        }
    }
    if !text(request, "local").ends_with(&format!(":{port}")) {
        wrong.push(format!("{id}: it went to {}", request["local"]));
    }
}

#[test]
fn every_row_agrees_by_a_real_request() {
    let Some(site) = Site::for_test(&[]) else { return };
    let begun = Instant::now();
    let rows = rows();
    let sent: Vec<Value> = rows
        .iter()
        .map(|row| {
            let target = text(row, "target");
            let send = format!("GET {target} HTTP/1.1\r\nHost: {}\r\n\r\n", authority(target));
            json!({ "id": row["id"], "send": latin1(&send), "tables": tables(row) })
        })
        .collect();
    let answers = ask(&site, TALK, corpus_policy(), &sent);
    let mut wrong = Vec::new();
    for row in &rows {
        let (id, answer) = (text(row, "id"), &answers[text(row, "id")]);
        // A target with a whole request line in it is that request on the wire, and judged as such, not as the row.
        match text(row, "target").split_once(" HTTP/1.1\r\n") {
            Some((target, _)) => {
                let path = target
                    .strip_prefix("https://api.example.com")
                    .expect("the corpus's one row of this kind");
                let effective =
                    json!({ "scheme": "https", "host": "api.example.com", "port": 443, "path": path });
                allowed(id, &effective, answer, &mut wrong);
            }
            None if row["expect"] == "allow" => allowed(id, &row["effective"], answer, &mut wrong),
            None => refused(id, answer, &mut wrong),
        }
    }
    assert!(wrong.is_empty(), "{} rows do not agree:\n{}", wrong.len(), wrong.join("\n"));
    assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
}

#[test]
fn a_tunnel_is_judged_by_the_same_rules() {
    let Some(site) = Site::for_test(&[]) else { return };
    let rows: Vec<Value> =
        rows().into_iter().filter(|row| !authority(text(row, "target")).is_empty()).collect();
    let connect = |row: &Value| {
        let target = text(row, "target");
        let host = authority(target);
        let default = if target.to_ascii_lowercase().starts_with("http:") { 80 } else { 443 };
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        let host = if has_port { host.to_owned() } else { format!("{host}:{default}") };
        let send = format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        json!({ "id": row["id"], "send": latin1(&send), "tables": tables(row) })
    };
    let mut sent: Vec<Value> = rows.iter().map(connect).collect();

    // With rules of paths the sidecar terminates the tunnel and judges its requests, so nobody is dialled for it.
    let mut wrong = Vec::new();
    let answers = ask(&site, TALK, corpus_policy(), &sent);
    for (id, answer) in &answers {
        let row = rows.iter().find(|row| row["id"] == id.as_str()).expect("a row");
        if text(row, "target").to_ascii_lowercase().starts_with("https:") || row["expect"] == "deny" {
            nobody_dialled(id, answer, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{} tunnels through rules of paths:\n{}", wrong.len(), wrong.join("\n"));

    // A rule of hosts decides by what it can see: the authority and the addresses behind it.
    let hosts = "[[egress.allow]]\nhost = \"api.example.com\"\nports = [443]\n\n\
                 [[egress.allow]]\nhost = \"files.example.com\"\nports = [80]\n";
    // Each server that an open tunnel reaches records that before the next tunnel is requested.
    sent.iter_mut().for_each(|row| row["reaches"] = json!(true));
    let Some(site) = Site::for_test(&[]) else { return };
    let answers = ask(&site, TALK, hosts, &sent);
    for row in &rows {
        let (id, answer) = (text(row, "id"), &answers[text(row, "id")]);
        let authority_is_wrong =
            ["R3", "R4", "R5", "R6", "R10"].contains(&text(row, "rule")) && row["expect"] == "deny";
        if row["expect"] == "allow" && authority(text(row, "target")).ends_with(':') {
            // An empty port has a default in a URL and none in a `CONNECT`.
            refused(id, answer, &mut wrong);
        } else if row["expect"] == "allow" && answer.status != 200 {
            wrong.push(format!("{id}: status {}: {:.300}", answer.status, answer.received));
        } else if row["expect"] == "allow" && answer.events("connect").count() != 1 {
            wrong.push(format!("{id}: a tunnel and not one connection: {:?}", answer.seen));
        } else if authority_is_wrong {
            refused(id, answer, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{} tunnels do not agree:\n{}", wrong.len(), wrong.join("\n"));
}

fn nobody_dialled(id: &str, answer: &Answer, wrong: &mut Vec<String>) {
    if answer.events("connect").next().is_some() {
        wrong.push(format!("{id}: {:?}", answer.seen));
    }
}

#[test]
fn every_row_agrees_by_the_check_that_asks_nobody() {
    if !ready(&[]) {
        return;
    }
    let folder = tempfile::tempdir().expect("room");
    let (policy, asked) = (folder.path().join("p1.toml"), folder.path().join("rows.jsonl"));
    fs::write(&policy, corpus_policy()).expect("room");
    let rows = rows();
    let line = |row: &Value| {
        // A row without answers means the addresses of the two names, and of no other name.
        let host = authority(text(row, "target")).split(':').next().unwrap_or_default().trim_end_matches('.');
        let known =
            ["api.example.com", "files.example.com"].iter().any(|name| host.eq_ignore_ascii_case(name));
        let resolves = row.get("resolves").cloned().unwrap_or(if known { json!([WEB]) } else { json!([]) });
        format!("{}\n", json!({ "id": row["id"], "target": row["target"], "resolves": resolves }))
    };
    fs::write(&asked, rows.iter().map(line).collect::<String>()).expect("room");
    let verdicts = check(folder.path(), &policy, &asked);
    let mut wrong = Vec::new();
    for row in &rows {
        let id = text(row, "id");
        let Some(verdict) = verdicts.iter().find(|verdict| verdict["id"] == row["id"]) else {
            wrong.push(format!("{id}: no verdict"));
            continue;
        };
        if verdict["verdict"] != row["expect"] {
            wrong.push(format!("{id}: {verdict} for {:?}", text(row, "target")));
        } else if row["expect"] == "allow" && verdict["effective"] != row["effective"] {
            wrong.push(format!("{id}: effective {} and not {}", verdict["effective"], row["effective"]));
        } else if row["expect"] == "deny" && text(verdict, "guard").is_empty() {
            wrong.push(format!("{id}: no guard is named: {verdict}"));
        }
    }
    assert!(wrong.is_empty(), "{} rows do not agree:\n{}", wrong.len(), wrong.join("\n"));
}

fn check(folder: &Path, policy: &Path, rows: &Path) -> Vec<Value> {
    let mut command = Command::new("sh");
    command
        .args(["-c", "\"$PRODUCT\" policy check --policy \"$1\" --jsonl < \"$2\"", "sh"])
        .args([policy, rows]);
    command
        .env("PRODUCT", product().expect("`ready` was asked first"))
        .env("XDG_STATE_HOME", folder)
        .current_dir(folder);
    let ended = run_to_end(&mut command, LIMIT);
    assert!(!ended.stdout.is_empty(), "{ended}");
    ended
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("a verdict is a line of JSON"))
        .collect()
}

#[test]
fn no_query_changes_the_verdict() {
    // R8: also none that names a method to some servers, where no rule names methods.
    if !ready(&[]) {
        return;
    }
    let folder = tempfile::tempdir().expect("room");
    let (policy, asked) = (folder.path().join("p1.toml"), folder.path().join("rows.jsonl"));
    fs::write(&policy, corpus_policy()).expect("room");
    let many = "$httpMethod=A&$httpMethod=B&$httpMethod=C&$httpMethod=D&$httpMethod=E";
    let queries =
        ["$httpMethod=a+b", "$httpMethod=%C3%A9", "$httpMethod=get,put", "%24httpmethod=[]", many, "x=/../"];
    let row = |query: &&str| {
        let target = format!("https://api.example.com/v1/x?{query}");
        format!("{}\n", json!({ "id": query, "target": target, "resolves": [WEB] }))
    };
    fs::write(&asked, queries.iter().map(row).collect::<String>()).expect("room");
    let verdicts = check(folder.path(), &policy, &asked);
    let denied: Vec<_> = verdicts.iter().filter(|verdict| verdict["verdict"] != "allow").collect();
    assert!(verdicts.len() == queries.len() && denied.is_empty(), "{verdicts:?}");
}

#[test]
fn the_check_and_the_gate_agree_on_aliases() {
    // E12: the check agrees with the gate about every alias of a host.
    let Some(site) = Site::for_test(&[]) else { return };
    let names = [
        "localhost",
        "127.0.0.1",
        "host.docker.internal",
        "sidecar",
        "192.168.77.1",
        "host.example.com",
        "metadata.google.internal",
        "[::1]",
        "0x7f000001",
        "gateway.docker.internal",
    ];
    let sent: Vec<Value> = names
        .iter()
        .map(|name| {
            let send = format!("GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n");
            json!({ "id": name, "send": send, "target": format!("http://{name}/"), "resolves": ["192.168.77.2"] })
        })
        .collect();
    let policy = format!("[egress]\ndefault = \"open-internet\"\n\n{}", allowing(&["host.example.com"]));
    let answers = ask(&site, TALK, &policy, &sent);
    let (file, rows) = (site.outside().join("gate.toml"), site.outside().join("checked.jsonl"));
    let lines: String = sent
        .iter()
        .map(|row| {
            format!("{}\n", json!({ "id": row["id"], "target": row["target"], "resolves": row["resolves"] }))
        })
        .collect();
    fs::write(&rows, lines).expect("room");
    let verdicts = check(&site.state(), &file, &rows);
    let mut wrong = Vec::new();
    for name in names {
        refused(name, &answers[name], &mut wrong);
        let verdict = verdicts.iter().find(|verdict| verdict["id"] == name);
        if verdict.is_none_or(|verdict| verdict["verdict"] != "deny") {
            wrong.push(format!("{name}: the check says {verdict:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_row_that_cannot_be_read_in_full_is_denied() {
    // S0.39, E18: the check gives one answer for each row.
    if !ready(&[]) {
        return;
    }
    let folder = tempfile::tempdir().expect("room");
    let (policy, asked) = (folder.path().join("p1.toml"), folder.path().join("rows.jsonl"));
    fs::write(&policy, corpus_policy()).expect("room");
    let lines = [
        r#"{"id":"surrogate","target":"https://api.example.com/v1/\ud800","resolves":["93.184.216.34"]}"#,
        r#"{"id":"octal","target":"https://api.example.com/v1/x","resolves":["010.0.0.1"]}"#,
        r#"{"id":"one of two","target":"https://api.example.com/v1/x","resolves":["93.184.216.34","010.0.0.1"]}"#,
        r#"{"id":7,"target":"https://api.example.com/v1/x","resolves":["93.184.216.34"]}"#,
        r#"{"id":"words","method":"GET /","target":"https://api.example.com/v1/x","resolves":["93.184.216.34"]}"#,
    ];
    fs::write(&asked, lines.join("\n")).expect("room");
    let verdicts = check(folder.path(), &policy, &asked);
    let said: Vec<_> =
        verdicts.iter().map(|it| (&it["id"], text(it, "verdict"), text(it, "guard"))).collect();
    let expected = [
        (&json!("surrogate"), "deny", "target_syntax"),
        (&json!("octal"), "deny", "address_blocked"),
        (&json!("one of two"), "deny", "address_blocked"),
        (&json!(7), "allow", ""),
        (&json!("words"), "deny", "http_framing"),
    ];
    assert_eq!(said, expected);
}
