//! A credential is used only where it is bound: not at another host, not at another address under the host's name, not past the inspection,
//! not in another run. S0.29, S0.45, S0.46, S1.22, S1.37; C01, C02, C03, C14, C17, C18, C19, C22, E10.

use std::time::Duration;

use lockgate_clients::{AWAIT, Canary, Left, Need, Site, run_to_end};
use lockgate_world::Record;

const CURLS: &[Need] = &[Need::Program("curl"), Need::Program("openssl"), Need::Program("python3")];
/// Two hosts with a credential each, and one without a credential.
const POLICY: &str = r#"
[[provider]]
id = "one"
authorized_uris = ["https://protocols.example/*", "http://protocols.example/*"]
env = "ONE_TOKEN"
inject = { header = "authorization", value = "Bearer {{access_token}}" }
placeholders = "anywhere"
[[provider]]
id = "two"
authorized_uris = ["https://api.example.com/v1/*", "http://api.example.com/v1/*"]
env = "TWO_TOKEN"
inject = { header = "x-api-key", value = "{{access_token}}" }
placeholders = "anywhere"
[[egress.allow]]
host = "www.example.org"
"#;

fn site() -> Option<(Site, [Canary; 2])> {
    let site = Site::for_test(CURLS)?;
    Some(filled(site))
}

fn filled(site: Site) -> (Site, [Canary; 2]) {
    let canaries = [Canary::draw(), Canary::draw()];
    site.keep("one", "access_token", canaries[0].text());
    site.keep("two", "access_token", canaries[1].text());
    (site, canaries)
}

/// Checks that servers saw neither a credential nor a placeholder.
fn nobody_saw(site: &Site, canaries: &[Canary; 2]) {
    let seen = format!("{:?}", site.visits());
    canaries.iter().for_each(|canary| canary.is_not_in("a visit", &seen));
    assert!(!seen.contains("lgph_"), "{seen}");
}

fn all_refused(left: &Left, keys: &[&str]) {
    for key in keys {
        let said = left.said(key);
        assert!(["400", "403", "000"].contains(&said), "{key} was answered {said}: {}", left.ended);
    }
}

#[test]
fn one_goes_to_its_own_host_alone() {
    // C01: on every plane, over both versions.
    let Some((site, canaries)) = site() else { return };
    let left = site.beside(POLICY).script(
        r#"for version in --http1.1 --http2; do v=${version#--http}
        code other$v via $version -H "X-Api-Key: $ONE_TOKEN" https://api.example.com/v1/x
        code header$v via $version -H "X-Any: $TWO_TOKEN" https://protocols.example/x
        code path$v via $version "https://protocols.example/$TWO_TOKEN"
        code basic$v via $version -u "a:$TWO_TOKEN" https://protocols.example/x
        code both$v via $version -H "X-Any: $TWO_TOKEN" -H "X-Other: $ONE_TOKEN" https://protocols.example/x
        done
        code clear via -H "X-Any: $ONE_TOKEN" http://www.example.org/x
        code outside via -H "X-Api-Key: $TWO_TOKEN" https://api.example.com/v2/x
        code gate proxy https://api.example.com/v1/x one
        code gateheader proxy https://api.example.com/v1/x two -H "X-Any: $ONE_TOKEN"
        code stranger proxy https://protocols.example/x three
        code absolute gate -x http://127.0.0.1:8080 -H "X-Any: $TWO_TOKEN" http://protocols.example/x"#,
    );
    let keys: Vec<String> = ["other", "header", "path", "basic", "both"]
        .iter()
        .flat_map(|key| [format!("{key}1.1"), format!("{key}2")])
        .chain(["clear", "outside", "gate", "gateheader", "stranger", "absolute"].map(str::to_owned))
        .collect();
    all_refused(&left, &keys.iter().map(String::as_str).collect::<Vec<_>>());
    nobody_saw(&site, &canaries);
    assert!(site.requests().is_empty(), "{:?}", site.requests());
    assert!(left.denials("credential_endpoint_mismatch") >= 10, "{:?}", left.audit());
    assert_eq!(left.denials("provider_not_declared"), 1, "{:?}", left.audit());
    assert!(left.denials("uri_not_authorized") >= 1, "{:?}", left.audit());
    // The control: the same places, each with its own credential.
    let left = site.beside(POLICY).script(
        r#"code one via -H "Authorization: Bearer $ONE_TOKEN" https://protocols.example/x
        code two via https://api.example.com/v1/x
        code gate proxy https://api.example.com/v1/x two"#,
    );
    for key in ["one", "two", "gate"] {
        assert_eq!(left.said(key), "200", "{}", left.ended);
    }
    let with = |name: &str, canary: &Canary| {
        let holds = |value: &str| value.strip_prefix("Bearer ").unwrap_or(value) == canary.text();
        site.requests().iter().filter(|record| record.header(name).is_some_and(holds)).count()
    };
    assert_eq!((with("authorization", &canaries[0]), with("x-api-key", &canaries[1])), (1, 2));
}

/// Two providers that share a host, the wide one first.
const SHARED: &str = r#"
[[provider]]
id = "one"
authorized_uris = ["https://protocols.example/*"]
env = "ONE_TOKEN"
inject = { header = "authorization", value = "Bearer {{access_token}}" }
[[provider]]
id = "two"
authorized_uris = ["https://protocols.example/two/*"]
env = "TWO_TOKEN"
inject = { header = "x-api-key", value = "{{access_token}}" }
"#;

#[test]
fn where_two_are_good_the_one_is_used_that_is_named() {
    // S0.46: on every plane that shows requests, over both versions.
    let Some((site, canaries)) = site() else { return };
    for version in ["--http1.1", "--http2"] {
        let before = site.requests().len();
        let left = site.beside(SHARED).script(&format!(
            r#"v() {{ key=$1; shift; code $key via {version} "$@"; }}
            at=https://protocols.example
            v one -H "Authorization: Bearer $ONE_TOKEN" $at/two/one
            v two -H "X-Api-Key: $TWO_TOKEN" $at/two/two
            v basic -u "me:$ONE_TOKEN" $at/two/basic
            v narrow $at/two/narrow
            v wide $at/wide
            v both -H "Authorization: Bearer $ONE_TOKEN" -H "X-Api-Key: $TWO_TOKEN" $at/two/both
            v outside -H "X-Api-Key: $TWO_TOKEN" $at/outside
            v own -H "Authorization: Bearer $ONE_TOKEN" -H "X-Api-Key: own" $at/two/own
            code gateone proxy $at/two/gateone one
            code gatetwo proxy $at/two/gatetwo two"#
        ));
        all_refused(&left, &["both", "outside", "own"]);
        let keys = |name: &str| {
            let requests = &site.requests()[before..];
            let found = requests.iter().find(|record| record.text("path").ends_with(&format!("/{name}")));
            let found = found.unwrap_or_else(|| panic!("{name} is not there: {}", left.ended));
            ["authorization", "x-api-key"].map(|field| found.header(field).map(str::to_owned))
        };
        let [one, two] = [format!("Bearer {}", canaries[0].text()), canaries[1].text().to_owned()];
        for name in ["one", "wide", "gateone"] {
            assert_eq!(keys(name), [Some(one.clone()), None], "{name}");
        }
        for name in ["two", "narrow", "gatetwo"] {
            assert_eq!(keys(name), [None, Some(two.clone())], "{name}");
        }
        assert!(canaries[0].found_in(keys("basic")[0].clone().unwrap_or_default()).is_some());
        assert_eq!(site.requests().len() - before, 7, "{}", left.ended);
        let reasons = format!("{:?}", left.audit());
        assert!(reasons.contains("placeholders of `one` and of `two`"), "{reasons}");
    }
}

#[test]
fn the_placeholder_as_ordinary_text_bricks_nothing() {
    // C19: a chat history is forwarded; where it must not be, the answer says why.
    let Some((site, canaries)) = site() else { return };
    let run = site.run().policy(POLICY);
    let ended = run.script(
        r#"curl -sSf -o /dev/null --data "my token is $ONE_TOKEN, remember it" http://www.example.org/chat
        curl -sSf -o /dev/null --data "my token is $ONE_TOKEN" https://www.example.org/chat
        curl -sSf -o /dev/null --data "the other is $TWO_TOKEN" https://protocols.example/chat
        curl -sS -H "X-Note: $ONE_TOKEN" http://www.example.org/header
        curl -sSf -o /dev/null https://protocols.example/after"#,
    );
    assert_eq!(ended.code, 0, "{ended}");
    assert!(ended.stdout.contains("placeholder of `one`") && ended.stdout.contains("hint"), "{ended}");
    let paths: Vec<String> = site.requests().iter().map(|r| r.text("path").to_owned()).collect();
    assert_eq!(paths, ["/chat", "/chat", "/chat", "/after"], "{ended}");
    let bodies =
        format!("{:?}", site.requests().iter().map(|r| r.text("body").to_owned()).collect::<Vec<_>>());
    canaries.iter().for_each(|canary| canary.is_not_in("a body", &bodies));
    assert_eq!(bodies.matches("lgph_").count(), 3, "{bodies}");
}

#[test]
fn another_address_under_its_name_gets_nothing() {
    // C02, C03, E10: in a run, where the agent dials any address.
    for site in Site::for_everyone(CURLS) {
        let (site, canaries) = filled(site);
        let run = site.run().policy(POLICY).bare();
        let ended = run.script(&format!(
            "{AWAIT}{}",
            r#"c="curl -sSk --max-time 10 -o /dev/null -w %{http_code}"
            out() { key=$1; shift; printf '%s=%s\n' "$key" "$($c "$@" || true)"; }
            /usr/bin/python3 -c '
import http.server, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        open("own", "a").write(str(self.headers)); self.send_response(200); self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", 8099), H)
open("listens", "w").close(); server.serve_forever()' & server=$!
            await '[ -e listens ]'
            out own --connect-to protocols.example:80:127.0.0.1:8099 http://protocols.example/own
            out raw -H 'Host: protocols.example' http://93.184.216.34/raw
            out rawtls --resolve protocols.example:443:93.184.216.34 https://protocols.example/rawtls
            out lan --resolve protocols.example:80:192.168.77.10 http://protocols.example/lan
            out forged --connect-to www.example.org:443:protocols.example:443 https://www.example.org/forged
            out other --connect-to protocols.example:443:api.example.com:443 https://protocols.example/other
            out splice --connect-to protocols.example:443:www.example.org:443 https://protocols.example/splice
            out host -H 'Host: www.example.org' https://protocols.example/host
            out swapped -H 'Host: api.example.com' https://protocols.example/v1/swapped
            out clear -H 'Host: protocols.example' http://www.example.org/clear
            kill $server"#
        ));
        assert_eq!(ended.code, 0, "{ended}");
        assert!(ended.stdout.contains("own=200"), "{ended}");
        let own = std::fs::read_to_string(site.workspace().join("own")).unwrap_or_default();
        assert!(own.contains("protocols.example") && !own.to_lowercase().contains("authorization"), "{own}");
        for key in ["raw", "rawtls", "lan", "forged", "other", "splice", "host", "swapped", "clear"] {
            let refused =
                ["000", "400", "403"].iter().any(|code| ended.stdout.contains(&format!("{key}={code}")));
            assert!(refused, "{key}: {ended}");
        }
        nobody_saw(&site, &canaries);
        assert!(site.requests().is_empty(), "{:?}", site.requests());
    }
}

#[test]
fn a_tunnel_to_another_name_or_address_gets_nothing() {
    // C02, C03, E10, E18
    let Some((site, canaries)) = site() else { return };
    let left = site.beside(POLICY).script(
        r#"code sni via -k --connect-to protocols.example:443:api.example.com:443 https://protocols.example/v1/x
        code spliced via -k --connect-to protocols.example:443:www.example.org:443 https://protocols.example/x
        code unspliced via -k --connect-to www.example.org:443:protocols.example:443 https://www.example.org/x
        code address via -k --connect-to protocols.example:443:93.184.216.34:443 https://protocols.example/x
        code authority2 via --http2 -H 'Host: api.example.com' https://protocols.example/v1/x
        code authority1 via --http1.1 -H 'Host: api.example.com' https://protocols.example/v1/x
        code port1 via -H 'Host: protocols.example:8443' https://protocols.example/x
        code absolute via -H 'Host: www.example.org' http://protocols.example/x
        code zero proxy 'https://protocols.example:0443/x' one
        code plus proxy 'https://protocols.example:+443/x' one
        code user proxy 'https://protocols.example@evil.test/x' one
        code ip proxy 'https://93.184.216.34/x' one
        code case proxy 'https://93.184.216.34.protocols.example/x' one"#,
    );
    let keys = [
        "sni",
        "spliced",
        "unspliced",
        "address",
        "authority2",
        "authority1",
        "port1",
        "absolute",
        "zero",
        "plus",
        "user",
        "ip",
        "case",
    ];
    all_refused(&left, &keys);
    nobody_saw(&site, &canaries);
    assert!(site.requests().is_empty(), "{:?}", site.requests());
}

/// Other protocols than HTTP/1.1, with and without a proxy: over TCP, in TLS, and HTTP/2 in the clear by prior knowledge and by upgrade.
const OTHERS: &str = r#"x="${HTTPS_PROXY:+-proxy 127.0.0.1:8081}"; x=$(printf %s "$x" | sed "s/127.0.0.1:8081/$(printf %s "${HTTPS_PROXY:-}" | sed 's,^http://,,' | tr -d /)/")
for port in 443 80; do
    { printf 'SSH-2.0-OpenSSH_9\r\n'; sleep 1; } | timeout 5 curl -sS --max-time 4 -p telnet://protocols.example:$port || true
    { printf '\0\0\0\010\004\322\026\057'; sleep 1; } | timeout 5 curl -sS --max-time 4 -p telnet://protocols.example:$port || true
done
printf 'octets %s of no protocol\r\n\r\n' "$ONE_TOKEN" | timeout 10 openssl s_client $x -quiet -connect protocols.example:443 -servername protocols.example || true
curl -sS --http2-prior-knowledge --max-time 5 -o /dev/null http://protocols.example/prior || true
curl -sS --http2 --max-time 5 -o /dev/null http://protocols.example/upgrade || true"#;
/// What a server sees of them, in lower case.
const FOREIGN: [&str; 5] = ["ssh-2.0", "of no protocol", "pri * http/2.0", "http2-settings", "upgrade: h2c"];

#[test]
fn no_other_protocol_goes_past_the_inspection() {
    // C22: other protocols than HTTP, HTTP/2 in the clear by prior knowledge and by upgrade, an opaque tunnel; over TLS and in the clear.
    let Some((site, canaries)) = site() else { return };
    let octets = |visits: &[Record]| -> Vec<String> {
        let closed = visits.iter().filter(|record| record.event == "closed");
        closed.map(|record| record.text("raw").to_lowercase()).collect()
    };
    // The control: a client outside brings all of them to the host.
    let mut outside = site.world().command("/bin/sh");
    outside.args(["-euc", &format!("ONE_TOKEN=lgph_outside\n{OTHERS}")]).current_dir(site.workspace());
    let ended = run_to_end(&mut outside, Duration::from_secs(60));
    assert_eq!(ended.code, 0, "{ended}");
    let outside = site.visits();
    for other in FOREIGN {
        assert!(octets(&outside).iter().any(|raw| raw.contains(other)), "{other}: {outside:?} {ended}");
    }
    let run = site.run().policy(POLICY);
    for run in [run.clone(), run.bare()] {
        let before = site.visits().len();
        let ended = run.script(OTHERS);
        assert_eq!(ended.code, 0, "{ended}");
        assert!(ended.stderr.contains("only requests of HTTP may go there"), "{ended}");
        let seen = &site.visits()[before..];
        for raw in octets(seen) {
            assert!(!FOREIGN.iter().any(|other| raw.contains(other)), "{raw}");
        }
        // What is HTTP arrived, without its wish for another protocol.
        let arrived: Vec<&Record> = seen.iter().filter(|record| record.event == "request").collect();
        assert!(arrived.iter().any(|record| record.text("path") == "/upgrade"), "{seen:?} {ended}");
        assert!(arrived.iter().all(|record| record.text("line").ends_with(" HTTP/1.1")), "{seen:?}");
        assert!(!format!("{seen:?}").contains("lgph_"), "{seen:?}");
        canaries[1].is_not_in("a visit", format!("{seen:?}"));
    }
}

#[test]
fn no_run_can_use_what_another_was_given() {
    // C17, C14: two runs at once with the same provider each have a placeholder of their own.
    for site in Site::for_everyone(CURLS) {
        let (site, canaries) = filled(site);
        let policy = site.file("both.toml", POLICY);
        let script = r#"
        "$PRODUCT" run --policy "$POLICY" -- sh -c 'printf %s "$ONE_TOKEN" > first; until [ -e done ]; do sleep 0.05; done; curl -sSf -o /dev/null https://protocols.example/first' & first=$!
        await '[ -s first ]'
        "$PRODUCT" run --policy "$POLICY" -- sh -c '[ "$ONE_TOKEN" != "$(cat first)" ] || exit 5
            curl -sS -o stolen -w "stolen=%{http_code}\n" -H "X-Key: $(cat first)" https://protocols.example/stolen
            curl -sSf -o /dev/null https://protocols.example/second'; echo "second=$?"
        touch done; wait $first; echo "first=$?""#;
        let ended = site.shell().with("POLICY", policy).run(script);
        ended.says("stolen=400");
        ended.says("second=0");
        ended.says("first=0");
        let paths: Vec<String> = site.requests().iter().map(|r| r.text("path").to_owned()).collect();
        assert_eq!(paths, ["/second", "/first"], "{ended}");
        canaries[0].is_not_in("what was said", format!("{ended}"));
        // C21: they share no connection.
        let peers: Vec<String> = site.requests().iter().map(|r| r.peer.clone()).collect();
        assert_ne!(peers[0], peers[1]);
    }
}

#[test]
fn two_rules_for_one_host_never_cross() {
    // C17
    let Some((site, canaries)) = site() else { return };
    let policy = r#"
    [[provider]]
    id = "one"
    authorized_uris = ["https://protocols.example/a/*"]
    env = "ONE_TOKEN"
    inject = { header = "authorization", value = "Bearer {{access_token}}" }
    placeholders = "anywhere"
    [[provider]]
    id = "two"
    authorized_uris = ["https://protocols.example/*"]
    env = "TWO_TOKEN"
    inject = { header = "authorization", value = "Bearer {{access_token}}" }
    placeholders = "anywhere""#;
    let left = site.beside(policy).script(
        r#"code a via https://protocols.example/a/x https://protocols.example/b/x
        code crossed via -H "X-Key: $ONE_TOKEN" https://protocols.example/b/y
        pids=
        for i in 1 2 3 4 5 6; do for x in a b; do via -f -o /dev/null https://protocols.example/$x/$i & pids="$pids $!"; done; done
        code gatea proxy https://protocols.example/a/z one
        code gateb proxy https://protocols.example/b/z two
        code gatec proxy https://protocols.example/b/z one
        wait $pids; echo all=$?"#,
    );
    all_refused(&left, &["crossed", "gatec"]);
    assert_eq!(left.said("all"), "0", "{}", left.ended);
    assert_eq!(left.said("gatea"), "200", "{}", left.ended);
    assert_eq!(left.said("gateb"), "200", "{}", left.ended);
    let requests = site.requests();
    assert_eq!(requests.len(), 16, "{requests:?}");
    for record in requests {
        let own = &canaries[usize::from(!record.text("path").starts_with("/a/"))];
        assert_eq!(
            record.header("authorization"),
            Some(format!("Bearer {}", own.text()).as_str()),
            "{record:?}"
        );
    }
}

#[test]
fn a_provider_without_a_credential_is_no_silent_hole() {
    // C18: without the credential a run refuses to start, and a sidecar refuses requests until it is stored.
    let Some(site) = Site::for_test(CURLS) else { return };
    let canary = Canary::draw();
    site.keep("two", "access_token", Canary::draw().text());
    let ended = site.run().policy(POLICY).script("echo it ran");
    assert!(
        ended.code != 0 && ended.stderr.contains("creds set one") && !ended.stdout.contains("it ran"),
        "{ended}"
    );
    let value = site.file("value", canary.text());
    let left = site.beside(POLICY).with("VALUE", &value.to_string_lossy()).script(
        r#"code before via -H "Authorization: token $ONE_TOKEN" https://protocols.example/before
        code gate proxy https://protocols.example/gate one
        "$PRODUCT" creds set one --from-file "$VALUE" >/dev/null
        code after via -H "Authorization: token $ONE_TOKEN" https://protocols.example/after"#,
    );
    assert_eq!(
        (left.said("before"), left.said("gate"), left.said("after")),
        ("502", "502", "200"),
        "{}",
        left.ended
    );
    let requests = site.requests();
    assert!(
        requests.len() == 1
            && requests[0].header("authorization") == Some(&format!("token {}", canary.text())),
        "{requests:?}"
    );
}
