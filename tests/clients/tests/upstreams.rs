//! A credential is sent only to a server that proves its name, at the name's current address, by one request at a time. S0.5, S0.46, S0.51,
//! S1.23, S1.39; C04, C05, C12, C21, E03, E13, E14, E17.

use lockgate_clients::{Canary, Left, Need, Site};
use serde_json::json;

const CURLS: &[Need] = &[Need::Program("curl")];
const BROKEN: [(&str, &str); 5] = [
    ("wrong-name.tls.example", "badname"),
    ("expired.tls.example", "expired"),
    ("self-signed.tls.example", "selfsigned"),
    ("unknown-ca.tls.example", "unknownca"),
    ("ip-only.tls.example", "iponly"),
];

/// Returns a provider whose credential goes into `Authorization` at these URIs.
fn provider(id: &str, uris: &[&str]) -> String {
    let name = id.to_uppercase();
    format!(
        "[[provider]]\nid = \"{id}\"\nauthorized_uris = {uris:?}\nenv = \"{name}_TOKEN\"\n\
         inject = {{ header = \"authorization\", value = \"Bearer {{{{access_token}}}}\" }}\nplaceholders = \"anywhere\"\n"
    )
}

fn site() -> Option<(Site, Canary)> {
    let site = Site::for_test(CURLS)?;
    let canary = Canary::draw();
    site.keep("one", "access_token", canary.text());
    Some((site, canary))
}

fn safe(canary: &Canary, left: &Left) {
    canary.is_not_in("stdout", &left.ended.stdout);
    canary.is_not_in("stderr", &left.ended.stderr);
    canary.is_not_in("the audit", format!("{:?}", left.audit()));
}

#[test]
fn a_certificate_that_does_not_prove_the_name_gets_no_octet() {
    // C04: over both versions, on every plane.
    let Some((site, canary)) = site() else { return };
    let uris: Vec<String> = BROKEN.iter().map(|(host, _)| format!("https://{host}/*")).collect();
    let policy = provider("one", &uris.iter().map(String::as_str).collect::<Vec<_>>());
    let mut script = String::new();
    for (host, key) in BROKEN {
        script += &format!(
            "code {key}1 via --http1.1 https://{host}/x\ncode {key}2 via --http2 --data some https://{host}/x\n\
             code {key}gate proxy https://{host}/x one\ncode {key}ws via --http1.1 -H 'Connection: Upgrade' -H 'Upgrade: websocket' \
             -H 'Sec-WebSocket-Version: 13' -H 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==' https://{host}/ws\n"
        );
    }
    let left = site.beside(&policy).script(&script);
    safe(&canary, &left);
    for (_, key) in BROKEN {
        for way in ["1", "2", "gate", "ws"] {
            assert_eq!(left.said(&format!("{key}{way}")), "502", "{}", left.ended);
        }
        // It was dialled, a handshake began and was aborted, and nothing was sent inside.
        let events: Vec<String> = site.world().records_of(key).into_iter().map(|r| r.event).collect();
        assert_eq!(events.iter().filter(|event| *event == "tls-failed").count(), 4, "{key}: {events:?}");
        assert_eq!(site.world().received_by(key), 0, "{key}: {:?}", site.world().records_of(key));
    }
    let run = site.run().policy(&policy).bare();
    for (host, key) in BROKEN {
        let ended = run
            .script(&format!("curl -sS -o /dev/null -w '%{{http_code}}' --max-time 10 https://{host}/run"));
        ended.says("502");
        assert_eq!(site.world().received_by(key), 0, "{key}");
    }
}

#[test]
fn a_redirect_is_the_agents_to_follow() {
    // C05: to another allowed host, a denied one, a private address, in the clear, within the host.
    let Some((site, canary)) = site() else { return };
    let policy =
        provider("one", &["https://protocols.example/*"]) + "[[egress.allow]]\nhost = \"www.example.org\"\n";
    let places = [
        ("allowed", "https%3A//www.example.org/to-allowed", "200"),
        ("clear", "http%3A//www.example.org/to-clear", "200"),
        ("downgrade", "http%3A//protocols.example/to-downgrade", "403"),
        ("denied", "http%3A//files.example.com/to-denied", "403"),
        ("private", "http%3A//10.0.0.5/to-private", "403"),
        ("metadata", "http%3A//169.254.169.254/latest", "403"),
        ("itself", "http%3A//127.0.0.1%3A8000/to-itself", "403"),
        ("within", "/to-within", "200"),
    ];
    let mut script = String::new();
    for (key, to, _) in places {
        for status in [301, 302, 303, 307, 308] {
            let url = format!("https://protocols.example/redirect?to={to}&status={status}");
            script += &format!("code {key}{status} via '{url}'\ncode {key}gate{status} proxy '{url}' one\n");
        }
        // A client that follows redirects repeats its own header, with the placeholder in it.
        script += &format!(
            "SSL_CERT_FILE= code {key}follow via -L -k 'https://protocols.example/redirect?to={to}'\n\
             code {key}taken via -L -k -H \"X-Api-Key: $ONE_TOKEN\" 'https://protocols.example/redirect?to={to}'\n"
        );
    }
    let left = site.beside(&policy).script(&script);
    safe(&canary, &left);
    for (key, _, follow) in places {
        for status in [301, 302, 303, 307, 308] {
            for way in ["", "gate"] {
                let said = left.said(&format!("{key}{way}{status}"));
                assert_eq!(said, status.to_string(), "{key}{way}: {}", left.ended);
            }
        }
        assert_eq!(left.said(&format!("{key}follow")), follow, "{key}: {}", left.ended);
    }
    // The credential is used at each hop it is bound to, and is not sent to the next in the clear.
    assert_eq!(left.said("withintaken"), "200", "{}", left.ended);
    assert_eq!(left.said("cleartaken"), "403", "{}", left.ended);
    let elsewhere: Vec<_> =
        site.requests().into_iter().filter(|r| r.text("host") != "protocols.example").collect();
    assert!(
        !elsewhere.is_empty() && elsewhere.iter().all(|r| r.text("host") == "www.example.org"),
        "{elsewhere:?}"
    );
    canary.is_not_in("another host", format!("{elsewhere:?}"));
    assert!(elsewhere.iter().all(|r| r.header("authorization").is_none()), "{elsewhere:?}");
    let reached: Vec<String> = site.visits().into_iter().map(|r| r.server).filter(|s| s != "web").collect();
    assert!(reached.is_empty(), "{reached:?}");
}

#[test]
fn headers_that_make_a_credential_come_back_are_taken_away() {
    // C12: TRACE, Connection, Range, Expect, Max-Forwards.
    let Some((site, canary)) = site() else { return };
    let left = site.beside(&provider("one", &["https://protocols.example/*", "http://protocols.example/*"])).script(
        r#"for u in https http; do for version in --http1.1 --http2; do [ $u$version != http--http2 ] || continue
        v() { key=$1; shift; code $key$u$version via $version "$@"; }
        v trace -X TRACE $u://protocols.example/trace
        v forwards -X TRACE -H 'Max-Forwards: 0' $u://protocols.example/trace
        v connection -H 'Connection: Authorization, close' -H 'X-Case: connection' $u://protocols.example/echo
        v range -H 'Range: bytes=0-10' -H 'If-Range: "x"' $u://protocols.example/echo-auth
        v expect -H 'Expect: 100-continue' --data some $u://protocols.example/continue
        v coding -H 'Accept-Encoding: zstd, compress' $u://protocols.example/echo
        v te -H 'TE: trailers, gzip' $u://protocols.example/echo
        done; done
        code gatetrace proxy https://protocols.example/trace one -X TRACE"#,
    );
    safe(&canary, &left);
    for way in ["https--http1.1", "https--http2", "http--http1.1"] {
        assert_eq!(left.said(&format!("trace{way}")), "403", "{}", left.ended);
        assert_eq!(left.said(&format!("forwards{way}")), "403", "{}", left.ended);
        for key in ["range", "expect", "coding"] {
            assert_eq!(left.said(&format!("{key}{way}")), "200", "{key}: {}", left.ended);
        }
    }
    assert_eq!(left.said("gatetrace"), "403", "{}", left.ended);
    let requests = site.requests();
    assert!(requests.iter().all(|record| record.text("method") != "TRACE"), "{requests:?}");
    for record in &requests {
        let sent = format!("Bearer {}", canary.text());
        assert_eq!(record.header("authorization"), Some(sent.as_str()), "{record:?}");
        for name in ["range", "if-range", "proxy-connection"] {
            assert_eq!(record.header(name), None, "{record:?}");
        }
        assert!(
            record.header("connection").is_none_or(|value| !value.to_lowercase().contains("authorization"))
        );
        assert_eq!(record.header("accept-encoding"), Some("identity"), "{record:?}");
    }
}

#[test]
fn a_host_that_a_credential_goes_to_answers_as_a_whole_without_it_too() {
    // C12: what one request stored there another one must not read in parts, whoever's keys may be sent.
    let Some((site, canary)) = site() else { return };
    let policy = provider("one", &["https://protocols.example/v1/*"])
        + "pinned = false\n[[egress.allow]]\nurl = \"https://protocols.example/open/*\"\n";
    let left = site.beside(&policy).script(
        "for version in --http1.1 --http2; do\n\
         code part$version via $version -H 'Range: bytes=0-10' -H 'Accept-Encoding: zstd' https://protocols.example/open/a\n\
         done",
    );
    safe(&canary, &left);
    let requests = site.requests();
    assert_eq!(requests.len(), 2, "{}", left.ended);
    for record in &requests {
        assert_eq!((record.header("authorization"), record.header("range")), (None, None), "{record:?}");
        assert_eq!(record.header("accept-encoding"), Some("identity"), "{record:?}");
    }
}

#[test]
fn each_request_of_a_connection_is_asked_for() {
    // C21: one connection, alternately allowed and not; concurrently over HTTP/2.
    let Some((site, canary)) = site() else { return };
    let policy = provider("one", &["https://protocols.example/v1/*"])
        + "[[egress.allow]]\nurl = \"https://protocols.example/open/*\"\n";
    let urls = ["v1/a", "v2/b", "open/c", "v1/../v2/d", "v1/e", "v2/f"]
        .map(|path| format!("https://protocols.example/{path}"));
    let left = site.beside(&policy).script(&format!(
        "for version in --http1.1 --http2 '--http2 -Z --parallel-max 6'; do\n\
         via $version --path-as-is -o /dev/null -w '%{{num_connects}} %{{http_code}} %{{url}}\\n' {}; done",
        urls.join(" -o /dev/null ")
    ));
    safe(&canary, &left);
    for line in left.lines() {
        let code = if line.contains("/v2/") { "403" } else { "200" };
        assert!(line.contains(code), "{line}: {}", left.ended);
    }
    assert_eq!(left.lines().count(), 18, "{}", left.ended);
    assert_eq!(
        left.lines().filter(|line| line.starts_with("0 ")).count(),
        15,
        "not one connection: {}",
        left.ended
    );
    let sent = format!("Bearer {}", canary.text());
    for record in site.requests() {
        let expected = record.text("path").starts_with("/v1/").then_some(sent.as_str());
        assert_eq!(record.header("authorization"), expected, "{record:?}");
        assert!(!record.text("path").contains("v2"), "{record:?}");
    }
}

#[test]
fn a_name_is_judged_at_each_request() {
    // E14: public once, private from then on; public and private at once; a kept connection makes no difference.
    let Some((site, canary)) = site() else { return };
    let hosts = ["rebind.example.com", "mixed.example.com", "private.example.com", "moving.example.com"];
    let uris: Vec<String> =
        hosts.iter().flat_map(|h| [format!("http://{h}/*"), format!("https://{h}/*")]).collect();
    let policy = provider("one", &uris.iter().map(String::as_str).collect::<Vec<_>>());
    site.world().resolve(&json!({ "moving.example.com": ["93.184.216.34"] })).expect("a table");
    let tables = site.world().folder().join("tables.json");
    let left = site.beside(&policy).with("TABLES", &tables.to_string_lossy()).script(
        r#"code mixed via http://mixed.example.com/x
        code mixedtls via -k https://mixed.example.com/x
        code private proxy https://private.example.com/x one
        code first via http://moving.example.com/first
        echo '{"moving.example.com": ["10.0.0.5"]}' > "$TABLES.new"; mv "$TABLES.new" "$TABLES"
        code second via http://moving.example.com/second
        code third proxy http://moving.example.com/third one
        code rebind via http://rebind.example.com/1
        code rebound via http://rebind.example.com/2"#,
    );
    safe(&canary, &left);
    for key in ["mixed", "mixedtls", "private", "second", "third", "rebound"] {
        assert_eq!(left.said(key), "403", "{key}: {}", left.ended);
    }
    assert_eq!(left.said("first"), "200", "{}", left.ended);
    assert!(site.world().records_of("private").is_empty(), "{:?}", site.visits());
    assert_eq!(left.denials("address_blocked"), 6, "{:?}", left.audit());
}

#[test]
fn there_is_no_way_back_to_the_sidecar_itself() {
    // E17, C15: not by address, by name, or by the planes of another sidecar; nor to what only it may reach.
    let Some((site, canary)) = site() else { return };
    let policy =
        provider("one", &["https://protocols.example/*"]) + "[egress]\ndefault = \"open-internet\"\n";
    let left = site.beside(&policy).script(
        r#"for to in http://127.0.0.1:8080/health http://127.0.0.1:8081/ http://localhost:8080/health http://sidecar:8080/health \
            http://[::1]:8080/health http://0.0.0.0:8080/health http://192.168.77.2:8001/ http://host.example.com:8001/ http://loopback.example.com:8080/; do
            n=$((${n:-0}+1)); code absolute$n via $to; code gate$n proxy $to one; code tunnel$n via -p -w '%{http_connect} ' $to
        done; echo count=$n"#,
    );
    safe(&canary, &left);
    for n in 1..=9 {
        assert!(["400", "403"].contains(&left.said(&format!("absolute{n}"))), "{n}: {}", left.ended);
        assert!(["400", "403"].contains(&left.said(&format!("gate{n}"))), "{n}: {}", left.ended);
        assert!(
            left.said(&format!("tunnel{n}")).starts_with("403 000")
                || left.said(&format!("tunnel{n}")).starts_with("400 000")
                || left.said(&format!("tunnel{n}")).starts_with("000"),
            "{n}: {}",
            left.ended
        );
    }
    assert_eq!(left.said("count"), "9");
    assert!(site.visits().is_empty(), "{:?}", site.visits());
    let ended = site.run().policy(&policy).script(
        r#"for to in http://sidecar:8080 http://sidecar:8081; do
            curl -sS -o /dev/null -w '%{http_code}\n' --noproxy '' -x http://sidecar:8081 $to/health
            curl -sS -o /dev/null -w '%{http_code}\n' -H 'X-Provider: one' -H "X-Target: $to/health" http://sidecar:8080/proxy
        done"#,
    );
    assert_eq!(ended.stdout.lines().filter(|line| ["400", "403"].contains(line)).count(), 4, "{ended}");
}

#[test]
fn a_server_name_that_is_none_opens_nothing() {
    // C03, E03, E13: on a host whose TLS is terminated.
    let Some((site, canary)) = site() else { return };
    let Some(_) = site.probe() else { return };
    let run = site.run().policy(&provider("one", &["https://protocols.example/*"])).bare();
    let names = [
        "www.example.org",
        "-",
        r"protocols.example\0.example.org",
        r"www.example.org\0protocols.example",
        "protocols.example\r\n",
        "",
        "[::1]",
        "93.184.216.34",
        "protocols.example.example.org",
    ];
    let mut script = String::new();
    for how in ["", "segments", "records"] {
        for name in names {
            let name = name.replace("\r\n", "'\"$(printf '\\r\\nx')\"'");
            script += &format!("./probe tls protocols.example 443 '{name}' {how} || true\n");
        }
    }
    // The same name in another spelling.
    script += "for how in '' segments records; do for name in Protocols.EXAMPLE protocols.example.; do
        ./probe tls protocols.example 443 $name $how || true; done; done\n";
    let ended = run.script(&script);
    let done: Vec<bool> = ended
        .stdout
        .lines()
        .filter(|line| line.contains("\"probe\""))
        .map(|line| line.contains("\"outcome\":\"done\""))
        .collect();
    assert_eq!(done.len(), 33, "{ended}");
    assert_eq!(done.iter().filter(|done| **done).count(), 6, "{ended}");
    assert!(done[27..].iter().all(|done| *done), "{ended}");
    canary.is_not_in("what was said", format!("{ended}"));
    assert!(site.visits().is_empty(), "{:?}", site.visits());
}

#[test]
fn a_field_that_a_server_takes_for_another_is_taken_away_as_that_one_is() {
    // E18: servers that read fields as variables do not distinguish `_` and `-` (RFC 3875 §4.1.18).
    let Some((site, _)) = site() else { return };
    let policy =
        provider("one", &["https://protocols.example/*"]) + "[[egress.allow]]\nhost = \"www.example.org\"\n";
    let left = site.beside(&policy).script(
        r#"under() { key=$1; shift; code $key "$@" --data some -H 'Content_Length: 5' -H 'Transfer_Encoding: chunked' -H 'Proxy_Authorization: Basic x' \
            -H 'X_Target: https://www.example.org/' -H 'X_Provider: two' -H 'X_Lockgate_Run: x' -H 'SCRIPT_NAME: /x' \
            -H 'Path-Info: /x' -H 'X_Other: 1'; }
        under clear via http://www.example.org/clear
        under opened1 via --http1.1 https://protocols.example/opened1
        under opened2 via --http2 https://protocols.example/opened2
        under gateway proxy https://protocols.example/gateway one"#,
    );
    let keys = ["clear", "opened1", "opened2", "gateway"];
    let requests = site.requests();
    assert_eq!(requests.len(), keys.len(), "{requests:?}");
    for key in keys {
        assert_eq!(left.said(key), "200", "{key}: {}", left.ended);
        let found = requests.iter().find(|it| it.text("path") == format!("/{key}")).expect("a request");
        for name in [
            "content_length",
            "transfer_encoding",
            "proxy_authorization",
            "x_target",
            "x_provider",
            "x_lockgate_run",
            "script_name",
            "path-info",
        ] {
            assert_eq!(found.header(name), None, "{found:?}");
        }
        assert_eq!((found.header("x_other"), found.text("body")), (Some("1"), "some"), "{found:?}");
    }
}

/// A server that does not read bodies and takes one for the next request; it always keeps the connection.
const UNREAD: &str = r#"import socket, threading
def serve(link, number):
    held = b""
    while True:
        while b"\r\n\r\n" not in held:
            try: more = link.recv(4096)
            except OSError: return
            if not more: return
            held += more
        head, held = held.split(b"\r\n\r\n", 1)
        lines = head.split(b"\r\n")
        kept = [line for line in lines[1:] if line.startswith((b"authorization", b"connection", b"x-rest"))]
        with open("unread.seen", "ab") as seen: seen.write(b"%d %s\n" % (number, b" | ".join([lines[0], *kept])))
        link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
server = socket.create_server(("127.0.0.1", 9300), backlog=64)
open("unread.ready", "w").close()
number = 0
while True:
    number += 1
    threading.Thread(target=serve, args=(server.accept()[0], number), daemon=True).start()
"#;

#[test]
fn nothing_goes_behind_a_body_that_a_server_may_not_have_read() {
    // C21: the server would read a request with its credential under the agent's text.
    let Some((site, canary)) = site() else { return };
    let server = site.file("unread.py", UNREAD);
    let policy = provider("one", &["http://odd.example.com:9300/*"]) + "addresses = [\"127.0.0.1\"]\n";
    let left = site.beside(&policy).script(&format!(
        "/usr/bin/python3 {} & server=$!; await '[ -e unread.ready ]'; at=http://odd.example.com:9300\n\
         rest=\"$(printf 'GET /taken HTTP/1.1\\r\\nX-Rest: ')\"\n\
         code sized via -X GET --data-binary \"$rest\" $at/sized\n\
         code after via $at/after\n\
         code again via $at/again\n\
         code chunked via -H 'Transfer-Encoding: chunked' --data-binary \"$rest\" $at/chunked\n\
         code last via $at/last\n\
         kill $server; sed 's/^/seen /' unread.seen; rm unread.*",
        server.display()
    ));
    for key in ["sized", "after", "again", "chunked", "last"] {
        assert_eq!(left.said(key), "200", "{key}: {}", left.ended);
    }
    // Lines that are no request are the framing of a chunk.
    let seen: Vec<&str> = left
        .lines()
        .filter_map(|line| line.strip_prefix("seen "))
        .filter(|line| line.contains(" HTTP/1.1"))
        .collect();
    let sent = format!("authorization: Bearer {}", canary.text());
    let expected = [
        format!("1 GET /sized HTTP/1.1 | {sent} | connection: close"),
        format!("2 GET /after HTTP/1.1 | {sent}"),
        format!("2 GET /again HTTP/1.1 | {sent}"),
        format!("3 POST /chunked HTTP/1.1 | {sent} | connection: close"),
        format!("2 GET /last HTTP/1.1 | {sent}"),
    ];
    assert_eq!(seen, expected, "{}", left.ended);
}

#[test]
fn what_is_sent_is_counted_over_either_version() {
    // A request without a body, and one for a socket, which is refused.
    let Some((site, _)) = site() else { return };
    let left = site.beside(&provider("one", &["https://protocols.example/*"])).script(
        r#"long=$(printf '%0300d' 0)
        for version in --http1.1 --http2; do
            code first$version via $version -H "X-Long: $long" https://protocols.example/echo
            code second$version via $version -H "X-Long: $long" https://protocols.example/echo
        done
        code socket via --http1.1 -H "X-Long: $long" -H 'Connection: Upgrade' -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' \
            -H 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==' https://protocols.example/echo"#,
    );
    assert_eq!(
        left.said("socket"),
        "200",
        "what opens no WebSocket is an answer like any other: {}",
        left.ended
    );
    let audit = left.audit();
    let requests: Vec<_> = audit.iter().filter(|record| record["action"] == "GET").collect();
    assert_eq!(requests.len(), 5, "{audit:?}");
    for record in requests {
        let sent = record["sent"].as_u64().unwrap_or_default();
        assert!((350..1000).contains(&sent), "{record}");
    }
}
