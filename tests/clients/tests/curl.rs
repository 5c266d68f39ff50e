//! curl with the proxy variables of the sandbox, and without them, when it knows of no sidecar. S0.28, S0.37, S4.24, S4.67; E06, E07, E08.

use lockgate_clients::{Need, Site};

const CURL: &str = "curl -sS --max-time 20";

#[test]
fn an_allowed_host_works_unchanged() {
    for site in Site::for_everyone(&[Need::Program("curl")]) {
        let run = site.run().allow("api.example.com");
        for (run, how) in [(run.clone(), "by-proxy"), (run.bare(), "bare")] {
            for scheme in ["http", "https"] {
                let ended = run.attempt(&format!(
                    "{CURL} -H 'X-Kept: as it is' '{scheme}://api.example.com/{how}?a=%2F&b'"
                ));
                ended.says(&format!("\"path\":\"/{how}?a=%2F&b\""));
                ended.says("\"x-kept\":\"as it is\"");
                ended.says("\"host\":\"api.example.com\"");
            }
        }
        let mut requests = site.world().records_of("web");
        requests.retain(|record| record.event == "request");
        assert_eq!(requests.len(), 4, "{requests:?}");
    }
}

#[test]
fn a_body_goes_and_comes_whole() {
    let Some(site) = Site::for_test(&[Need::Program("curl")]) else { return };
    let run = site.run().allow("api.example.com");
    for run in [run.clone(), run.bare()] {
        for scheme in ["http", "https"] {
            let url = format!("{scheme}://api.example.com");
            run.script(&format!("{CURL} {url}/bytes/5000000 | wc -c")).says("5000000");
            let ended = run.script(&format!(
                "head -c 3000000 /dev/zero > body; {CURL} --data-binary @body {url}/upload; rm body"
            ));
            ended.says("\"body_length\":3000000");
            let sent = "{CURL} -H 'Transfer-Encoding: chunked' --data-binary @- URL/chunked";
            let sent = sent.replace("{CURL}", CURL).replace("URL", &url);
            run.script(&format!("echo some words | {sent}")).says("\"body_length\":11");
        }
    }
}

#[test]
fn events_stream_as_they_come() {
    let Some(site) = Site::for_test(&[Need::Program("curl")]) else { return };
    let run = site.run().allow("api.example.com");
    for run in [run.clone(), run.bare()] {
        for scheme in ["http", "https"] {
            let ended = run.script(&format!("{CURL} -N {scheme}://api.example.com/sse"));
            assert!(ended.code == 0 && ended.stdout.matches("data:").count() == 5, "{ended}");
        }
    }
}

#[test]
fn a_refusal_has_no_body_where_none_was_asked_for() {
    // RFC 9110 §9.3.2: octets after the head would be taken for the next answer on that connection.
    let Some(site) = Site::for_test(&[Need::Program("curl")]) else { return };
    let policy = "[[egress.allow]]\nurl = \"https://api.example.com/v1/*\"\nmethods = [\"GET\", \"HEAD\"]";
    let left = site.beside(policy).script(
        r#"two() { key=$1; shift; echo "$key=$(gate -o /dev/null -o /dev/null -w '%{http_code}-%{num_connects} ' "$@")"; }
        two proxy -x http://127.0.0.1:8081 -I http://api.example.com/a http://api.example.com/b
        two gateway -I http://127.0.0.1:8080/nope http://127.0.0.1:8080/health
        two opened -x http://127.0.0.1:8081 --cacert "$OUT/ca.pem" -I https://api.example.com/no https://api.example.com/v1/yes
        two opened1 --http1.1 -x http://127.0.0.1:8081 --cacert "$OUT/ca.pem" -I https://api.example.com/no https://api.example.com/v1/yes"#,
    );
    assert_eq!(left.said("proxy"), "403-1 403-0 ", "{}", left.ended);
    assert_eq!(left.said("gateway"), "404-1 200-0 ", "{}", left.ended);
    for key in ["opened", "opened1"] {
        assert_eq!(left.said(key), "403-1 200-0 ", "{key}: {}", left.ended);
    }
}

#[test]
fn an_answer_that_is_no_success_arrives_before_the_body_was_read() {
    let Some(site) = Site::for_test(&[Need::Program("curl")]) else { return };
    let left = site.beside("[[egress.allow]]\nurl = \"https://api.example.com/unread\"").script(
        r#"head -c 8000000 /dev/zero > "$OUT/body"
        for version in 1.1 2; do for code in 307 401 413; do
            echo "$version-$code=$(gate -o /dev/null -o /dev/null -o /dev/null -w '%{http_code} ' --http$version \
                -x http://127.0.0.1:8081 --cacert "$OUT/ca.pem" -H Expect: --data-binary @"$OUT/body" \
                "https://api.example.com/unread?code=$code&"[1-3])"
        done; done"#,
    );
    for version in ["1.1", "2"] {
        for code in ["307", "401", "413"] {
            let said = left.said(&format!("{version}-{code}"));
            assert_eq!(said, format!("{code} {code} {code} "), "HTTP/{version}: {}", left.ended);
        }
    }
}

#[test]
fn a_denied_host_fails_fast_and_says_so() {
    for site in Site::for_everyone(&[Need::Program("curl")]) {
        let run = site.run().allow("api.example.com");
        // The product tells the person in any case, on stderr.
        let by_proxy = run.fastest(&format!("{CURL} http://www.example.org/"));
        assert!(by_proxy.took.as_millis() < 1000, "{by_proxy}");
        assert!(
            by_proxy.stdout.contains("www.example.org") && by_proxy.stdout.contains("\"guard\""),
            "{by_proxy}"
        );
        assert!(by_proxy.stderr.contains("denied http://www.example.org/"), "{by_proxy}");
        let by_proxy = run.fastest(&format!("{CURL} https://www.example.org/"));
        by_proxy.fails_fast(&["403"]);
        let run = run.bare();
        for url in ["http://www.example.org/", "https://www.example.org/"] {
            let ended = run.fastest(&format!("{CURL} {url}"));
            ended.fails_fast(&["could not resolve host: www.example.org"]);
            assert!(ended.stderr.contains("denied www.example.org"), "{ended}");
        }
        // A name that another resolver answered, an unknown address, and a closed port.
        for address in ["93.184.216.34", "[2606:2800:220:1::1]"] {
            for url in ["https://www.example.org/", "http://www.example.org/"] {
                let pinned =
                    format!("--resolve www.example.org:443:{address} --resolve www.example.org:80:{address}");
                let ended = run.fastest(&format!("{CURL} -f {pinned} {url}"));
                assert!(ended.took.as_millis() < 1000 && ended.code != 0, "{address} {url}: {ended}");
            }
        }
        run.fastest(&format!("{CURL} https://api.example.com:8443/"))
            .fails_fast(&["connect", "reset", "recv", "ssl"]);
        assert!(site.visits().is_empty(), "{:?}", site.visits());
    }
}

#[test]
fn ipv6_is_served_like_ipv4() {
    let Some(site) = Site::for_test(&[Need::Program("curl")]) else { return };
    let run =
        site.run().allow("api.example.com").allow("v6only.example.com").allow("v4only.example.com").bare();
    // Inside, every allowed name has an address of each family; outside, the sidecar resolves it itself.
    for name in ["api.example.com", "v6only.example.com", "v4only.example.com"] {
        for family in ["-4", "-6"] {
            run.attempt(&format!("{CURL} {family} https://{name}/")).says("\"server\":\"web\"");
        }
    }
    let six = site.world().records_of("web").into_iter().filter(|record| record.local.starts_with("[2606:"));
    assert!(six.count() > 0, "nothing went out by IPv6");
    for family in ["-4", "-6"] {
        run.fastest(&format!("{CURL} {family} https://www.example.org/"))
            .fails_fast(&["could not resolve host"]);
    }
}

#[test]
fn an_upstream_that_fails_is_no_denial() {
    let Some(site) = Site::for_test(&[Need::Program("curl")]) else { return };
    let hosts = ["badname", "expired", "selfsigned", "unreachable", "failure", "empty"];
    let run = hosts.iter().fold(site.run(), |run, host| run.allow(&format!("{host}.example.com")));
    for run in [run.clone(), run.bare()] {
        for host in &hosts[..3] {
            // Spliced: the client itself refuses the certificate, and sends no request.
            let ended = run.fastest(&format!("{CURL} https://{host}.example.com/"));
            ended.fails_fast(&["certificate"]);
        }
        for host in &hosts[3..] {
            let ended = run.attempt(&format!("{CURL} -f http://{host}.example.com/"));
            assert!(ended.code != 0 && ended.took.as_secs() < 8, "{host}: {ended}");
        }
    }
    let requests = site.visits().into_iter().filter(|record| record.event == "request").count();
    assert_eq!(requests, 0, "{:?}", site.visits());
}
