//! Proxies on the way out, in runs: one that is spoken to over TLS, and which of several a run or a request goes through. S0.54, S1.19.

use std::time::Duration;

use lockgate_clients::{Canary, Ended, Need, Site, product, run_to_end};

const NEEDS: &[Need] = &[Need::Program("curl"), Need::Program("python3"), Need::Program("openssl")];

/// `CONNECT` at each port given, over TLS where a certificate follows: `PORT NAME [PEM]`. A line per connection in `log`: the name, the
/// target and the user, or that there was no handshake. The certificate's key is in the same file.
const PROXIES: &str = r#"
import base64, select, socket, ssl, sys, threading
log = open("log", "a", buffering=1)
def carry(a, b):
    try:
        while True:
            ready = [a] if isinstance(a, ssl.SSLSocket) and a.pending() else select.select([a, b], [], [], 20)[0]
            for one in ready:
                data = one.recv(65536)
                if not data: return
                (b if one is a else a).sendall(data)
            if not ready: return
    except OSError: pass
    finally: a.close(); b.close()
def connect(agent, name, context):
    try:
        if context: agent = context.wrap_socket(agent, server_side=True)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            piece = agent.recv(1)
            if not piece: return log.write(f"{name} nothing\n")
            head += piece
    except OSError: return log.write(f"{name} no-handshake\n")
    lines = head.decode().split("\r\n")
    user = [base64.b64decode(l.split()[-1]).decode() for l in lines if l.lower().startswith("proxy-authorization")]
    log.write(f"{name} {lines[0].split()[1]} {user[0] if user else '-'}\n")
    host, port = lines[0].split()[1].rsplit(":", 1)
    up = socket.create_connection((host, int(port)), 5)
    agent.sendall(b"HTTP/1.1 200 go on\r\n\r\n"); carry(agent, up)
def serve(server, name, context):
    while True: threading.Thread(target=connect, args=(server.accept()[0], name, context), daemon=True).start()
for which in sys.argv[1:]:
    port, name, *pem = which.split()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if pem else None
    if pem: context.load_cert_chain(pem[0])
    server = socket.create_server(("127.0.0.1", int(port)), backlog=64)
    threading.Thread(target=serve, args=(server, name, context), daemon=True).start()
open("ready", "w").close(); threading.Event().wait()
"#;

/// Runs a script in the caller's own folder, where it finds `lockgate`, `proxies` to start some, and `said NAME` for what the log got.
fn caller(site: &Site, script: &str) -> Ended {
    let python = site.file("proxies.py", PROXIES);
    let start = format!(
        r#"lockgate() {{ "$PRODUCT" "$@"; }}
        proxies() {{ /usr/bin/python3 {} "$@" & proxies=$!; until [ -e ready ]; do kill -0 $proxies || exit 9; sleep 0.02; done; }}
        said() {{ sed "s/^/$1: /" log; : > log; }}
        : > log
        {script}
        kill $proxies"#,
        python.display()
    );
    let mut command = site.world().command("/bin/sh");
    command.args(["-uc", &start]).current_dir(site.outside()).env("WORK", site.workspace());
    command.env("PRODUCT", product().expect("`Site` asked first")).env("XDG_STATE_HOME", site.state());
    run_to_end(&mut command, Duration::from_secs(90))
}

#[test]
fn one_over_tls_is_verified_before_it_is_told_anything() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let password = Canary::draw();
    site.keep("corp", "username", "alice");
    site.keep("corp", "password", password.text());
    site.file(
        "policy.toml",
        "egress.proxy = \"secure\"\n\
         proxy = [{ id = \"secure\", url = \"https://127.0.0.1:3443\", credential = \"corp\" }]\n\
         [[egress.allow]]\nhost = \"www.example.org\"\n[[egress.allow]]\nurl = \"https://api.example.com/v1/*\"\n",
    );
    let ended = caller(
        &site,
        r#"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=The office" -keyout ca.key -out ca.pem 2>/dev/null
        key() { openssl req -newkey rsa:2048 -nodes -subj "/CN=$1" -keyout $1.key -out $1.csr 2>/dev/null
            echo "subjectAltName=$2" > $1.ext
            openssl x509 -req -days 2 -in $1.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile $1.ext 2>/dev/null > $1.pem
            cat $1.key >> $1.pem; }
        key own IP:127.0.0.1; key other DNS:elsewhere.example.org
        cat "$SSL_CERT_FILE" ca.pem > trusted
        ask() { lockgate run --workspace "$WORK" --policy policy.toml -- sh -c "for to in www.example.org/x api.example.com/v1/x; do
            curl -sS -o answer -w '$1=%{http_code} connect=%{http_connect}\n' https://\$to; cat answer; echo; rm -f answer; done"; said $1; }
        proxies "3443 secure own.pem"
        SSL_CERT_FILE=$PWD/trusted ask trusted
        ask untrusted
        kill $proxies; wait $proxies; rm ready
        proxies "3443 secure other.pem"
        SSL_CERT_FILE=$PWD/trusted ask misnamed"#,
    );
    assert_eq!(ended.code, 0, "{ended}");
    let lines = |start: &str| ended.stdout.lines().filter(|line| line.starts_with(start)).collect::<Vec<_>>();
    // The first is spliced and the second opened.
    assert_eq!(lines("trusted="), ["trusted=200 connect=200"; 2], "{ended}");
    let logged = ["www.example.org:443", "api.example.com:443"]
        .map(|to| format!("trusted: secure {to} alice:{}", password.text()));
    assert_eq!(lines("trusted: "), logged, "{ended}");
    for refused in ["untrusted", "misnamed"] {
        let said = [format!("{refused}=000 connect=502"), format!("{refused}=502 connect=200")];
        assert_eq!(lines(&format!("{refused}=")), said, "{ended}");
        let logged = lines(&format!("{refused}: "));
        assert!(!logged.is_empty() && logged.iter().all(|line| line.ends_with(" no-handshake")), "{ended}");
    }
    // Not past it either.
    assert_eq!(site.requests().len(), 2, "{:?}", site.requests());
    let audit = site.lockgate(&["audit", "show", "latest", "--json"]);
    password.is_not_in("the audit", &audit.stdout);
    let blamed = audit.stdout.matches("proxy secure cannot be spoken to over TLS").count();
    assert_eq!(blamed, 2, "{audit}");
}

#[test]
fn a_request_chooses_before_a_flag_and_a_flag_before_a_file() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    site.keep("one", "access_token", Canary::draw().text());
    let proxies: String = [("user", 3201), ("named", 3202), ("flag", 3203), ("asked", 3204)]
        .iter()
        .map(|(id, port)| format!("[[proxy]]\nid = \"{id}\"\nurl = \"http://127.0.0.1:{port}\"\n"))
        .collect();
    site.file(
        "config.toml",
        format!(
            "egress.proxy = \"user\"\negress.no_proxy = [\"api.example.com\"]\n{proxies}\
             [[egress.allow]]\nhost = \"www.example.org\"\n[[egress.allow]]\nhost = \"api.example.com\"\n\
             [[provider]]\nid = \"one\"\nauthorized_uris = [\"https://protocols.example/*\"]\n\
             inject = {{ header = \"authorization\", value = \"Bearer {{{{access_token}}}}\" }}\n"
        ),
    );
    site.file("named.toml", "egress.proxy = \"named\"\n");
    let ended = caller(
        &site,
        r#"mkdir -p config/lockgate; mv config.toml config/lockgate/config.toml; export XDG_CONFIG_HOME=$PWD/config
        inside='c() { curl -sSf -o /dev/null "$@" || echo "failed: $*"; }
            c https://www.example.org/; c https://api.example.com/
            c -H "X-Provider: one" -H "X-Target: https://protocols.example/" $SIDECAR_URL/proxy
            c -H "X-Provider: one" -H "X-Target: https://protocols.example/" -H "X-Proxy: asked" $SIDECAR_URL/proxy'
        ask() { key=$1; shift; lockgate run --workspace "$WORK" "$@" -- sh -c "$inside"; said $key; }
        proxies "3201 user" "3202 named" "3203 flag" "3204 asked"
        ask user
        ask named --policy named.toml
        ask flag --policy named.toml --proxy flag
        ask direct --policy named.toml --proxy direct"#,
    );
    assert!(ended.code == 0 && !ended.stdout.contains("failed"), "{ended}");
    let via = |layer: &str, by: &str, to: &str| format!("{layer}: {by} {to}:443 -");
    let mut wanted = Vec::new();
    for layer in ["user", "named", "flag"] {
        // `egress.no_proxy` is in force whoever chose: api.example.com is in no line.
        wanted.push(via(layer, layer, "www.example.org"));
        wanted.push(via(layer, layer, "protocols.example"));
        wanted.push(via(layer, "asked", "protocols.example"));
    }
    wanted.push(via("direct", "asked", "protocols.example"));
    assert_eq!(ended.stdout.lines().collect::<Vec<_>>(), wanted, "{ended}");
    // All of them arrived, four of each run.
    assert_eq!(site.requests().len(), 16, "{:?}", site.requests());
}
