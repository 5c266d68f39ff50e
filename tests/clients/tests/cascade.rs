//! Proxies between the sidecar and the world: how one is chosen and addressed, and that an agent cannot name another. S0.6, S0.54, S1.19,
//! S1.29.

use lockgate_clients::{Canary, Left, Need, Site};

const NEEDS: &[Need] = &[Need::Program("curl"), Need::Program("python3")];

/// `CONNECT` at 3128 and SOCKS 5 at 1080, each with a line per connection in `proxies.log`: the target, and the user.
const PROXIES: &str = r#"
import base64, select, socket, threading
log = open("proxies.log", "a", buffering=1)
def carry(a, b):
    try:
        while True:
            ready, _, _ = select.select([a, b], [], [], 20)
            for one in ready:
                data = one.recv(65536)
                if not data: return
                (b if one is a else a).sendall(data)
            if not ready: return
    except OSError: pass
    finally: a.close(); b.close()
def connect(agent):
    head = b""
    while not head.endswith(b"\r\n\r\n"): head += agent.recv(1)
    lines = head.decode().split("\r\n")
    user = [base64.b64decode(l.split()[-1]).decode() for l in lines if l.lower().startswith("proxy-authorization")]
    log.write(f"connect {lines[0].split()[1]} {user[0] if user else '-'}\n")
    host, port = lines[0].split()[1].rsplit(":", 1)
    up = socket.create_connection((host, int(port)), 5)
    agent.sendall(b"HTTP/1.1 200 go on\r\n\r\n"); carry(agent, up)
def exactly(agent, n):
    data = b""
    while len(data) < n: data += agent.recv(n - len(data))
    return data
def socks(agent):
    _, methods = exactly(agent, 2); method = exactly(agent, methods)[0]; agent.sendall(bytes([5, method])); who = "-"
    if method == 2:
        user = exactly(agent, exactly(agent, 2)[1]); word = exactly(agent, exactly(agent, 1)[0])
        who = f"{user.decode()}:{word.decode()}"; agent.sendall(b"\x01\x00")
    _, _, _, kind = exactly(agent, 4); host = exactly(agent, exactly(agent, 1)[0]).decode() if kind == 3 else "?"
    port = int.from_bytes(exactly(agent, 2), "big"); log.write(f"socks {host}:{port} {who}\n")
    up = socket.create_connection((host, port), 5); agent.sendall(b"\x05\x00\x00\x01" + bytes(6)); carry(agent, up)
def serve(port, speak):
    server = socket.create_server(("127.0.0.1", port), backlog=64)
    while True: threading.Thread(target=speak, args=(server.accept()[0],), daemon=True).start()
threading.Thread(target=serve, args=(3128, connect), daemon=True).start()
threading.Thread(target=serve, args=(1080, socks), daemon=True).start()
open("proxies.ready", "w").close(); threading.Event().wait()
"#;

const POLICY: &str = r#"
proxy = [
  { id = "corp", url = "http://127.0.0.1:3128", credential = "corp" },
  { id = "socks", url = "socks5://127.0.0.1:1080", credential = "corp" },
  { id = "plain", url = "http://127.0.0.1:3128" },
]
[[egress.allow]]
host = "api.example.com"
[[egress.allow]]
host = "**.named.example"
[[provider]]
id = "one"
authorized_uris = ["https://protocols.example/*"]
inject = { header = "authorization", value = "Bearer {{access_token}}" }
"#;

/// Runs a script beside a sidecar and both proxies.
fn beside_proxies(site: &Site, chosen: &str, environment: &[(&str, &str)], script: &str) -> Left {
    let proxies = site.file("proxies.py", PROXIES);
    let mut beside = site.beside(&format!("{chosen}\n{POLICY}"));
    for (name, value) in environment {
        beside = beside.with(name, value);
    }
    beside.script(&format!(
        "rm -f proxies.*; : > proxies.log; /usr/bin/python3 {} & proxies=$!; await '[ -e proxies.ready ]'\n\
         {script}\nkill $proxies; sed 's/^/log=/' proxies.log",
        proxies.display()
    ))
}

fn site() -> Option<(Site, Canary)> {
    let site = Site::for_test(NEEDS)?;
    let password = Canary::draw();
    site.keep("one", "access_token", Canary::draw().text());
    site.keep("corp", "username", "alice");
    site.keep("corp", "password", "word");
    Some((site, password))
}

fn log(left: &Left) -> Vec<String> {
    left.lines().filter_map(|line| line.strip_prefix("log=")).map(str::to_owned).collect()
}

const ASK: &str = "code opened via https://protocols.example/echo; code spliced gate -k -x http://127.0.0.1:8081 https://api.example.com/";

#[test]
fn everything_goes_through_the_one_that_is_chosen() {
    let Some((site, _)) = site() else { return };
    for (chosen, spoken) in [("corp", "connect"), ("socks", "socks")] {
        let left = beside_proxies(&site, &format!("egress.proxy = \"{chosen}\""), &[], ASK);
        assert_eq!((left.said("opened"), left.said("spliced")), ("200", "200"), "{}", left.ended);
        let wanted =
            ["protocols.example:443", "api.example.com:443"].map(|to| format!("{spoken} {to} alice:word"));
        assert_eq!(log(&left), wanted, "{}", left.ended);
        let through = format!("proxy {chosen}");
        let records = left.audit();
        assert!(
            records.iter().filter(|record| record["address"] == through.as_str()).count() >= 2,
            "{records:?}"
        );
    }
}

#[test]
fn the_environments_is_the_last_that_is_heard() {
    let Some((site, _)) = site() else { return };
    let environment = [("PROXY_URL", "http://bob:p%40ss@127.0.0.1:3128"), ("NO_PROXY", "api.example.com")];
    let left = beside_proxies(&site, "", &environment, ASK);
    assert_eq!((left.said("opened"), left.said("spliced")), ("200", "200"), "{}", left.ended);
    assert_eq!(log(&left), ["connect protocols.example:443 bob:p@ss"], "{}", left.ended);
    // A policy's choice comes first, also the choice of no proxy.
    let left = beside_proxies(&site, "egress.proxy = \"direct\"", &environment, ASK);
    assert_eq!(left.said("opened"), "200", "{}", left.ended);
    assert_eq!(log(&left), [""; 0], "{}", left.ended);
    let left = beside_proxies(&site, "egress.proxy = \"plain\"", &environment, ASK);
    let plain = ["connect protocols.example:443 -", "connect api.example.com:443 -"];
    assert_eq!(log(&left)[..1], plain[..1], "{}", left.ended);
}

#[test]
fn no_platform_is_asked_for_the_environments_passwords() {
    // S0.54, S1.29: neither one named by the environment, which does not answer here, nor one yet to be named.
    let Some((site, password)) = site() else { return };
    let url = format!("http://bob:{}@127.0.0.1:3128", password.text());
    let list = format!(r#"[{{"id": "system", "url": "{url}"}}]"#);
    let named = [("RUN_TOKEN", "token"), ("PLATFORM_API_URL", "http://127.0.0.1:9100")];
    let configured = [("CONFIG_SECRET", "secret")];
    for platform in [&named[..], &configured[..]] {
        for (chosen, variable) in [
            ("", ("PROXY_URL", url.as_str())),
            ("egress.proxy = \"system\"", ("SYSTEM_PROXIES", list.as_str())),
        ] {
            let environment: Vec<_> = platform.iter().copied().chain([variable]).collect();
            let ask = "code spliced gate -k -x http://127.0.0.1:8081 https://api.example.com/";
            let left = beside_proxies(&site, chosen, &environment, ask);
            assert_eq!(left.said("spliced"), "200", "{} {:?}", left.ended, left.audit());
            let wanted = format!("connect api.example.com:443 bob:{}", password.text());
            assert_eq!(log(&left), [wanted], "{}", left.ended);
            password.is_not_in("the audit", format!("{:?}", left.audit()));
        }
    }
}

// S1.44
#[test]
fn a_platforms_are_chosen_by_their_names() {
    let Some((site, password)) = site() else { return };
    let list = format!(
        r#"[{{"id": "corp", "label": "The office", "url": "http://127.0.0.1:1"}},
            {{"id": "system", "url": "http://carol:{}@127.0.0.1:3128"}}]"#,
        password.text()
    );
    let environment = [("SYSTEM_PROXIES", list.as_str()), ("PROXY_URL", "socks5://127.0.0.1:1080")];
    let wanted = |who: &str| {
        ["protocols.example:443", "api.example.com:443"].map(|to| format!("connect {to} {who}")).to_vec()
    };
    let left = beside_proxies(&site, "egress.proxy = \"system\"", &environment, ASK);
    assert_eq!((left.said("opened"), left.said("spliced")), ("200", "200"), "{}", left.ended);
    assert_eq!(log(&left), wanted(&format!("carol:{}", password.text())), "{}", left.ended);
    password.is_not_in("the audit", format!("{:?}", left.audit()));
    // A file may give a name another meaning.
    let left = beside_proxies(&site, "egress.proxy = \"corp\"", &environment, ASK);
    assert_eq!(log(&left), wanted("alice:word"), "{}", left.ended);
    // A declared proxy is not used unless it is chosen.
    let left = beside_proxies(&site, "", &environment, ASK);
    assert!(log(&left).iter().all(|line| line.starts_with("socks ")), "{}", left.ended);
    assert_eq!(log(&left).len(), 2, "{}", left.ended);
}

#[test]
fn an_agent_names_a_declared_one_or_none() {
    // S1.19
    let Some((site, _)) = site() else { return };
    let left = beside_proxies(
        &site,
        "",
        &[],
        "code named proxy https://protocols.example/echo one -H 'X-Proxy: plain'\n\
         code address proxy https://protocols.example/echo one -H 'X-Proxy: http://127.0.0.1:3128'\n\
         code other proxy https://protocols.example/echo one -H 'X-Proxy: http://127.0.0.1:3129'",
    );
    assert_eq!(
        (left.said("named"), left.said("address"), left.said("other")),
        ("200", "200", "403"),
        "{}",
        left.ended
    );
    assert_eq!(log(&left).len(), 2, "{}", left.ended);
    assert_eq!(left.denials("uri_not_authorized"), 1, "{:?}", left.audit());
}

// S1.44, E14
#[test]
fn what_no_rule_names_has_an_address_here() {
    let Some((site, _)) = site() else { return };
    let ask = "code public gate -k -x http://127.0.0.1:8081 https://www.example.org/; \
               code named gate -k -x http://127.0.0.1:8081 https://nowhere.named.example/; \
               for to in nowhere.example nowhere.example:22; do \
                   code $to gate -x http://127.0.0.1:8081 http://$to/; \
                   printf 'tunnel-%s=%s\\n' $to $(gate -p -x http://127.0.0.1:8081 -o /dev/null -w '%{http_connect}' http://$to/); \
               done";
    let open = "egress.proxy = \"plain\"\negress.default = \"open-internet\"";
    let left = beside_proxies(&site, open, &[], ask);
    assert_eq!(left.said("public"), "200", "{}", left.ended);
    assert_eq!(
        log(&left),
        ["connect www.example.org:443 -", "connect nowhere.named.example:443 -"],
        "{}",
        left.ended
    );
    for to in ["nowhere.example", "nowhere.example:22"] {
        assert_eq!((left.said(to), left.said(&format!("tunnel-{to}"))), ("502", "502"), "{}", left.ended);
    }
    assert_eq!(left.denials("name_not_found"), 4, "{:?}", left.audit());
    let words = left.words();
    assert!(words.contains("policy.toml nowhere.example:22"), "{words}");
    let note = "note: `open-internet` goes through http://127.0.0.1:3128, which resolves names for itself";
    assert_eq!(words.matches(note).count(), 1, "{words}");
    assert!(!beside_proxies(&site, "egress.proxy = \"plain\"", &[], ":").words().contains(note));
}
