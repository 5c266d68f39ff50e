//! A custom sandbox: its firewall redirects connections to `lockgate sidecar --transparent`, its resolver is `--dns`, and no program in it
//! knows of a proxy. S2.13, S2.14, S4.23, S4.24.

use lockgate_clients::{AWAIT, Canary, Need, Site};
use lockgate_world::Record;

const NEEDS: &[Need] =
    &[Need::Program("curl"), Need::Program("dig"), Need::Program("nft"), Need::Program("python3")];
const POLICY: &str = r#"
[[egress.allow]]
host = "api.example.com"
[[provider]]
id = "one"
authorized_uris = ["https://protocols.example/*"]
inject = { header = "authorization", value = "Bearer {{access_token}}" }
placeholders = "anywhere"
"#;

/// Begins a script: the second sidecar, its rules, and `dial KEY HOST PATH`, which queries its DNS and requests the path from the address.
const TOOLS: &str = r#"
"$PRODUCT" sidecar --policy "$OUT/policy.toml" --forward 127.0.0.1:0 --dns 127.0.0.1:5355 --transparent 127.0.0.1:8083 \
    --ca "$OUT/own.pem" --audit "$OUT/own.jsonl" 2>"$OUT/own.err" & own=$!
await 'grep -q "proxy at" "$OUT/own.err"'
cat "$OUT/own.pem" /etc/ssl/certs/ca-certificates.crt > "$OUT/trusted.pem"
nft add table inet own
nft 'add chain inet own out { type nat hook output priority -100; }'
nft add rule inet own out ip daddr 198.18.0.0/15 meta l4proto tcp redirect to :8083
nft add rule inet own out ip daddr 203.0.113.77 meta l4proto tcp redirect to :8083
address() { dig +short +tries=1 +time=5 -p 5355 @127.0.0.1 "$1" A | head -n 1; }
dial() { at=$(address $2); printf '%s=%s\n' $1 "$(curl -sS --max-time 20 --cacert "$OUT/trusted.pem" --resolve "$2:443:$at" "https://$2$3" -o /dev/null -w '%{http_code}' 2>&1)"; }
"#;

const PAGE: &str = include_str!("../../../docs/providers.md");
/// The user ids of the sidecar, which gets an account, and of the program beside it, which needs none.
const SIDECAR: &str = "61001";
const PROGRAM: &str = "61002";

/// Returns the commands that the page gives for such a sandbox, as a script.
fn commands_of_the_page() -> String {
    let (_, section) = PAGE.split_once("### Programs that know of no proxy\n").expect("the section");
    let block =
        section.split("```").nth(1).and_then(|block| block.strip_prefix("console\n")).expect("its commands");
    let lines = block.lines().map(|line| line.strip_prefix("$ ").unwrap_or(line));
    lines
        .collect::<Vec<_>>()
        .join("\n")
        .replace("SIDECAR", SIDECAR)
        .replace("lockgate sidecar", "\"$PRODUCT\" sidecar")
}

#[test]
fn what_the_page_commands_leaves_no_other_way() {
    let Some(site) = Site::for_test(&[NEEDS, &[Need::Root, Need::Program("setpriv")]].concat()) else {
        return;
    };
    let script = format!(
        r#"{AWAIT} chmod 711 "$OUTSIDE/.."; chown {SIDECAR} "$OUTSIDE"; cd "$OUTSIDE"
        # The shell is root's, as on a machine.
        mkdir -m 700 root; export HOME="$OUTSIDE/root"
        (cat /etc/passwd; echo "sidecar:x:{SIDECAR}:{SIDECAR}::/nonexistent:/bin/sh") >accounts; mount --bind accounts /etc/passwd
        printf '[[egress.allow]]\nhost = "api.example.com"\n' > lockgate.toml
        {} 2> own.err & own=$!
        trap 'kill $own; wait $own; nft delete table inet lockgate' EXIT
        complaints=own.err; await 'grep -q "proxy at" own.err'
        cat > program.sh <<'END'
        code() {{ key=$1; most=$2; shift 2; echo "$key=$(curl -gsS --max-time $most -o /dev/null -w '%{{http_code}}' "$@" 2>&1)"; }}
        at=$(dig +short +tries=1 +time=20 api.example.com A | head -n 1)
        code allowed 20 --resolve "api.example.com:80:$at" http://api.example.com/allowed
        code tcp4 20 http://93.184.216.34/leaked
        code tcp6 3 'http://[2606:2800:220:1::1]/leaked'
        for at in 93.184.216.34 2606:2800:220:1::1; do dig +tries=1 +time=1 -p 7777 @$at leaked.example.com >/dev/null; done
        dig +tries=1 +time=1 leaked.example.com >/dev/null
END
        setpriv --reuid {PROGRAM} --regid {PROGRAM} --clear-groups sh program.sh
        # The sidecar's own way stays open, also by IPv6.
        setpriv --reuid {SIDECAR} --regid {SIDECAR} --clear-groups curl -gsS --max-time 20 'http://[2606:2800:220:1::1]/own' -o /dev/null; echo "own=$?""#,
        commands_of_the_page()
    );
    let ended = site.shell().with("SCRIPT", script).run("exec unshare --mount sh -uc \"$SCRIPT\"");
    assert_eq!([ended.said("allowed"), ended.said("own")], ["200", "0"], "{ended}");
    assert!(ended.said("tcp4").ends_with("403") && !ended.said("tcp6").ends_with("200"), "{ended}");
    let leaked = |record: &Record| format!("{:?}", record.detail).contains("leaked");
    let leaks: Vec<_> = site.world().records().into_iter().filter(leaked).collect();
    assert!(leaks.is_empty(), "{leaks:?}");
}

#[test]
fn a_firewall_of_ones_own_leads_to_it() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let value = Canary::draw();
    site.keep("one", "access_token", value.text());
    let beside = site.beside(POLICY);
    let left = beside.script(&format!(
        r#"{TOOLS}
        grep -q "redirected connections at 127.0.0.1:8083" "$OUT/own.err"; echo "told=$?"
        echo "allowed=$(address api.example.com)"
        echo "denied=[$(address www.example.org)]"
        dial spliced api.example.com /
        dial bound protocols.example /echo
        echo "raw=$(curl -sS --max-time 5 http://203.0.113.77/ -o /dev/null -w '%{{http_code}}' 2>&1)"
        python3 -c 'import socket; socket.create_connection(("203.0.113.77", 80)).sendall(b"GET / HTTP/1.1\r\n")'
        await 'grep -q "\"target\":\"203.0.113.77:80\"" "$OUT/own.jsonl"'
        echo "begun=$(grep '"target":"203.0.113.77:80"' "$OUT/own.jsonl" | grep -c '"denied"')"
        nft delete table inet own; kill $own; wait $own
        echo "plane=$(grep -c '"plane":"transparent"' "$OUT/own.jsonl")""#
    ));
    assert_eq!(left.said("told"), "0", "{}", left.ended);
    assert!(left.said("allowed").starts_with("198.18."), "{}", left.ended);
    assert_eq!(left.said("denied"), "[]", "{}", left.ended);
    assert_eq!(left.said("spliced"), "200", "{}", left.ended);
    assert_eq!(left.said("bound"), "200", "{}", left.ended);
    // The sidecar itself answers for an address that no rule names.
    assert!(left.said("raw").ends_with("403"), "{}", left.ended);
    // A request that was begun there and never whole has a record as well.
    assert_eq!(left.said("begun"), "1", "{}", left.ended);
    assert_eq!(left.said("plane"), "4", "{}", left.ended);
    let sent = format!("Bearer {}", value.text());
    assert!(
        site.requests().iter().any(|r| r.header("authorization") == Some(&sent)),
        "{:?}",
        site.requests()
    );
}
