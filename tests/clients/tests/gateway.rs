//! The gateway as clients of the existing sidecar know it: its paths, statuses, texts and limits.
//! S0.26, S0.27, S0.29, S0.44, S0.45, S0.46, S0.51, S0.53, S1.10, S1.12, S1.13, S1.19, S1.22, S1.23, S1.24, S1.25, S1.37; C15.

use lockgate_clients::{Canary, Left, Need, Site};
use serde_json::Value;

const CURLS: &[Need] = &[Need::Program("curl"), Need::Program("python3")];
const POLICY: &str = r#"
[[provider]]
id = "one"
authorized_uris = ["https://protocols.example/*", "https://files.example.com/exact", "https://files.example.com/some/*", "http://private.example.com/*", "http://own.example.com:9200/*", "http://meta.example.com/*"]
inject = { header = "authorization", value = "Bearer {{access_token}}" }
placeholders = "anywhere"
[[provider]]
id = "@acme/two"
authorized_uris = ["https://api.example.com/*"]
inject = { header = "authorization", value = "Bearer {{access_token}}" }
placeholders = "anywhere"
[[provider]]
id = "odd"
authorized_uris = ["http://odd.example.com:9200/*"]
addresses = ["127.0.0.1"]
inject = { header = "authorization", value = "Bearer {{access_token}}" }
placeholders = "anywhere"
[[provider]]
id = "free"
authorized_uris = ["https://protocols.example/*"]
[[egress.allow]]
host = "www.example.org"
"#;

fn site() -> Option<(Site, Canary)> {
    let site = Site::for_test(CURLS)?;
    let canary = Canary::draw();
    for provider in ["one", "@acme/two", "odd", "free"] {
        let file = site.file("value", canary.text());
        let ended = site.lockgate(&["creds", "set", provider, "--from-file", &file.to_string_lossy()]);
        assert_eq!(ended.code, 0, "{ended}");
        std::fs::remove_file(file).expect("a file of this test's");
    }
    Some((site, canary))
}

/// Runs lines `ask KEY curl-arguments…`; each prints `KEY=STATUS BODY` on one line.
fn asked(site: &Site, lines: &str) -> Left {
    let left = site.beside(POLICY).script(&format!(
        "ask() {{ key=$1; shift; printf '%s=%s\\n' $key \"$(gate -w ' %{{http_code}} %{{content_type}}' \"$@\" | tr -d '\\n')\"; }}\n\
         at=http://127.0.0.1:8080; P='X-Provider: one'; T='X-Target: https://protocols.example/echo'\n{lines}"
    ));
    assert!(!left.ended.stdout.contains("lgph_"), "{}", left.ended);
    left
}

fn is(left: &Left, key: &str, status: &str, words: &str) {
    let said = left.said(key);
    assert!(
        said.contains(&format!(" {status} ")) && said.contains(words),
        "{key}, expected {status} {words}: {said}"
    );
}

#[test]
fn it_may_be_called_anything_but_two_things_at_once() {
    let Some(site) = Site::for_test(CURLS) else { return };
    let left = site.beside("").script(
        "n=0; for host in sidecar my_gate:8080 '[::1]:8080' %2Frun%2Fgate.sock 'a b' a,b 'u@a'; do n=$((n+1)); \
         code $n gate -H \"Host: $host\" http://127.0.0.1:8080/health; done",
    );
    let said: Vec<String> = (1..=7).map(|n| left.said(&n.to_string()).to_owned()).collect();
    assert_eq!(said, ["200", "200", "200", "200", "400", "400", "400"], "{}", left.ended);
}

#[test]
fn what_is_wrong_is_said_in_the_words_that_clients_know() {
    // S0.45, S0.46, S1.22, S1.37
    // The statuses and texts of "Literal behaviour of the existing sidecar".
    let Some((site, canary)) = site() else { return };
    let left = asked(
        &site,
        r#"ask noprovider $at/proxy -H "$T"
        ask notarget $at/proxy -H "$P"
        ask emptyprovider $at/proxy -H 'X-Provider;' -H "$T"
        ask emptytarget $at/proxy -H "$P" -H 'X-Target;'
        ask neither $at/proxy
        for bad in One _one one_two -one one- @one @/one @one/ @One/two one/two 'o ne' 'one,two' "$(printf 'a%.0s' $(seq 200))"; do
            n=$((${n:-0}+1)); ask format$n $at/proxy -H "X-Provider: $bad" -H "$T"
        done
        ask undeclared $at/proxy -H 'X-Provider: stranger' -H "$T"
        ask elsewhere $at/proxy -H "$P" -H 'X-Target: https://www.example.org/x'
        ask others $at/proxy -H "$P" -H 'X-Target: https://api.example.com/x'
        ask scheme $at/proxy -H "$P" -H 'X-Target: http://protocols.example/x'
        ask ftp $at/proxy -H "$P" -H 'X-Target: ftp://protocols.example/x'
        ask file $at/proxy -H "$P" -H 'X-Target: file:///etc/passwd'
        ask relative $at/proxy -H "$P" -H 'X-Target: /echo'
        ask private $at/proxy -H "$P" -H 'X-Target: http://private.example.com/x'
        ask meta $at/proxy -H "$P" -H 'X-Target: http://meta.example.com/x'
        ask exact $at/proxy -H "$P" -H 'X-Target: https://files.example.com/exact'
        ask beyond $at/proxy -H "$P" -H 'X-Target: https://files.example.com/exact/more'
        ask below $at/proxy -H "$P" -H 'X-Target: https://files.example.com/some/thing?a=b'
        ask above $at/proxy -H "$P" -H 'X-Target: https://files.example.com/some/../exact2'
        ask encoded $at/proxy -H "$P" -H 'X-Target: https://files.example.com/some/%2e%2e/exact2'
        ask scoped $at/proxy -H 'X-Provider: @acme/two' -H 'X-Target: https://api.example.com/x'
        ask llm $at/llm/v1/messages --data '{}'
        ask path $at/nowhere
        ask root $at/
        ask configure -X POST $at/configure -H 'Authorization: Bearer x' --data '{}'"#,
    );
    is(&left, "noprovider", "400", "Missing X-Provider header");
    is(&left, "emptyprovider", "400", "Missing X-Provider header");
    is(&left, "emptytarget", "400", "Missing X-Target header");
    is(&left, "neither", "400", "Missing X-Provider header");
    is(&left, "notarget", "400", "Missing X-Target header");
    for n in 1..=13 {
        is(&left, &format!("format{n}"), "400", "Invalid X-Provider format");
    }
    is(&left, "undeclared", "403", "provider_not_declared");
    for key in ["elsewhere", "others", "scheme", "beyond", "above", "encoded"] {
        is(&left, key, "403", "URL not authorized for provider \\\"one\\\"");
    }
    for key in ["ftp", "file", "relative"] {
        assert!([" 400 ", " 403 "].iter().any(|s| left.said(key).contains(s)), "{key}: {}", left.said(key));
    }
    // "URL targets a blocked network range": the answer names the guard.
    is(&left, "private", "403", "address_blocked");
    is(&left, "meta", "403", "address_blocked");
    for key in ["exact", "below", "scoped"] {
        is(&left, key, "200", "\"method\":\"GET\"");
    }
    is(&left, "llm", "503", "LLM proxy not configured");
    is(&left, "path", "404", "");
    is(&left, "root", "404", "");
    // C15: it has no configuration secret, so nobody can configure it.
    is(&left, "configure", "403", "Already configured");
    for line in left.lines().filter(|line| line.contains(" 400 ") || line.contains(" 403 ")) {
        assert!(line.contains("application/problem+json") && line.contains("\"error\":"), "{line}");
    }
    assert_eq!(site.requests().len(), 3, "{:?}", site.requests());
    canary.is_not_in("an answer", &left.ended.stdout);
}

#[test]
fn a_request_goes_and_comes_as_it_is() {
    // S0.51, S1.23: status, body and type are returned; headers of ours and hop-by-hop headers are not.
    let Some((site, canary)) = site() else { return };
    let left = asked(
        &site,
        r#"head -c 6000000 /dev/zero | tr '\0' 'x' > large
        for method in GET POST PUT PATCH DELETE OPTIONS; do ask $method -X $method $at/proxy -H "$P" -H "$T"; done
        ask head -I $at/proxy -H "$P" -H "$T"
        for code in 204 301 404 418 500 503; do ask status$code $at/proxy -H "$P" -H "X-Target: https://protocols.example/status/$code"; done
        ask type $at/proxy -H "$P" -H 'X-Target: https://protocols.example/mirror' -H 'Content-Type: text/x-own; charset=a' --data 'kept as it is'
        ask hops $at/proxy -H "$P" -H 'X-Target: https://protocols.example/hops' -H 'Connection: X-Private, keep-alive' -H 'X-Private: 1' \
            -H 'Keep-Alive: 5' -H 'Proxy-Connection: x' -H 'TE: trailers' -H 'Trailer: x' -H 'Proxy-Authorization: Basic x' \
            -H 'X-Substitute-Body: false' -H 'X-Max-Response-Size: 99' -H 'X-Kept: 1'
        ask proxied $at/proxy -H "$P" -H 'X-Target: https://protocols.example/proxied' -H 'X-Proxy: https://proxy.example.com'
        ask large $at/proxy -H "$P" -H 'X-Target: https://protocols.example/large' --data-binary @large
        ask toolarge $at/proxy -H 'X-Provider: free' -H 'X-Target: https://protocols.example/toolarge' -H 'X-Substitute-Body: true' --data-binary @large
        head -c 5242880 large > most; head -c 5242881 large > more
        ask most $at/proxy -H 'X-Provider: free' -H 'X-Target: https://protocols.example/most' -H 'X-Substitute-Body: true' --data-binary @most
        ask more $at/proxy -H 'X-Provider: free' -H 'X-Target: https://protocols.example/more' -H 'X-Substitute-Body: true' --data-binary @more
        ask yes $at/proxy -H 'X-Provider: free' -H 'X-Target: https://protocols.example/more' -H 'X-Substitute-Body: yes' --data-binary @more
        ask chunked $at/proxy -H 'X-Provider: free' -H 'X-Target: https://protocols.example/chunked' -H 'X-Substitute-Body: true' -H 'Transfer-Encoding: chunked' --data-binary @more
        rm large most more"#,
    );
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        is(&left, method, "200", &format!("\"method\":\"{method}\""));
    }
    is(&left, "head", "200", "");
    for code in ["204", "301", "404", "418", "500", "503"] {
        is(&left, &format!("status{code}"), code, if code == "204" { "" } else { "as you wish" });
    }
    is(&left, "type", "200", "kept as it is 200 text/x-own; charset=a");
    // S1.19: an agent chooses among the declared proxies; any other would be a way around the policy.
    is(&left, "proxied", "403", "X-Proxy");
    is(&left, "large", "200", "\"body_length\":6000000");
    is(&left, "most", "200", "\"body_length\":5242880");
    for key in ["toolarge", "more", "yes", "chunked"] {
        is(&left, key, "413", "Request body too large");
    }
    let requests = site.requests();
    assert!(
        requests.iter().all(|r| !["/toolarge", "/more", "/chunked", "/proxied"].contains(&r.text("path"))),
        "{requests:?}"
    );
    let hops = requests.iter().find(|record| record.text("path") == "/hops").expect("it arrived");
    for name in [
        "x-private",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "proxy-authorization",
        "x-proxy",
        "x-provider",
        "x-target",
        "x-substitute-body",
        "x-max-response-size",
        "upgrade",
    ] {
        assert_eq!(hops.header(name), None, "{hops:?}");
    }
    assert_eq!(hops.header("x-kept"), Some("1"), "{hops:?}");
    assert_eq!(hops.header("host"), Some("protocols.example"), "{hops:?}");
    canary.is_not_in("an answer", &left.ended.stdout);
}

#[test]
fn an_answer_is_cut_at_its_limit() {
    // S0.53, S1.24
    let Some((site, _)) = site() else { return };
    let left = site.beside(POLICY).script(
        r#"size() { key=$1; bytes=$2; shift 2; gate -D heads -o body -H 'X-Provider: one' -H "X-Target: https://protocols.example/big?bytes=$bytes" "$@" http://127.0.0.1:8080/proxy
        printf '%s=%s %s\n' $key $(wc -c < body) "$(tr -d '\r' < heads | grep -i '^x-truncated')"; }
        size below 49999; size at 50000; size above 50001
        size less 50000 -H 'X-Max-Response-Size: 100'
        size more 200000 -H 'X-Max-Response-Size: 200000'
        size ceiling 1000000 -H 'X-Max-Response-Size: 5000000'
        size beyond 1000001 -H 'X-Max-Response-Size: 5000000'
        size zero 50001 -H 'X-Max-Response-Size: 0'
        size negative 50001 -H 'X-Max-Response-Size: -5'
        size words 50001 -H 'X-Max-Response-Size: many'
        size unit 50001 -H 'X-Max-Response-Size: 100 octets'
        size huge 3000000000
        rm heads body"#,
    );
    for (key, expected) in [
        ("below", "49999 "),
        ("at", "50000 "),
        ("above", "50000 x-truncated: true"),
        ("less", "100 x-truncated: true"),
        ("more", "200000 "),
        ("ceiling", "1000000 "),
        ("beyond", "1000000 x-truncated: true"),
        ("zero", "50000 x-truncated: true"),
        ("negative", "50000 x-truncated: true"),
        ("words", "50000 x-truncated: true"),
        ("unit", "100 x-truncated: true"),
        ("huge", "50000 x-truncated: true"),
    ] {
        assert_eq!(left.said(key), expected, "{key}: {}", left.ended);
    }
}

/// The test's own upstream, which answers as no server should.
const ODD: &str = r#"import socket, threading, zlib
def gzip(data):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()
def answer(link):
    head = b""
    while b"\r\n\r\n" not in head:
        piece = link.recv(4096)
        if not piece: return
        head += piece
    path = head.split(b" ")[1]
    key = [l for l in head.split(b"\r\n") if l.lower().startswith(b"authorization")][0].split(b" ", 1)[1]
    own = lambda extra, body: b"HTTP/1.1 200 OK\r\n" + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body
    if path == b"/garbage": link.sendall(b"\0\1\2 this is no HTTP " + key + b"\r\n\r\n")
    if path == b"/half": link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + key)
    if path == b"/zstd": link.sendall(own(b"Content-Encoding: zstd\r\n", b"\x28\xb5\x2f\xfd" + key))
    if path == b"/twice": link.sendall(own(b"Content-Encoding: gzip, gzip\r\n", gzip(gzip(key))))
    if path == b"/lie": link.sendall(own(b"Content-Encoding: gzip\r\n", b"not gzip: " + key))
    if path == b"/transfer": link.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    if path == b"/lengths": link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!")
    if path == b"/switch": link.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + key)
    if path == b"/fold": link.sendall(b"HTTP/1.1 200 OK\r\nX-A: " + key[:10] + b"\r\n " + key[10:] + b"\r\nContent-Length: 0\r\n\r\n")
    if path == b"/reason": link.sendall(b"HTTP/1.1 400 no " + key + b"\r\nContent-Length: 0\r\n\r\n")
    if path == b"/name": link.sendall(own(b"X-" + key.split(b" ")[1] + b": a\r\n", b"see the name"))
    if path == b"/type": link.sendall(own(b"Content-Type: multipart/x; boundary=" + key.split(b" ")[1] + b"\r\n", b"see the type"))
    if path == b"/slow": threading.Event().wait(60)
    link.close()
server = socket.create_server(("127.0.0.1", 9200), backlog=64)
open("odd.ready", "w").close()
while True:
    link, _ = server.accept()
    threading.Thread(target=answer, args=(link,), daemon=True).start()
"#;

#[test]
fn an_upstream_that_answers_oddly_is_told_of_and_leaks_nothing() {
    // C10, C13, and 502 `Upstream request failed`: the sidecar itself answers for a response that cannot be relayed.
    let Some((site, canary)) = site() else { return };
    let script = site.file("odd.py", ODD);
    let paths = [
        "garbage", "half", "zstd", "twice", "lie", "transfer", "lengths", "switch", "fold", "reason", "name",
        "type", "close",
    ];
    let mut lines = format!("/usr/bin/python3 {} & odd=$!; await '[ -e odd.ready ]'\n", script.display());
    for path in paths {
        lines += &format!(
            "ask {path}gate $at/proxy -H 'X-Provider: odd' -H 'X-Target: http://odd.example.com:9200/{path}'\n"
        );
        lines += &format!("ask {path}via -x http://127.0.0.1:8081 http://odd.example.com:9200/{path}\n");
    }
    lines += "kill $odd; ask gone $at/proxy -H 'X-Provider: odd' -H 'X-Target: http://odd.example.com:9200/x'; rm odd.ready";
    let left = asked(&site, &lines);
    canary.is_not_in("an answer", &left.ended.stdout);
    canary.is_not_in("stderr", &left.ended.stderr);
    canary.is_not_in("the audit", format!("{:?}", left.audit()));
    is(&left, "gone", "502", "");
    is(&left, "typegate", "200", "see the type");
    is(&left, "reasongate", "400", "");
    for way in ["gate", "via"] {
        for path in ["garbage", "transfer", "lengths", "switch", "close"] {
            is(&left, &format!("{path}{way}"), "502", "");
        }
        // Strict: a response that cannot be searched is refused, and the record names the guard.
        for path in ["zstd", "twice"] {
            is(&left, &format!("{path}{way}"), "502", "response_not_scrubbed");
        }
    }
    assert_eq!(left.denials("response_not_scrubbed"), 4, "{:?}", left.audit());
}

#[test]
fn an_upstream_that_does_not_answer_is_given_up() {
    // S0.51
    // 30 s on `/proxy` (literal behaviour): an answer, not a cut connection.
    let Some((site, _)) = site() else { return };
    let left = asked(&site, "ask stall $at/proxy -H \"$P\" -H 'X-Target: https://protocols.example/stall'");
    assert!(left.said("stall").contains(" 502 ") && left.ended.took.as_secs() >= 29, "{}", left.ended);
    let failed = left.audit().into_iter().filter(|record| record["outcome"] == "failed").count();
    assert_eq!(failed, 1, "{:?}", left.audit());
}

#[test]
fn health_tells_whether_requests_can_be_recorded() {
    // S1.10
    // `/health`: 200 `{"status":"ok"}`, or 503 `{"status":"degraded", …}`; a request that cannot be recorded is not allowed.
    let Some((site, canary)) = site() else { return };
    let left = asked(
        &site,
        r#"ask ok $at/health
        ask posted -X POST $at/health
        (trap '' XFSZ; ulimit -f 8; exec "$PRODUCT" sidecar --policy "$OUT/policy.toml" --forward 127.0.0.1:7081 --gateway 127.0.0.1:7080 --audit "$OUT/small.jsonl") 2>small.err & small=$!
        await 'gate -s -o /dev/null http://127.0.0.1:7080/health'
        ask first http://127.0.0.1:7080/health
        for i in $(seq 20); do gate -o /dev/null http://127.0.0.1:7080/proxy -H "$P" -H 'X-Target: https://www.example.org/x'; done
        ask full http://127.0.0.1:7080/health
        ask denied http://127.0.0.1:7080/proxy -H "$P" -H "$T"
        kill $small; wait $small; echo "small=$? $(tr '\n' ' ' < small.err)"; rm small.err"#,
    );
    is(&left, "ok", "200", "{\"status\":\"ok\"} 200 application/json");
    is(&left, "posted", "404", "");
    is(&left, "first", "200", "{\"status\":\"ok\"}");
    is(&left, "full", "503", "\"status\":\"degraded\"");
    assert!(left.said("denied").contains("audit_unavailable"), "{}", left.ended);
    // The exit of the sidecar reports the missing records.
    let end = left.said("small");
    assert!(end.starts_with("125 ") && end.contains("of the audit"), "{end}");
    assert!(site.requests().is_empty(), "{:?}", site.requests());
    canary.is_not_in("the words", &left.ended.stderr);
}

#[test]
fn a_run_reaches_it_under_its_name() {
    // S0.15, S0.17, S0.22, S1.12, S1.13, S0.27: the run is given nothing that would let it be more than an agent.
    let Some((site, canary)) = site() else { return };
    let run = site.run().policy(POLICY);
    let ended = run.script(
        r#"env; echo "--"
        curl -sS "$SIDECAR_URL/health"; echo
        curl -sSf "$SIDECAR_URL/proxy" -H 'X-Provider: free' -H 'X-Target: https://protocols.example/echo' -H 'X-Key: {{access_token}}'; echo
        curl -sS -X POST "$SIDECAR_URL/configure" -H 'Authorization: Bearer x' --data '{"runToken":"x","platformApiUrl":"http://127.0.0.1:1"}'; echo
        curl -sSf "$SIDECAR_URL/run-history?limit=3"; echo
        for path in /internal/credentials/one /internal/credentials/one/refused /internal/run-history; do
            curl -sS -o /dev/null -w '%{http_code} ' "$SIDECAR_URL$path"; done; echo"#,
    );
    assert_eq!(ended.code, 0, "{ended}");
    canary.is_not_in("what was said", format!("{ended}"));
    let (environment, rest) = ended.stdout.split_once("--\n").expect("both");
    for name in ["RUN_TOKEN", "PLATFORM_API_URL", "CONFIG_SECRET", "CONNECTION_ENCRYPTION_KEY"] {
        assert!(!environment.contains(name), "{name}: {environment}");
    }
    assert!(environment.contains("SIDECAR_URL=http://sidecar:8080"), "{environment}");
    let lines: Vec<&str> = rest.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines[0], "{\"status\":\"ok\"}");
    assert!(lines[1].contains("\"x-key\":\"****"), "{}", lines[1]);
    assert!(lines[2].contains("Already configured"), "{}", lines[2]);
    let history: Value = serde_json::from_str(lines[3]).expect("JSON");
    // It is the first run: it has no earlier one, and is not told of itself.
    assert!(history["data"].as_array().is_some_and(Vec::is_empty), "{history}");
    assert_eq!(lines[4], "404 404 404 ");
    assert_eq!(site.requests()[0].header("x-key"), Some(canary.text()));
    // Also without a declared credential, and for two requests within a second.
    let ask = r#"for query in '' '?limit=1'; do curl -sSf "$SIDECAR_URL/run-history$query"; echo; done"#;
    for counts in [[1, 1], [2, 1]] {
        let ended = site.run().policy("").script(ask);
        assert_eq!(ended.code, 0, "{ended}");
        let told = ended.stdout.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let told: Vec<Value> = told.map(|history| history["data"].clone()).collect();
        let lengths: Vec<usize> = told.iter().filter_map(|runs| Some(runs.as_array()?.len())).collect();
        assert_eq!(lengths, counts, "{ended}");
        assert_eq!(told[1][0]["status"], "ended", "{ended}");
    }
}
