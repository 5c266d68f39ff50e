//! A program can be reached at the address it takes for its own, and no socket of its own intercepts connections that are led to the
//! sidecar. S3.5; E07, E10.

use lockgate_clients::{Need, Site};

const NEEDS: &[Need] = &[Need::Program("python3")];
/// Prints one line `attempt=result` for each attempt.
const ATTEMPTS: &str = r#"import socket
V4, V6 = "93.184.216.34", "2606:2800:220:1::1"

def made(family, kind, at, port, own=None):
    made = socket.socket(family, kind)
    made.settimeout(5)
    if own: made.bind(own)
    made.connect((at, port))
    return made

def answer(family, at, port, own=None):
    try:
        link = made(family, socket.SOCK_STREAM, at, port, own)
        link.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return link.recv(64).split(b"\r\n")[0].decode() or "closed"
    except OSError as error:
        return type(error).__name__

def say(what, how): print(f"{what}={how}")

say("datagram", made(socket.AF_INET, socket.SOCK_DGRAM, V4, 9).getsockname()[0])
say("datagram6", made(socket.AF_INET6, socket.SOCK_DGRAM, V6, 9).getsockname()[0])
say("stream", made(socket.AF_INET, socket.SOCK_STREAM, "www.example.org", 80).getsockname()[0])

own = socket.create_server((made(socket.AF_INET, socket.SOCK_DGRAM, V4, 9).getsockname()[0], 0))
found = socket.create_connection(own.getsockname(), 5)
own.accept()[0].sendall(b"found")
say("own", found.recv(5).decode())

def listening(name, server, family, at, port):
    server.settimeout(0.2)
    say(name, answer(family, at, port))
    try: say(name + "-reached", server.accept()[1])
    except OSError: say(name + "-reached", "no")

listening("taken", socket.create_server((V4, 8090)), socket.AF_INET, V4, 8090)
everywhere = socket.create_server(("::", 8443), family=socket.AF_INET6, dualstack_ipv6=True)
listening("everywhere", everywhere, socket.AF_INET, V4, 8443)
listening("everywhere6", everywhere, socket.AF_INET6, V6, 8443)

for name, family, at, own in (("itself", socket.AF_INET, V4, "0.0.0.0"), ("itself6", socket.AF_INET6, V6, "::")):
    say(name, answer(family, at, 50051, (own, 50051)))

# Where the sidecar listens is nobody's address.
ports = [int(line.split()[1].rsplit(":", 1)[1], 16) for line in open("/proc/net/tcp6") if " 0A " in line]
led_to = [port for port in ports if port not in (53, 8090, 8443)]
say("led-to", len(led_to))
for port in led_to:
    say("directly", answer(socket.AF_INET, "127.0.0.1", port))
"#;

#[test]
fn a_programs_own_address_is_its_own_and_no_other_is() {
    for site in Site::for_everyone(NEEDS) {
        let attempts = site.file("attempts.py", ATTEMPTS);
        let run = site.run().allow("www.example.org").mount(&attempts);
        let ended = run.script(&format!("python3 {}", attempts.display()));
        let expected = [
            ("datagram", "127.0.0.1"),
            ("datagram6", "::1"),
            ("stream", "127.0.0.1"),
            ("own", "found"),
            ("taken", "ConnectionResetError"),
            ("taken-reached", "no"),
            ("everywhere", "ConnectionResetError"),
            ("everywhere-reached", "no"),
            ("everywhere6", "ConnectionResetError"),
            ("everywhere6-reached", "no"),
            ("itself", "ConnectionResetError"),
            ("itself6", "ConnectionResetError"),
            ("led-to", "1"),
            ("directly", "ConnectionResetError"),
        ];
        let expected: String = expected.iter().map(|(what, how)| format!("{what}={how}\n")).collect();
        assert_eq!(ended.stdout, expected, "{ended}");
    }
}
