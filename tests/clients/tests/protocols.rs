//! Protocols over a connection that is terminated for a credential: HTTP/2 with clients that use it and with others, gRPC, WebSockets,
//! events sent one by one. S0.28, S0.29, S0.51, S1.26; C08, C10, C22.

use lockgate_clients::{Canary, Need, Site};
use serde_json::Value;

const NEEDS: &[Need] = &[Need::Program("curl"), Need::Program("python3")];
const POLICY: &str = r#"
[[provider]]
id = "one"
authorized_uris = ["https://protocols.example/*", "https://api.example.com/*", "http://protocols.example/*"]
env = "ONE_TOKEN"
inject = { header = "authorization", value = "Bearer {{access_token}}" }
"#;
const GRPC: &str = "grpc = true\n";

fn site() -> Option<(Site, Canary)> {
    let site = Site::for_test(NEEDS)?;
    let canary = Canary::draw();
    site.keep("one", "access_token", canary.text());
    Some((site, canary))
}

/// Makes one request by the world's HTTP/2 client inside a run, which trusts the run's authority.
fn by_h2(site: &Site, policy: &str, request: &Value) -> Option<Value> {
    let client = site.h2_client()?;
    let host = request["host"].as_str().expect("a host");
    let path = site.workspace().join("request.json");
    std::fs::write(&path, request.to_string()).expect("room for a request");
    let ended = site.run().policy(policy).bare().script(&format!(
        "WORLD_CA=/.lockgate-etc/authority.pem {} {host}:443 \"$(cat request.json)\"",
        client.display()
    ));
    assert_eq!(ended.code, 0, "{ended}");
    Some(serde_json::from_str(&ended.stdout).expect("what came back"))
}

#[test]
fn grpc_goes_both_ways_with_its_trailers() {
    // C10; S1.26
    let Some((site, canary)) = site() else { return };
    let message = |text: &str| {
        let length = char::from(u8::try_from(text.len()).expect("a short message"));
        format!("\0\0\0\0{length}{text}")
    };
    // Each message but the first waits for the answer to the one before: a proxy that buffers would wait forever.
    let secret = canary.text().to_owned();
    let request = serde_json::json!({
        "host": "protocols.example", "method": "POST", "path": "/echo.Echo/Both",
        "headers": { "content-type": "application/grpc", "te": "trailers" },
        "data": [message("one"), message("two"), message("three"), message(&secret)],
    });
    let Some(answer) = by_h2(&site, &[POLICY, GRPC].concat(), &request) else { return };
    assert_eq!(answer["alpn"], "h2");
    assert_eq!(answer["status"], 200, "{answer}");
    assert_eq!(answer["trailers"]["grpc-status"], "0", "{answer}");
    let data = answer["data"].to_string();
    canary.is_not_in("the answer", &data);
    // Each message is whole before the next is sent; C10: a repeated credential is masked by as many characters.
    let pieces: Vec<&str> =
        answer["data"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let whole: Vec<String> = ["one", "two", "three", &"*".repeat(40)].map(message).into();
    assert_eq!(pieces, whole, "{answer}");
    let requests = site.requests();
    assert_eq!(requests[0].header("te"), Some("trailers"), "{requests:?}");
    assert_eq!(requests[0].header("authorization"), Some(format!("Bearer {}", canary.text()).as_str()));
    assert!(requests[0].text("line").ends_with("HTTP/2.0"), "{requests:?}");
}

#[test]
fn a_call_that_is_given_up_while_a_message_is_held_back_is_told_what_passes_it_on() {
    // S1.26
    let Some((site, _)) = site() else { return };
    // One that is killed ends nothing in order, as one that gives up may.
    let left = site.beside(POLICY).script(
        r#"{ printf '\000\000\000\000\003one'; sleep 5; } | timeout -s KILL 3 curl -sS --cacert "$OUT/ca.pem" \
            -x http://127.0.0.1:8081 --http2 -X POST -T . -H 'Expect:' -H 'Content-Type: application/grpc' \
            -H 'TE: trailers' https://protocols.example/echo.Echo/Both > answer || :
        echo "came=$(tail -c 3 answer)""#,
    );
    assert_eq!(left.said("came"), "", "{}", left.ended);
    let is_told = left.audit().iter().any(|record| record.to_string().contains("with `grpc = true`"));
    assert!(is_told, "{:?}", left.audit());
}

#[test]
fn http_2_reaches_those_who_speak_http_1_alone() {
    // S0.51, S1.26
    let Some((site, canary)) = site() else { return };
    let request = serde_json::json!({
        "host": "api.example.com", "method": "POST", "path": "/mirror", "headers": { "content-type": "text/plain" },
        "data": ["first and last"],
    });
    let Some(answer) = by_h2(&site, POLICY, &request) else { return };
    assert_eq!(answer["status"], 200, "{answer}");
    assert_eq!(
        answer["data"].as_array().map(|d| d.iter().filter_map(Value::as_str).collect::<String>()).as_deref(),
        Some("first and last")
    );
    let requests = site.requests();
    assert!(requests[0].text("line").ends_with("HTTP/1.1"), "{requests:?}");
    assert_eq!(requests[0].header("authorization"), Some(format!("Bearer {}", canary.text()).as_str()));
    assert_eq!(requests[0].text("body"), "first and last");
    // And in reverse: many requests at once, over one connection, and a large body both ways.
    let left = site.beside(POLICY).script(
        r#"head -c 3000000 /dev/zero > body
        for host in api.example.com protocols.example; do for version in --http1.1 --http2; do
            echo "$host$version=$(via $version -H 'Expect:' --data-binary @body https://$host/upload | sed 's/.*"body_length":\([0-9]*\).*/\1/') $(via $version https://$host/bytes/5000000 | wc -c)"
        done
        echo "many$host=$(via --http2 -Z --parallel-max 50 -f -o '/dev/null' "https://$host/many/[1-200]" -w '%{http_version} %{http_code}\n' | sort | uniq -c | tr -s ' ')"
        done; rm body"#,
    );
    for host in ["api.example.com", "protocols.example"] {
        for version in ["--http1.1", "--http2"] {
            assert_eq!(left.said(&format!("{host}{version}")), "3000000 5000000", "{}", left.ended);
        }
        assert_eq!(left.said(&format!("many{host}")), " 200 2 200", "{}", left.ended);
    }
}

/// Reads events as they arrive: how many, whether a pause came between any, and whether the first came well before the last.
const EVENTS: &str = r#"import subprocess, sys, time
begun = time.monotonic()
curl = subprocess.Popen(["curl", "-sSN", "--max-time", "20"] + sys.argv[2:], stdout=subprocess.PIPE)
times = []
while line := curl.stdout.readline():
    if line.startswith(b"data:"): times.append(time.monotonic() - begun)
gaps = sum(b - a > 0.06 for a, b in zip(times, times[1:]))
print("%s=%d events gaps %s first-before-last %s" % (sys.argv[1], len(times), gaps > 0, times[-1] - times[0] > 0.3))
"#;

#[test]
fn events_come_as_they_are_sent() {
    // S0.51
    // The first arrives before the last is sent: five, 400 ms apart.
    let Some((site, _)) = site() else { return };
    let events = site.file("events.py", EVENTS);
    let left = site.beside(POLICY).script(&format!(
        r#"e="/usr/bin/python3 {}"; x="--cacert $OUT/ca.pem -x http://127.0.0.1:8081"
        $e one $x --http1.1 'https://protocols.example/events?n=5&ms=400'
        $e two $x --http2 'https://protocols.example/events?n=5&ms=400'
        $e mixed $x --http2 'https://api.example.com/events?n=5&ms=400'
        $e clear $x 'http://protocols.example/events?n=5&ms=400'"#,
        events.display()
    ));
    for key in ["one", "two", "mixed", "clear"] {
        assert_eq!(left.said(key), "5 events gaps True first-before-last True", "{}", left.ended);
    }
}

/// A WebSocket client: sends text and binary frames, whole and in parts, and prints what comes back.
const SOCKET: &str = r#"import base64, os, socket, ssl, struct, sys, time
token = os.environ.get("ONE_TOKEN", "")
def connect(path, secure):
    raw = socket.create_connection(("127.0.0.1", 8081), 10)
    if secure:
        raw.sendall(b"CONNECT protocols.example:443 HTTP/1.1\r\nHost: protocols.example:443\r\n\r\n")
        assert b" 200 " in raw.recv(4096)
        raw = ssl.create_default_context(cafile=os.environ["OUT"] + "/ca.pem").wrap_socket(raw, server_hostname="protocols.example")
    target = path if secure else "http://protocols.example" + path
    raw.sendall(("GET %s HTTP/1.1\r\nHost: protocols.example\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n" % target).encode())
    head = b""
    while b"\r\n\r\n" not in head: head += raw.recv(1)
    return raw, head.decode()
def frame(first, data):
    mask = os.urandom(4)
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + struct.pack(">H", len(data))
    return bytes([first]) + size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data))
def exactly(link, n):
    data = b""
    while len(data) < n:
        piece = link.recv(n - len(data))
        assert piece, "cut"
        data += piece
    return data
def hear(link):
    first, size = exactly(link, 2)
    if size == 126: size = struct.unpack(">H", exactly(link, 2))[0]
    return first, exactly(link, size)
for name, secure in (("clear", False), ("tls", True)):
    link, head = connect("/ws/echo-auth", secure)
    print(name + "-head=" + head.split("\r\n")[0] + (" extension" if "extensions" in head.lower() else ""))
    print(name + "-greeting=" + hear(link)[1].decode("latin-1"))
    for kind, first in (("text", 0x81), ("binary", 0x82)):
        begun = time.monotonic()
        link.sendall(frame(first, b"an ordinary frame"))
        print("%s-%s=%s %s" % (name, kind, hear(link)[1].decode(), time.monotonic() - begun < 4))
        link.sendall(frame(first, token.encode()))
        print("%s-%s-placeholder=%s" % (name, kind, hear(link)[1] == token.encode()))
    # In parts: an occurrence that two frames share.
    link.sendall(frame(0x01, b"first part ") + frame(0x80, b"and the rest"))
    print("%s-parts=%s%s" % (name, hear(link)[1].decode(), hear(link)[1].decode()))
    large = b"x" * 60000
    link.sendall(frame(0x82, large))
    print("%s-large=%s" % (name, hear(link)[1] == large))
    link.sendall(frame(0x89, b"ping"))
    print("%s-ping=%s" % (name, hear(link)))
    # The same of the credential itself, with a ping between.
    for cut in (1, 7, 20, 46):
        cut_link, _ = connect("/ws/echo-auth?cut=%d" % cut, secure)
        frames = [hear(cut_link) for _ in range(3)]
        print("%s-cut-%d=%s %s" % (name, cut, [first for first, _ in frames], [payload.decode("latin-1") for _, payload in frames]))
        cut_link.close()
    link.sendall(frame(0x88, b"\x03\xe8"))
    print("%s-close=%s" % (name, hear(link)))
"#;

#[test]
fn a_web_socket_is_opened_with_the_credential_and_never_tells_it() {
    // C10 (`/ws/echo-auth`), C08 (frames of the agent's), C22
    let Some((site, canary)) = site() else { return };
    let socket = site.file("talk-ws.py", SOCKET);
    let left =
        site.beside(POLICY).script(&format!("export ONE_TOKEN; /usr/bin/python3 {}", socket.display()));
    canary.is_not_in("what came back", &left.ended.stdout);
    for name in ["clear", "tls"] {
        assert_eq!(left.said(&format!("{name}-head")), "HTTP/1.1 101 Switching Protocols", "{}", left.ended);
        assert_eq!(left.said(&format!("{name}-greeting")), format!("Bearer {}", "*".repeat(40)));
        for kind in ["text", "binary"] {
            assert_eq!(left.said(&format!("{name}-{kind}")), "an ordinary frame True", "{}", left.ended);
            assert_eq!(left.said(&format!("{name}-{kind}-placeholder")), "True", "{}", left.ended);
        }
        assert_eq!(left.said(&format!("{name}-parts")), "first part and the rest");
        assert_eq!(left.said(&format!("{name}-large")), "True");
        assert_eq!(left.said(&format!("{name}-ping")), "(138, b'ping')");
        let whole = format!("Bearer {}", "*".repeat(40));
        for cut in [1, 7, 20, 46] {
            let (first, rest) = whole.split_at(cut);
            let expected = format!("[1, 137, 128] ['{first}', 'between', '{rest}']");
            assert_eq!(left.said(&format!("{name}-cut-{cut}")), expected, "{}", left.ended);
        }
        assert_eq!(left.said(&format!("{name}-close")), "(136, b'\\x03\\xe8')");
    }
    let requests = site.requests();
    assert!(
        requests.len() == 10
            && requests
                .iter()
                .all(|r| r.header("authorization") == Some(&format!("Bearer {}", canary.text()))),
        "{requests:?}"
    );
    let frames: Vec<_> = site.visits().into_iter().filter(|record| record.event == "frame").collect();
    canary.is_not_in("a frame", format!("{frames:?}"));
    assert_eq!(
        frames.iter().filter(|frame| frame.text("data").starts_with("lgph_")).count(),
        4,
        "{frames:?}"
    );
}

#[test]
fn a_web_socket_to_elsewhere_is_refused_like_any_request() {
    // C22, C01
    let Some((site, canary)) = site() else { return };
    let ask = "-H 'Connection: Upgrade' -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' -H 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=='";
    let left = site.beside(&POLICY.replace("protocols.example/*\", \"https://api", "protocols.example/ws/*\", \"https://api")).script(&format!(
        "code elsewhere via --http1.1 {ask} https://protocols.example/other\n\
         code own via --http1.1 {ask} -H 'Authorization: Bearer mine' https://protocols.example/ws/echo-auth\n\
         code stranger via --http1.1 {ask} -H 'X-Key: lgph_000000000000000000000000000000000000' https://protocols.example/ws/echo-auth\n\
         code none via --http1.1 {ask} https://protocols.example/ws/none"
    ));
    assert_eq!(
        (left.said("elsewhere"), left.said("own"), left.said("stranger")),
        ("403", "403", "400"),
        "{}",
        left.ended
    );
    // Where the upstream opens none, its answer is the client's.
    assert_eq!(left.said("none"), "200", "{}", left.ended);
    let paths: Vec<String> = site.requests().iter().map(|record| record.text("path").to_owned()).collect();
    assert_eq!(paths, ["/ws/none"], "{}", left.ended);
    canary.is_not_in("what was said", format!("{}", left.ended));
}

#[test]
fn messages_come_unpacked_and_a_header_makes_no_other_request() {
    // C10; S1.39
    let Some((site, _)) = site() else { return };
    let policy = POLICY.replace("env = ", "methods = [\"GET\"]\nenv = ");
    let left = site.beside(&policy).script(
        "p=https://protocols.example\n\
         code packed via -H 'grpc-accept-encoding: gzip' -H 'connect-accept-encoding: gzip' -H 'a-im: gzip' $p/echo\n\
         code delete via -X DELETE $p/echo\n\
         code meant via -H 'X-HTTP-Method-Override: DELETE' $p/echo\n\
         code under via -H 'X_HTTP_Method_Override: DELETE' $p/echo\n\
         code other via -H 'x-http-method: patch' $p/echo\n\
         code odd via -H 'x-method-override: a b' $p/echo\n\
         code same via -H 'X-HTTP-Method-Override: GET' $p/echo\n\
         code empty via -H 'X-HTTP-Method-Override;' $p/echo\n\
         code path via -H 'X-Original-URL: /elsewhere' $p/echo\n\
         code away via -H 'X-Rewrite-URL: https://www.example.org/' $p/echo",
    );
    let said = ["delete", "meant", "under", "other", "odd", "path", "away"].map(|key| left.said(key));
    assert_eq!(said, ["403", "403", "403", "403", "403", "200", "400"], "{}", left.ended);
    assert_eq!(["packed", "same", "empty"].map(|key| left.said(key)), ["200"; 3], "{}", left.ended);
    let requests = site.requests();
    assert_eq!(requests.len(), 4, "{requests:?}");
    for name in ["grpc-accept-encoding", "connect-accept-encoding"] {
        assert_eq!(requests[0].header(name), Some("identity"), "{requests:?}");
    }
    assert_eq!(requests[0].header("a-im"), None, "{requests:?}");
}

#[test]
fn a_web_socket_opens_behind_hints() {
    // S0.51: an upstream may say something before its answer (RFC 9110 §15.2), 103 among it (RFC 8297).
    let Some((site, canary)) = site() else { return };
    let ask = SOCKET.split("for name, secure in").next().expect("its functions");
    let socket = site.file(
        "hints-ws.py",
        format!(
            r#"{ask}
for name, secure in (("clear", False), ("tls", True)):
    for count in (1, 16, 17):
        link, head = connect("/ws/echo-auth?hints=%d" % count, secure)
        print("%s-%d=%s" % (name, count, head.split("\r\n")[0]))
        if b" 101 " not in head.encode(): continue
        print("%s-%d-greeting=%s" % (name, count, hear(link)[1].decode("latin-1")))
        link.sendall(frame(0x81, b"an ordinary frame"))
        print("%s-%d-frame=%s" % (name, count, hear(link)[1].decode()))
"#
        ),
    );
    let left = site.beside(POLICY).script(&format!("/usr/bin/python3 {}", socket.display()));
    canary.is_not_in("what came back", &left.ended.stdout);
    for name in ["clear", "tls"] {
        for count in [1, 16] {
            let said = |key: &str| left.said(&format!("{name}-{count}{key}"));
            assert_eq!(said(""), "HTTP/1.1 101 Switching Protocols", "{}", left.ended);
            assert_eq!(said("-greeting"), format!("Bearer {}", "*".repeat(40)), "{}", left.ended);
            assert_eq!(said("-frame"), "an ordinary frame", "{}", left.ended);
        }
        // Not forever.
        assert!(left.said(&format!("{name}-17")).starts_with("HTTP/1.1 502"), "{}", left.ended);
    }
}
