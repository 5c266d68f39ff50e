//! `lockgate sidecar` alone. A signal lets requests in progress finish, unless they take too long or a second signal comes.

use lockgate_clients::{Need, Site};

/// `ends NAME GRACE SIGNAL…`: sends the signals to a new sidecar with a request in progress, which the upstream answers after eight
/// seconds.
const TOOLS: &str = r#"
python3 -c '
import http.server, time
class Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        open("asked", "w").close(); time.sleep(8)
        try: self.send_response(204); self.end_headers()
        except OSError: pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 9301), Slow)
open("listens", "w").close(); server.serve_forever()' 2>/dev/null & upstream=$!
await '[ -e listens ]'
ends() {
    name=$1; grace=$2; shift 2
    "$PRODUCT" sidecar --policy "$OUT/policy.toml" --forward 127.0.0.1:8091 --grace "$grace" --audit "$OUT/$name.jsonl" 2>"$OUT/$name.err" & ends=$!
    await 'grep -q "proxy at" "$OUT/$name.err"'
    curl -s --noproxy "" -o /dev/null -w "$name-status=%{http_code}\n" -x http://127.0.0.1:8091 http://127.0.0.1:9301/ & asks=$!
    await '[ -e asked ]'; rm asked; begun=$(date +%s%N)
    for signal in "$@"; do kill -s $signal $ends; sleep 0.2; done
    wait $ends; printf '%s\n' "$name-code=$?" "$name-ms=$(( ($(date +%s%N) - begun) / 1000000 ))"; wait $asks
    printf '%s\n' "$name-outcome=$(grep -o '"outcome":"[a-z]*"' "$OUT/$name.jsonl" | sed -n '2s/.*:"\([a-z]*\)"/\1/p')"
}
"#;

#[test]
fn a_sidecar_that_is_told_to_end_lets_what_is_under_way_finish() {
    let Some(site) = Site::for_test(&[Need::Program("curl"), Need::Program("python3")]) else { return };
    let beside = site.beside("[egress]\nallow = [{ url = \"http://127.0.0.1:9301/*\" }]\n");
    let left = beside.script(&format!(
        "{TOOLS} ends drained 20s TERM; ends late 1s TERM; ends at-once 0 TERM; ends twice 10s TERM TERM; ends hung 10s HUP; kill $upstream"
    ));
    for (name, status, outcome) in [
        ("drained", "204", "allowed"),
        ("late", "000", "failed"),
        ("at-once", "000", "failed"),
        ("twice", "000", "failed"),
        ("hung", "000", "failed"),
    ] {
        assert_eq!(left.said(&format!("{name}-code")), "0", "{name}: {}", left.ended);
        assert_eq!(left.said(&format!("{name}-status")), status, "{name}: {}", left.ended);
        assert_eq!(left.said(&format!("{name}-outcome")), outcome, "{name}: {}", left.ended);
        let took: u64 = left.said(&format!("{name}-ms")).parse().expect("a number");
        let (least, most) = match name {
            "drained" => (3000, 18_000),
            "late" => (900, 6000),
            _ => (0, 6000),
        };
        assert!((least..most).contains(&took), "{name}: {took} ms");
    }
}

#[test]
fn a_sidecar_whose_serving_process_is_killed_at_its_end_does_not_end_well() {
    let Some(site) = Site::for_test(&[]) else { return };
    let beside = site.beside("[egress]\nallow = [{ host = \"allowed.example\" }]\n");
    let left = beside.script(
        r#"killed() {
            name=$1; shift; "$PRODUCT" sidecar --policy "$OUT/policy.toml" --forward 127.0.0.1:8096 --grace 60s "$@" 2>"$OUT/$name.err" & ends=$!
            await 'grep -q "proxy at" "$OUT/$name.err"'
            serving=$(cat /proc/$ends/task/$ends/children); kill -s STOP $serving; kill $ends
            await 'grep -q "no more connections" "$OUT/$name.err"'
            kill -s KILL $serving; wait $ends; echo "$name=$?"; echo "$name-untold=$(grep -c "how the sidecar ended" "$OUT/$name.err")"
        }
        killed audited --audit "$OUT/killed.jsonl"; killed plain"#,
    );
    for (name, code, untold) in [("audited", "125", "1"), ("plain", "0", "0")] {
        assert_eq!(left.said(name), code, "{name}: {}", left.ended);
        assert_eq!(left.said(&format!("{name}-untold")), untold, "{name}: {}", left.ended);
    }
}

#[test]
fn whoever_looks_after_a_sidecar_hears_of_each_denial_once() {
    let Some(site) = Site::for_test(&[Need::Program("curl")]) else { return };
    let beside = site.beside("[egress]\nallow = [{ host = \"allowed.example\" }]\n");
    let left = beside.script(
        r#"for host in one.example one.example two.example; do via -o /dev/null "http://$host/"; done
        "$PRODUCT" sidecar --policy "$OUT/policy.toml" --forward 127.0.0.1:8092 --quiet 2>"$OUT/quiet.err" & quiet=$!
        await 'grep -q "proxy at" "$OUT/quiet.err"'
        curl -s -o /dev/null -x http://127.0.0.1:8092 http://one.example/; kill $quiet; wait $quiet
        echo "quiet=$(grep -c denied "$OUT/quiet.err")""#,
    );
    let words = left.words();
    for host in ["one", "two"] {
        let told = format!("denied http://{host}.example/ (host_not_allowed)");
        assert_eq!(words.matches(&told).count(), 1, "{words}");
    }
    assert!(words.contains("lockgate policy allow --policy "), "{words}");
    assert_eq!(left.said("quiet"), "0");
}

#[test]
fn a_provider_that_is_built_in_and_not_declared_is_one_for_the_sidecars_own_file() {
    let Some(site) = Site::for_test(&[Need::Program("curl")]) else { return };
    let beside = site.beside("providers = [\"anthropic\"]\n[egress]\ndefault = \"open-internet\"\n");
    let left = beside.script(
        r#"proxy https://api.openai.com/v1/models openai; echo
        curl -sS http://127.0.0.1:8080/llm/v1/chat/completions --json '{"model":"openrouter/x/y"}'; echo
        via -o /dev/null http://api.tavily.com/; echo "file=$OUT/policy.toml""#,
    );
    let words = left.words();
    for provider in ["openai", "openrouter", "tavily"] {
        let hint = format!("to allow it: add \"{provider}\" to `providers` in {}", left.said("file"));
        assert!(words.contains(&hint), "{hint}: {words} {}", left.ended);
    }
    // No run is begun here.
    assert!(!format!("{words}{}", left.ended.stdout).contains("lockgate run"), "{words} {}", left.ended);
}

#[test]
fn an_idle_connection_whose_tls_was_terminated_holds_up_no_end() {
    let Some(site) = Site::for_test(&[Need::Program("python3")]) else { return };
    let beside = site.beside("[egress]\nallow = [{ url = \"https://api.example.com/x\" }]\n");
    let left = beside.script(
        r#"bundle=$(tr '\0' '\n' < /proc/$sidecar/environ | sed -n 's/^SSL_CERT_FILE=//p')
        SSL_CERT_FILE=$bundle "$PRODUCT" sidecar --policy "$OUT/policy.toml" --forward 127.0.0.1:8094 --ca ca.pem --grace 8s 2>"$OUT/idle.err" & ends=$!
        await 'grep -q "proxy at" "$OUT/idle.err"'
        python3 -c '
import socket, ssl, time
plain = socket.create_connection(("127.0.0.1", 8094), 10)
plain.sendall(b"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n")
assert plain.recv(4096).startswith(b"HTTP/1.1 200"), "refused"
tls = ssl.create_default_context(cafile="ca.pem").wrap_socket(plain, server_hostname="api.example.com")
tls.sendall(b"GET /x HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
print("answer=" + tls.recv(4096).split(b"\r\n")[0].decode(), flush=True)
open("idle", "w").close(); time.sleep(20)' & asks=$!
        await '[ -e idle ]'; begun=$(date +%s%N); kill $ends; wait $ends
        printf '%s\n' "code=$?" "ms=$(( ($(date +%s%N) - begun) / 1000000 ))"; kill $asks"#,
    );
    assert_eq!(left.said("answer"), "HTTP/1.1 200 OK", "{}", left.ended);
    assert_eq!(left.said("code"), "0", "{}", left.ended);
    let took: u64 = left.said("ms").parse().expect("a number");
    assert!(took < 6000, "{took} ms");
}
