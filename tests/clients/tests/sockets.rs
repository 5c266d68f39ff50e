//! The gateway on a Unix socket, in HTTP and in the JSON form of S2: the same limits apply as elsewhere. S2.10, S2.U1, S0.26; C01, C03,
//! C09, C10, C13, E03, E18.

use lockgate_clients::{Canary, Left, Need, Site};
use serde_json::{Value, json};

const NEEDS: &[Need] = &[Need::Program("curl"), Need::Program("python3")];
const POLICY: &str = r#"
[[provider]]
id = "one"
authorized_uris = ["https://protocols.example/*"]
env = "ONE_TOKEN"
inject = { header = "authorization", value = "Bearer {{access_token}}" }
placeholders = "anywhere"
[[provider]]
id = "free"
authorized_uris = ["https://protocols.example/*"]
[[egress.allow]]
host = "www.example.org"
"#;
/// Sends the lines of a file to the socket, one after another on one connection, and prints each answer on a line.
const LINES: &str = r#"import os, socket, sys
link = socket.socket(socket.AF_UNIX)
link.settimeout(40)
link.connect(sys.argv[1])
stream = link.makefile("rwb")
for line in open(sys.argv[2], "rb"):
    stream.write(line)
    stream.flush()
    print(stream.readline().decode().strip() or "nothing")
"#;

fn site() -> Option<(Site, Canary)> {
    let site = Site::for_test(NEEDS)?;
    let canary = Canary::draw();
    site.keep("one", "access_token", canary.text());
    site.keep("free", "access_token", canary.text());
    Some((site, canary))
}

/// Returns the answer to each line.
fn answers(site: &Site, lines: &[String]) -> (Vec<Value>, Left) {
    let script = site.file("lines.py", LINES);
    let said = site.file("lines.jsonl", lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    let left = site.beside(POLICY).script(&format!(
        "/usr/bin/python3 {} \"$OUT/gate.sock\" {}",
        script.display(),
        said.display()
    ));
    let answers = left.lines().map(|line| serde_json::from_str(line).unwrap_or(Value::Null)).collect();
    (answers, left)
}

#[test]
fn the_json_form_does_what_the_gateway_does() {
    // S2.U1
    let Some((site, canary)) = site() else { return };
    let at = "https://protocols.example";
    let lines = [
        json!({"capability": "one", "method": "GET", "url": format!("{at}/echo")}),
        json!({"capability": "free", "method": "POST", "url": format!("{at}/mirror?a={{{{access_token}}}}"), "headers": {"Content-Type": "text/plain", "X-Key": "{{access_token}}"}, "body": "words é"}),
        json!({"capability": "free", "method": "PUT", "url": format!("{at}/put"), "headers": {"X-Substitute-Body": "true"}, "body": "<{{access_token}}>"}),
        json!({"method": "GET", "url": "http://www.example.org/plain"}),
        json!({"capability": "one", "method": "GET", "url": format!("{at}/echo-auth?as=json")}),
        json!({"capability": "one", "method": "GET", "url": format!("{at}/echo-auth?as=gzip")}),
        json!({"capability": "one", "method": "GET", "url": format!("{at}/echo-auth?as=header")}),
        json!({"capability": "one", "method": "GET", "url": format!("{at}/big?bytes=60000")}),
    ]
    .map(|line| line.to_string());
    let (answers, left) = answers(&site, &lines);
    canary.is_not_in("an answer", &left.ended.stdout);
    assert!(
        answers.len() == lines.len() && answers.iter().all(|answer| answer["status"] == 200),
        "{}",
        left.ended
    );
    assert_eq!(answers[1]["body"], "words é");
    assert_eq!(answers[1]["headers"]["content-type"], "text/plain");
    assert_eq!(answers[7]["body"].as_str().map(str::len), Some(50_000));
    assert_eq!(answers[7]["headers"]["x-truncated"], "true");
    let requests = site.requests();
    let bearer = format!("Bearer {}", canary.text());
    assert_eq!(requests[0].header("authorization"), Some(bearer.as_str()));
    assert_eq!(requests[1].text("path"), format!("/mirror?a={}", canary.text()));
    assert_eq!(requests[1].header("x-key"), Some(canary.text()));
    assert_eq!(requests[2].text("body"), format!("<{}>", canary.text()));
    assert_eq!(requests[3].header("authorization"), None);
}

#[test]
fn an_answer_that_is_too_large_is_cut_at_once_and_says_so() {
    let Some((site, _)) = site() else { return };
    let line = json!({"method": "GET", "url": "http://www.example.org/bytes/5000000"}).to_string();
    let begun = std::time::Instant::now();
    let (answers, left) = answers(&site, &[line]);
    assert_eq!(answers[0]["status"], 200, "{}", left.ended);
    assert_eq!(answers[0]["truncated"], true, "{}", left.ended);
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

#[test]
fn the_json_form_may_nothing_else() {
    // C01, C03, C09, E03, E18
    let Some((site, canary)) = site() else { return };
    let one = |url: &str| json!({"capability": "one", "method": "GET", "url": url}).to_string();
    let with = |name: &str, value: &str| {
        json!({"capability": "one", "method": "GET", "url": "https://protocols.example/x", "headers": {name: value}}).to_string()
    };
    let lines = vec![
        one("https://www.example.org/x"),
        one("https://protocols.example:0443/x"),
        one("https://protocols.example\r\nX-Target: https://www.example.org/"),
        one("https://protocols.example/x HTTP/1.1\r\nHost: evil"),
        one("https://127.0.0.1/x"),
        one("https://protocols.example/{{nope}}"),
        one("/x"),
        one(""),
        json!({"capability": "stranger", "method": "GET", "url": "https://protocols.example/x"}).to_string(),
        json!({"capability": "one\r\nx-provider: two", "method": "GET", "url": "https://protocols.example/x"}).to_string(),
        json!({"capability": "one", "method": "GET / HTTP/1.1\r\nX: y", "url": "https://protocols.example/x"}).to_string(),
        json!({"capability": "one", "method": "CONNECT", "url": "https://protocols.example/x"}).to_string(),
        json!({"capability": "one", "method": "TRACE", "url": "https://protocols.example/x"}).to_string(),
        json!({"method": "CONNECT", "url": "www.example.org:443"}).to_string(),
        json!({"method": "POST", "url": "/configure", "body": "{}"}).to_string(),
        json!({"capability": "one", "method": "GET", "url": "https://protocols.example/x", "more": 1}).to_string(),
        with("X-A: b\r\nX-Evil", "1"),
        with("X-Key", "a\r\nX-Evil: 1"),
        with("X-Key", "a\u{0}b"),
        with("authorization", "Bearer mine"),
        with("X-Key", "lgph_000000000000000000000000000000000000"),
        "{not json".to_owned(),
        "{}".to_owned(),
        "{\"method\":1}".to_owned(),
    ];
    let (answers, left) = answers(&site, &lines);
    canary.is_not_in("an answer", &left.ended.stdout);
    for (line, answer) in lines.iter().zip(&answers) {
        assert!(
            answer["status"].as_u64().is_some_and(|status| (400..500).contains(&status)),
            "{line}: {answer}: {}",
            left.ended
        );
    }
    assert_eq!(answers.len(), lines.len(), "{}", left.ended);
    assert!(site.requests().is_empty(), "{:?}", site.requests());
    // A message's framing headers cannot be set from within it.
    let framing = ["Host", "Content-Length", "Transfer-Encoding", "Connection", "X-Target", "x-provider"]
        .map(|name| with(name, "https://www.example.org/"));
    let (answers, _) = self::answers(&site, &framing);
    for answer in &answers {
        assert!(answer["status"] == 200 || answer["status"] == 400, "{answer}");
    }
    assert!(
        site.requests().iter().all(|record| record.text("host") == "protocols.example"),
        "{:?}",
        site.requests()
    );
}

#[test]
fn each_line_that_is_refused_leaves_a_record() {
    // C13
    let Some((site, _)) = site() else { return };
    let with = |capability: &str, url: &str| {
        json!({"capability": capability, "method": "GET", "url": url}).to_string()
    };
    let long = "a".repeat(1024 * 1024 + 1);
    let none = json!({"capability": null, "method": "GET", "url": "http://www.example.org/none", "headers": null, "body": null});
    let lines = vec![
        none.to_string(),
        "{not json".to_owned(),
        with("one", "https://protocols.example/a b"),
        with("one\r\nx-provider: two", "https://protocols.example/x"),
        json!({"method": "GET", "url": "http://www.example.org/x", "more": 1}).to_string(),
        long,
    ];
    let (answers, left) = answers(&site, &lines);
    assert_eq!(answers[0]["status"], 200, "{answers:?}");
    let guards = ["http_framing", "http_framing", "target_syntax", "http_framing", "http_framing"];
    assert_eq!(answers.len(), lines.len(), "{}", left.ended);
    for (answer, guard) in answers[1..].iter().zip(guards) {
        assert_eq!(answer["guard"], guard, "{answers:?}");
    }
    assert_eq!((&answers[1]["status"], &answers[5]["status"]), (&json!(400), &json!(413)), "{answers:?}");
    assert_eq!(left.denials("http_framing"), 4, "{:?}", left.audit());
    assert_eq!(left.denials("target_syntax"), 1, "{:?}", left.audit());
    let targets = format!("{:?}", left.audit());
    assert!(targets.contains("https://protocols.example/a b"), "{targets}");
}

#[test]
fn http_is_spoken_there_too() {
    // S2.10, S0.26
    let Some((site, canary)) = site() else { return };
    let left = site.beside(POLICY).script(
        r#"u="gate --unix-socket $OUT/gate.sock"
        code health $u http://sidecar/health
        code proxy $u -H 'X-Provider: one' -H 'X-Target: https://protocols.example/echo-auth' http://sidecar/proxy
        code absolute $u --request-target http://www.example.org/x -H 'Host: www.example.org' http://sidecar/
        code denied $u -H 'X-Provider: one' -H 'X-Target: https://www.example.org/' http://sidecar/proxy
        code configure $u -X POST http://sidecar/configure
        code path $u http://sidecar/etc/passwd
        $u -i -H 'X-Provider: one' -H 'X-Target: https://protocols.example/echo-auth' http://sidecar/proxy"#,
    );
    for (key, status) in [
        ("health", "200"),
        ("proxy", "200"),
        ("absolute", "200"),
        ("denied", "403"),
        ("configure", "403"),
        ("path", "404"),
    ] {
        assert_eq!(left.said(key), status, "{key}: {}", left.ended);
    }
    canary.is_not_in("an answer", &left.ended.stdout);
    assert!(left.ended.stdout.contains(&"*".repeat(40)), "{}", left.ended);
}

#[test]
fn a_run_finds_it_where_it_is_told() {
    // S2.10: the sandbox's socket, named by its variable; nothing else is behind it.
    for site in Site::for_everyone(NEEDS) {
        let canary = Canary::draw();
        site.keep("one", "access_token", canary.text());
        site.keep("free", "access_token", canary.text());
        let ended = site.run().policy(POLICY).script(
            r#"socket=$(env | sed -n 's/^[A-Z_]*SOCK[A-Z]*=//p' | head -1); [ -S "$socket" ] || { env; exit 5; }
            curl -sSf --unix-socket "$socket" http://sidecar/health; echo
            curl -sSf --unix-socket "$socket" -H 'X-Provider: one' -H 'X-Target: https://protocols.example/echo-auth' http://sidecar/proxy; echo
            /usr/bin/python3 -c '
import socket, sys
link = socket.socket(socket.AF_UNIX); link.connect(sys.argv[1])
link.sendall(b"{\"capability\":\"one\",\"method\":\"GET\",\"url\":\"https://protocols.example/json\"}\n")
print(link.makefile().readline())' "$socket""#,
        );
        assert_eq!(ended.code, 0, "{ended}");
        canary.is_not_in("what was said", format!("{ended}"));
        assert!(
            ended.stdout.contains("{\"status\":\"ok\"}") && ended.stdout.contains("\"status\":200"),
            "{ended}"
        );
        assert_eq!(site.requests().len(), 2, "{:?}", site.requests());
    }
}
