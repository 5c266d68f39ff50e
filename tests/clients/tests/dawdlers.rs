//! Slow clients: a head sent an octet per second ends at the limit for heads, on either port, and other clients are served meanwhile. The
//! known literal limits of a connection are tested here as well. L10.

use std::time::Duration;

use lockgate_clients::{Left, Need, Site, allowing, provider};
use lockgate_world::ANTHROPIC_KEY;

const NEEDS: &[Need] = &[Need::Program("curl"), Need::Program("python3")];

/// Sends heads, each on twenty connections, an octet per second; makes the file `begun` after the first octet of each, and prints how each
/// ended: `NAME=SECONDS OCTETS`.
const SLOW: &str = r#"import select, socket, sys, time
heads = {
    "proxy": (8081, b"GET http://www.example.org/slow HTTP/1.1\r\nHost: www.example.org\r\nX-A: "),
    "connect": (8081, b"CONNECT www.example.org:443 HTTP/1.1\r\nHost: www.example.org:443\r\nX-A: "),
    "gateway": (8080, b"GET /proxy HTTP/1.1\r\nHost: sidecar\r\nX-Provider: one\r\nX-Target: "),
}
links = {(name, n): (socket.create_connection(("127.0.0.1", port), 5), head)
         for name, (port, head) in heads.items() for n in range(20)}
begun, sent = time.monotonic(), 0
def ended(link):
    try: return select.select([link], [], [], 0)[0] and not link.recv(4096)
    except OSError: return True
while links and sent < 60:
    for (name, n), (link, head) in list(links.items()):
        try: link.sendall(head[sent:sent + 1])
        except OSError: pass
    sent += 1
    if sent == 1: open("begun", "w").close()
    while links and time.monotonic() < begun + sent:
        for key, (link, head) in list(links.items()):
            if ended(link):
                print("%s%d=%d %d" % (*key, time.monotonic() - begun, sent)); del links[key]
        time.sleep(0.05)
"#;

fn policy() -> String {
    provider("http://files.example.com/*") + &allowing(&["www.example.org", "blackhole.example.com"])
}

fn number(left: &Left, key: &str, place: usize) -> u64 {
    let said = left.said(key);
    said.split(' ').nth(place).and_then(|it| it.parse().ok()).unwrap_or_else(|| panic!("{key}={said}"))
}

#[test]
fn a_head_by_the_octet_ends_at_its_bound_and_others_are_served() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    site.keep("one", "access_token", "a-credential-of-no-use");
    let slow = site.file("slow.py", SLOW);
    let left = site.beside(&policy()).script(&format!(
        r#"/usr/bin/python3 {} & slow=$!; await '[ -e begun ]'; rm begun
        served() {{ code $1-proxy via http://www.example.org/; code $1-gateway proxy http://files.example.com/ one; }}
        served meanwhile; wait $slow; served after"#,
        slow.display()
    ));
    for when in ["meanwhile-proxy", "meanwhile-gateway", "after-proxy", "after-gateway"] {
        assert_eq!(left.said(when), "200", "{}", left.ended);
    }
    for name in ["proxy", "connect", "gateway"] {
        for copy in 0..20 {
            let key = format!("{name}{copy}");
            // docs/bounds.md: a head has 10 s from its first octet.
            let (seconds, octets) = (number(&left, &key, 0), number(&left, &key, 1));
            assert!((9..=13).contains(&seconds) && octets <= 14, "{key}: {}", left.ended);
        }
    }
    let paths: Vec<String> = site.requests().iter().map(|it| it.text("path").to_owned()).collect();
    assert!(paths.iter().all(|path| path == "/") && paths.len() == 4, "{paths:?}");
}

/// Requests a tunnel with a head of a given size, and prints the status: `SIZE=STATUS`.
const SIZED: &str = r#"import socket, sys
for size in map(int, sys.argv[1:]):
    for port in (8081, 8080):
        head = b"CONNECT www.example.org:80 HTTP/1.1\r\nHost: www.example.org:80\r\nX-Filler: \r\n\r\n"
        head = head.replace(b"Filler: ", b"Filler: " + b"a" * (size - len(head)))
        assert len(head) == size
        link = socket.create_connection(("127.0.0.1", port), 5); link.settimeout(10)
        link.sendall(head)
        try: came = link.recv(4096)
        except OSError: came = b""
        print("%d-%d=%s" % (port, size, came[9:12].decode() if came else "closed"))
        link.close()
"#;

#[test]
fn the_head_of_a_tunnel_has_sixteen_kibibytes() {
    // "Port 8081: … 16 KiB of CONNECT head."
    let Some(site) = Site::for_test(NEEDS) else { return };
    let sized = site.file("sized.py", SIZED);
    let left = site
        .beside(&policy())
        .script(&format!("/usr/bin/python3 {} 100 16383 16384 16385 17000 65536", sized.display()));
    for port in [8081, 8080] {
        for (size, status) in [(100, "200"), (16_383, "200"), (16_384, "200")] {
            assert_eq!(left.said(&format!("{port}-{size}")), status, "{size}: {}", left.ended);
        }
        for size in [16_385, 17_000, 65_536] {
            assert_eq!(left.said(&format!("{port}-{size}")), "400", "{size}: {}", left.ended);
        }
    }
}

#[test]
fn a_host_that_takes_no_connection_is_given_up_after_ten_seconds() {
    // "Port 8081: 10 s to connect"; the gateway answers 502 as well.
    let Some(site) = Site::for_test(NEEDS) else { return };
    let left = site.beside(&policy()).script(
        r#"timed() { key=$1; shift; printf '%s=%s\n' $key "$(via -o /dev/null -w '%{http_code} %{http_connect} %{time_total}' "$@" 2>/dev/null)"; }
        timed tunnel -p http://blackhole.example.com/ & tunnel=$!
        timed plain http://blackhole.example.com/ & plain=$!
        timed meanwhile http://www.example.org/; wait $tunnel $plain"#,
    );
    let of = |key: &str| -> Vec<f64> {
        left.said(key).split(' ').map(|it| it.parse().expect("a number")).collect()
    };
    for (key, place) in [("tunnel", 1), ("plain", 0)] {
        let said = of(key);
        assert!([502.0, 504.0].contains(&said[place]), "{key}: {}", left.ended);
        assert!((9.5..13.0).contains(&said[2]), "{key}: {}", left.ended);
    }
    let meanwhile = of("meanwhile");
    assert!(meanwhile[0] == 200.0 && meanwhile[2] < 3.0, "{}", left.ended);
    let failed = left.audit().into_iter().filter(|record| record["outcome"] == "failed").count();
    assert_eq!(failed, 2, "{:?}", left.audit());
}

/// Three connections that fall silent: at once, after a request, through a tunnel after an octet each way; and a tunnel that sends
/// something every minute. Prints how long each stayed open.
const IDLE: &str = r#"import select, socket, sys, time
def link(): return socket.create_connection(("127.0.0.1", 8081), 5)
def tunnel():
    it = link(); it.sendall(b"CONNECT echo.example.com:7777 HTTP/1.1\r\nHost: echo.example.com:7777\r\n\r\n")
    came = b""
    while b"\r\n\r\n" not in came: came += it.recv(4096)
    assert came.startswith(b"HTTP/1.1 200"), came
    it.sendall(b"1"); assert it.recv(1) == b"1"
    return it
kept = link(); kept.sendall(b"GET http://www.example.org/status/204 HTTP/1.1\r\nHost: www.example.org\r\n\r\n")
assert kept.recv(65536).startswith(b"HTTP/1.1 204")
idle = {"silent": link(), "kept": kept, "tunnel": tunnel()}
begun, spoken, busy = time.monotonic(), 0, tunnel()
while idle and time.monotonic() - begun < 140:
    for name, it in list(idle.items()):
        if select.select([it], [], [], 0)[0]:
            try: assert it.recv(4096) == b"", name
            except ConnectionResetError: pass
            print("%s=%d" % (name, time.monotonic() - begun)); del idle[name]
    if time.monotonic() - begun > 60 * (spoken + 1):
        busy.sendall(b"2"); assert busy.recv(1) == b"2"; spoken += 1
    time.sleep(0.2)
busy.sendall(b"3"); print("busy=%s" % busy.recv(1).decode())
"#;

#[test]
fn who_says_nothing_for_two_minutes_is_let_go() {
    // "Port 8081: … 120 s idle".
    let Some(site) = Site::for_test(NEEDS) else { return };
    let idle = site.file("idle.py", IDLE);
    let policy = "[[egress.allow]]\nhost = \"echo.example.com\"\nports = [7777]\n[[egress.allow]]\nhost = \"www.example.org\"\n";
    let beside = site.beside(policy).within(Duration::from_secs(165));
    let left = beside.script(&format!("/usr/bin/python3 {}", idle.display()));
    for name in ["silent", "kept", "tunnel"] {
        assert!((119..=125).contains(&number(&left, name, 0)), "{name}: {}", left.ended);
    }
    assert_eq!(left.said("busy"), "3", "the control: one that speaks is kept: {}", left.ended);
}

#[test]
fn a_head_that_no_more_can_mend_is_refused_at_once() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let broken = site.file(
        "broken.py",
        r#"import socket
heads = [b"GET http://www.example.org/ HTTP/1.1\n", b"GET http://www.example.org/ HTTP/1.1\r\nHost: www.exa",
         b"GET http://www.example.org/ HTTP/1.1\r\nX-A: b\rX", b"GET http://www.example.org/ HTTP/1.1\r\nX-A: \0", b"GET / HTTP/1.1\r\nHost: a\r\n\n"]
for n, head in enumerate(heads):
    link = socket.create_connection(("127.0.0.1", 8081), 5); link.settimeout(4)
    try:
        for octet in head: link.sendall(bytes([octet]))
        said = link.recv(12)
    except socket.timeout: said = b"nothing"
    print("head%d=%s" % (n, said.decode()))
"#,
    );
    let left = site.beside(&policy()).script(&format!("/usr/bin/python3 {}", broken.display()));
    for n in [0, 2, 3, 4] {
        assert_eq!(left.said(&format!("head{n}")), "HTTP/1.1 400", "{}", left.ended);
    }
    // The control: a head that may still become whole is waited for, ten seconds.
    assert_eq!(left.said("head1"), "nothing", "{}", left.ended);
    assert_eq!((left.denials("http_framing"), site.requests().len()), (4, 0), "{}", left.ended);
}

#[test]
fn a_tunnel_leads_where_its_host_says_unless_that_is_the_proxy() {
    // Some clients name the proxy as the host (undici before 6.3); any other name could be read in two ways. C03, E10
    let Some(site) = Site::for_test(NEEDS) else { return };
    let connect = site.file(
        "connect.py",
        r#"import socket
for key, host in [("same", "www.example.org:443"), ("bare", "www.example.org"), ("proxy", "sidecar:8081"),
                  ("address", "127.0.0.1:8081"), ("other", "evil.example:443"), ("port", "www.example.org:80")]:
    link = socket.create_connection(("127.0.0.1", 8081), 5)
    link.sendall(b"CONNECT www.example.org:443 HTTP/1.1\r\nHost: %s\r\n\r\n" % host.encode())
    print("%s=%s" % (key, link.recv(12).decode()))
"#,
    );
    let left = site.beside(&policy()).script(&format!("/usr/bin/python3 {}", connect.display()));
    for (key, status) in [
        ("same", "200"),
        ("bare", "200"),
        ("proxy", "200"),
        ("address", "200"),
        ("other", "403"),
        ("port", "403"),
    ] {
        assert_eq!(left.said(key), format!("HTTP/1.1 {status}"), "{key}: {}", left.ended);
    }
}

/// `bodies.py late|broken`: sends bodies in chunks, piece by piece, and prints the answer to each request.
const BODIES: &str = r#"import socket, sys, time
def ask(key, path, more, pieces):
    link = socket.create_connection(("127.0.0.1", 8081), 5); link.settimeout(30)
    head = b"POST http://www.example.org/%s HTTP/1.1\r\nHost: www.example.org\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n%s\r\n"
    came = b""
    for n, piece in enumerate(pieces):
        if isinstance(piece, int): time.sleep(piece / 1000)
        else:
            try: link.sendall((head % (path, more) if n == 0 else b"") + piece)
            except OSError: pass
    try:
        while piece := link.recv(4096): came += piece
    except OSError: pass
    print("%s=%s" % (key, came[:12].decode()))
expect = b"Expect: 100-continue\r\n"
smuggled = b"\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: www.example.org\r\n\r\n"
if sys.argv[1] == "late": ask("late", b"late", b"", [b"", 11000, b"5\r\nfirst\r\n", 100, b"4\r\n and\r\n5\r\n last\r\n0\r\n\r\n"])
else:
    ask("at-once", b"bad", b"", [b"0x0" + smuggled])
    ask("cut", b"bad", b"", [b"", 200, b"0", 300, b"x0" + smuggled])
    ask("cut-head", b"bad", b"", [b"0", 300, b"x0" + smuggled])
    ask("extension", b"bad", b"", [b"5;a", 300, b"\nb" + smuggled])
    ask("expect", b"bad", expect, [b"0x0" + smuggled])
    ask("expect-cut", b"bad", expect, [b"0", 300, b"x0" + smuggled])
"#;

#[test]
fn a_body_in_chunks_may_begin_late() {
    // S0.28: the head is whole, and a connection may be idle for two minutes.
    let Some(site) = Site::for_test(NEEDS) else { return };
    let bodies = site.file("bodies.py", BODIES);
    let left = site.beside(&policy()).script(&format!("/usr/bin/python3 {} late", bodies.display()));
    assert_eq!(left.said("late"), "HTTP/1.1 200", "{}", left.ended);
    let requests = site.requests();
    assert!(requests.len() == 1 && requests[0].text("body") == "first and last", "{requests:?}");
}

#[test]
fn a_body_in_chunks_that_turns_out_broken_reaches_nobody() {
    // S0.28, E18: however its first octets arrive, and whether or not its sender waits for 100 (Continue).
    let Some(site) = Site::for_test(NEEDS) else { return };
    let bodies = site.file("bodies.py", BODIES);
    let left = site.beside(&policy()).script(&format!("/usr/bin/python3 {} broken", bodies.display()));
    for key in ["at-once", "cut", "cut-head", "extension", "expect", "expect-cut"] {
        assert_eq!(left.said(key), "HTTP/1.1 400", "{key}: {}", left.ended);
    }
    assert_eq!((left.denials("http_framing"), site.world().received_by("web")), (6, 0), "{}", left.ended);
    assert!(
        site.visits().iter().all(|it| it.event == "closed" || it.event == "connect"),
        "{:?}",
        site.visits()
    );
}

#[test]
fn who_sends_a_large_body_sees_why_nobody_takes_it() {
    // S0.38
    let Some(site) = Site::for_test(NEEDS) else { return };
    let post = site.file(
        "post.py",
        r#"import json, sys, urllib.error, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": "http://127.0.0.1:8081"}))
for n in range(5):
    try: print("post%d=%d" % (n, opener.open("http://" + sys.argv[1] + "/post", b"x" * 5000000, 20).status))
    except urllib.error.HTTPError as error:
        print("post%d=%d %s %s" % (n, error.code, error.headers["content-type"], json.load(error)["error"]))
    except OSError as error: print("post%d=%s" % (n, error))
"#,
    );
    let say =
        |host: &str| site.beside(&policy()).script(&format!("/usr/bin/python3 {} {host}", post.display()));
    let left = say("git.example.org");
    for n in 0..5 {
        let said = left.said(&format!("post{n}"));
        assert!(said.starts_with("403 application/problem+json "), "{said}: {}", left.ended);
    }
    assert!(site.visits().is_empty(), "{:?}", site.visits());
    let left = say("www.example.org");
    assert_eq!(left.said("post4"), "200", "the control: {}", left.ended);
    assert!(site.requests().iter().all(|it| it.detail["body_length"] == 5_000_000), "{:?}", left.ended);
}

#[test]
fn bodies_that_have_not_come_take_no_room() {
    // S4.46: each of two requests in chunks may be as large as the whole buffer, and has sent two octets.
    let Some(site) = Site::for_test(NEEDS) else { return };
    site.keep("anthropic", "access_token", ANTHROPIC_KEY);
    let open = site.file(
        "open.py",
        r#"import os, socket, sys, time
links = [socket.create_connection(("127.0.0.1", 8080), 5) for _ in range(2)]
for link in links:
    link.sendall(b"POST /llm/v1/messages HTTP/1.1\r\nHost: sidecar\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{ \r\n")
time.sleep(0.5); open("opened", "w").close()
while not os.path.exists("asked"): time.sleep(0.02)
body = b'"model":"anthropic/claude-world","max_tokens":10,"messages":[{"role":"user","content":"hi"}]}'
for n, link in enumerate(links):
    link.settimeout(20)
    link.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)); print("open%d=%s" % (n, link.recv(12).decode()))
"#,
    );
    let left = site.beside("providers = [\"anthropic\"]\n").script(&format!(
        r#"/usr/bin/python3 {} & open=$!; await '[ -e opened ]'
        ask() {{ code $1 gate -H 'content-type: application/json' -H "$2" http://127.0.0.1:8080/llm/v1/messages \
            -d '{{"model":"anthropic/claude-world","max_tokens":10,"messages":[{{"role":"user","content":"hi"}}]}}'; }}
        ask sized 'X-A: b'; ask chunked 'Transfer-Encoding: chunked'; touch asked; wait $open; rm opened asked"#,
        open.display()
    ));
    assert_eq!((left.said("sized"), left.said("chunked")), ("200", "200"), "{}", left.ended);
    // The requests already open are answered as well.
    assert_eq!((left.said("open0"), left.said("open1")), ("HTTP/1.1 200", "HTTP/1.1 200"), "{}", left.ended);
    assert_eq!(site.requests().len(), 4, "{:?}", site.requests());
}
