//! First lines that RFC 9112 does not allow and some servers take for requests: in a tunnel or a redirected connection to a host whose rule
//! names no paths they are read as requests, so that `Host` leads to no neighbour of the host. Other octets are carried. E10.

use lockgate_clients::{Ended, Need, Site};

const NEEDS: &[Need] = &[Need::Program("python3")];
/// The first and the last host have one address, as hosts of one server often do.
const POLICY: &str = r#"
[[egress.allow]]
host = "www.example.org"
[[egress.allow]]
host = "echo.example.com"
ports = [7777]
[[egress.deny]]
host = "git.example.org"
"#;
/// In the order of the script.
const LINES: [&str; 12] = [
    "version", "before", "behind", "method", "oldest", "bare", "post", "star", "rtsp", "ice", "scheme",
    "preface",
];

/// `lines.py forward|direct lines|control`: sends each line whole and, with its first part ahead, in two pieces, with another name in
/// `Host`, and prints the answers; `control` sends what must pass.
const SCRIPT: &str = r#"import socket, sys, time
def link(host, port):
    if sys.argv[1] == "direct": it = socket.create_connection((host, port), 5)
    else:
        it = socket.create_connection(("127.0.0.1", 8081), 5)
        it.sendall(b"CONNECT %s:%d HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % (host.encode(), port, host.encode(), port))
        came = b""
        while b"\r\n\r\n" not in came: came += it.recv(1)
        assert came.startswith(b"HTTP/1.1 200"), came
    it.settimeout(5)
    return it
def heard(it, length):
    try: return it.recv(length).decode("latin-1").strip() or "closed"
    except socket.timeout: return "nothing"
    except OSError: return "closed"
lines = {
    "version": b"GET / HTTP/1.2", "before": b" GET / HTTP/1.1", "behind": b"GET / HTTP/1.1 ",
    "method": b"FOO2 / HTTP/1.1", "oldest": b"GET http://git.example.org/x", "bare": b"GET /",
    "post": b"POST /x", "star": b"M-SEARCH *", "rtsp": b"POST /x RTSP/1.1", "ice": b"SOURCE /x ICE/1.0", "scheme": b"POST ws://git.example.org/x",
    "preface": b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nGET /x HTTP/1.1",
}
if sys.argv[2] == "lines":
    for key, line in lines.items():
        for way, cut in ("whole", 0), ("cut", 5):
            it = link("www.example.org", 80)
            if cut: it.sendall(line[:cut]); time.sleep(0.2)
            it.sendall(line[cut:] + b"\r\nHost: git.example.org\r\nConnection: close\r\n\r\n")
            print("%s-%s=%s" % (key, way, heard(it, 12)))
            it.close()
else:
    it = link("www.example.org", 80)
    it.sendall(b"GET /proper HTTP/1.1\r\nHost: www.example.org\r\nConnection: close\r\n\r\n")
    print("proper=" + heard(it, 12))
    for key, text in ("ping", b"PING\r\n"), ("redis", b"GET key\r\n"), ("resp", b"*1\r\n$4\r\nPING\r\n"), ("irc", b"USER me 0 * :me\r\n"):
        it = link("echo.example.com", 7777)
        it.sendall(text)
        print("%s=%s" % (key, heard(it, 64).replace("\r\n", "+")))
    it = link("echo.example.com", 7777)
    it.sendall(b"no line")
    it.shutdown(socket.SHUT_WR)
    print("ended=" + heard(it, 64))
"#;

/// Checks that each line was answered or, before a preface, the connection closed, and that no server received anything of it.
fn none_was_heard(site: &Site, ended: &Ended) {
    for key in LINES.iter().flat_map(|line| ["whole", "cut"].map(|way| format!("{line}-{way}"))) {
        let ends: &[&str] =
            if key.starts_with("preface") { &["closed"] } else { &["HTTP/1.1 400", "HTTP/1.1 403"] };
        assert!(ends.contains(&ended.said(&key)), "{key}: {ended}");
    }
    let heard: Vec<_> =
        site.visits().into_iter().filter(|it| !["connect", "closed"].contains(&it.event.as_str())).collect();
    assert!(heard.is_empty() && site.world().received_by("web") == 0, "{heard:?}");
}

/// Checks that a proper request and a message that is no request passed.
fn the_rest_went_through(site: &Site, ended: &Ended) {
    assert_eq!(ended.said("proper"), "HTTP/1.1 200", "{ended}");
    for (key, text) in [
        ("ping", "PING"),
        ("redis", "GET key"),
        ("resp", "*1+$4+PING"),
        ("irc", "USER me 0 * :me"),
        ("ended", "no line"), // all of it comes, and so does the end
    ] {
        assert_eq!(ended.said(key), text, "{ended}");
    }
    let requests = site.requests();
    assert!(requests.len() == 1 && requests[0].text("path") == "/proper", "{requests:?}");
}

#[test]
fn in_a_tunnel_they_lead_to_no_neighbour() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let script = site.file("lines.py", SCRIPT);
    let say = |what: &str| {
        site.beside(POLICY).script(&format!("/usr/bin/python3 {} forward {what}", script.display())).ended
    };
    none_was_heard(&site, &say("lines"));
    the_rest_went_through(&site, &say("control"));
}

#[test]
fn nor_where_a_connection_is_redirected() {
    for site in Site::for_everyone(NEEDS) {
        let script = site.file("lines.py", SCRIPT);
        let run = site.run().policy(POLICY).bare().mount(&script);
        let say = |what: &str| {
            let ended = run.script(&format!("/usr/bin/python3 {} direct {what}", script.display()));
            assert_eq!(ended.code, 0, "{ended}");
            ended
        };
        none_was_heard(&site, &say("lines"));
        the_rest_went_through(&site, &say("control"));
    }
}
