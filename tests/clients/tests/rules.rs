//! The effect of each part of a policy on a client inside: deny beats allow, pinned addresses, paths and methods where they are visible,
//! the status of a denial, and one record per attempt. DESIGN §3, §6; S0.38, S1.39, S1.45, S4.7, S4.70; C05, E09, E15, E16, E20.

use std::fs;
use std::time::{Duration, Instant};

use lockgate_clients::{AWAIT, Need, Site, corpus_policy};
use serde_json::Value;

const CURL: &str = "curl -sS --max-time 20";
const CURLS: &[Need] = &[Need::Program("curl")];

#[test]
fn deny_beats_allow() {
    let Some(site) = Site::for_test(CURLS) else { return };
    let policy = "[[egress.allow]]\nhost = \"**.example.org\"\n\n[[egress.deny]]\nhost = \"www.example.org\"\nreason = \"ask Jo first\"\n\n\
                  [[egress.allow]]\nhost = \"www.example.org\"\n";
    let run = site.run().policy(policy);
    run.attempt(&format!("{CURL} http://www.example.org/")).says("ask Jo first");
    run.clone()
        .bare()
        .fastest(&format!("{CURL} https://www.example.org/"))
        .fails_fast(&["could not resolve host"]);
    let flag = run.clone().allow("www.example.org").bare();
    flag.fastest(&format!("{CURL} https://www.example.org/")).fails_fast(&["ask Jo first"]);
    assert!(site.visits().is_empty(), "{:?}", site.visits());
    run.bare().attempt(&format!("{CURL} https://deep.sub.example.org/")).says("\"server\":\"web\"");
}

#[test]
fn a_pinned_address_is_used_and_no_name_is_asked_for() {
    let Some(site) = Site::for_test(CURLS) else { return };
    // S1.39: the only way to a private address is to name the host and its address.
    let policy = "[[egress.allow]]\nhost = \"db.corp.example.org\"\naddresses = [\"10.0.0.5\"]\n";
    let run = site.run().policy(policy);
    for (run, how) in [(run.clone(), "by-proxy"), (run.bare(), "bare")] {
        run.attempt(&format!("{CURL} http://db.corp.example.org/{how}")).says("\"server\":\"private\"");
        run.attempt(&format!("{CURL} https://db.corp.example.org/{how}")).says("\"server\":\"private\"");
        let other = run.fastest(&format!("{CURL} -f http://10.0.0.5/{how}"));
        assert!(other.code != 0 && other.took < Duration::from_secs(1), "{other}");
    }
    assert!(site.world().records_of("resolver").is_empty(), "{:?}", site.world().records_of("resolver"));
}

#[test]
fn a_rule_of_paths_holds_where_paths_are_seen() {
    let Some(site) = Site::for_test(CURLS) else { return };
    let run = site.run().policy(corpus_policy());
    for run in [run.clone(), run.clone().bare()] {
        run.attempt(&format!("{CURL} http://files.example.com/a/b")).says("\"path\":\"/a/b\"");
        // TLS hides the path, so it is terminated: each request in it is judged by itself.
        run.attempt(&format!("{CURL} https://api.example.com/v1/x")).says("\"path\":\"/v1/x\"");
        run.attempt(&format!("{CURL} https://api.example.com/v2/x")).says("\"guard\":\"path_not_allowed\"");
    }
    let policy =
        "[[egress.allow]]\nurl = \"http://files.example.com/pub/*\"\nmethods = [\"GET\", \"HEAD\"]\n";
    let run = site.run().policy(policy);
    for run in [run.clone(), run.bare()] {
        run.attempt(&format!("{CURL} http://files.example.com/pub/x")).says("\"path\":\"/pub/x\"");
        run.attempt(&format!("{CURL} -d x http://files.example.com/pub/x"))
            .says("\"guard\":\"method_not_allowed\"");
        run.attempt(&format!("{CURL} http://files.example.com/private"))
            .says("\"guard\":\"path_not_allowed\"");
        run.attempt(&format!("{CURL} --path-as-is http://files.example.com/pub/../private"))
            .says("\"guard\":\"path_not_allowed\"");
    }
    let paths: Vec<String> =
        site.visits().iter().filter(|r| r.event == "request").map(|r| r.text("path").to_owned()).collect();
    assert_eq!(paths, ["/a/b", "/v1/x", "/a/b", "/v1/x", "/pub/x", "/pub/x"]);
}

#[test]
fn the_status_of_a_denial_can_be_chosen() {
    let Some(site) = Site::for_test(CURLS) else { return };
    let run = site.run().policy("[egress]\ndenied_status = 502\n");
    let ended = run.attempt(&format!("{CURL} -i http://www.example.org/"));
    ended.says("HTTP/1.1 502");
    ended.says("application/problem+json");
    run.fastest(&format!("{CURL} https://www.example.org/")).fails_fast(&["502"]);
}

#[test]
fn a_redirect_is_handed_over_and_judged_anew() {
    let Some(site) = Site::for_test(CURLS) else { return };
    let run = site.run().allow("api.example.com");
    let targets = [
        "http%3A%2F%2F169.254.169.254%2Flatest%2F",
        "http%3A%2F%2Fwww.example.org%2F",
        "http%3A%2F%2F127.0.0.1%3A8000%2F",
        "http%3A%2F%2Fprivate.example.com%2F",
        "https%3A%2F%2Fwww.example.org%2F",
    ];
    for run in [run.clone(), run.bare()] {
        for target in targets {
            let url = format!("http://api.example.com/redirect?to={target}");
            run.attempt(&format!("{CURL} -o /dev/null -w 'status %{{http_code}}' '{url}'"))
                .says("status 302");
            let followed = run.fastest(&format!("{CURL} -f -L '{url}'"));
            assert!(followed.code != 0 && followed.took < Duration::from_secs(1), "{target}: {followed}");
        }
        let followed = run.attempt(&format!(
            "{CURL} -L 'http://api.example.com/redirect?to=https%3A%2F%2Fapi.example.com%2Fnext'"
        ));
        followed.says("\"path\":\"/next\"");
    }
    let elsewhere: Vec<_> = site
        .visits()
        .into_iter()
        .filter(|record| record.server != "web" || record.text("host") == "www.example.org")
        .collect();
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
}

#[test]
fn one_name_does_not_cover_another() {
    let Some(site) = Site::for_test(&[Need::Program("curl"), Need::Program("openssl")]) else { return };
    let ports = "[[egress.allow]]\nhost = \"api.example.com\"\nports = [80, 443, 8443]\n";
    let run = site.run().policy(ports);
    let reached = || {
        site.visits().iter().filter(|r| r.event == "request" || r.text("sni") == "www.example.org").count()
    };
    // C03: the name in `CONNECT` and another in the handshake, on every port.
    for port in [80, 443, 8443] {
        let inner = format!("openssl s_client -connect api.example.com:{port} -servername www.example.org");
        run.fastest(&format!("{inner} -proxy sidecar:8081")).fails_fast(&["alert access denied"]);
        run.clone().bare().fastest(&inner).fails_fast(&["alert access denied"]);
    }
    assert_eq!(reached(), 0, "{:?}", site.visits());
    // E10: the name in the request line and another in `Host`, on a connection of either plane.
    for url in ["http://api.example.com/", "http://api.example.com:443/"] {
        for run in [run.clone(), run.clone().bare()] {
            let ended = run.fastest(&format!("{CURL} -f -H 'Host: www.example.org' {url}"));
            assert!(ended.code != 0 && ended.took < Duration::from_secs(1), "{url}: {ended}");
        }
    }
    let wrong: Vec<_> =
        site.visits().into_iter().filter(|record| record.text("host") == "www.example.org").collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    // Upper case is the same name.
    let ended = run.bare().script(
        "printf 'GET /upper HTTP/1.1\\r\\nHost: API.example.com\\r\\nConnection: close\\r\\n\\r\\n' | \
         openssl s_client -quiet -connect api.example.com:443 -servername API.Example.COM",
    );
    ended.says("/upper");
}

/// A relay on the sandbox's own loopback: it is refused whatever a direct connection is refused, and reaches whatever is allowed.
const RELAY: &str = "import socket, sys, threading
server = socket.create_server(('127.0.0.1', 7001))
def pump(a, b):
    while data := a.recv(65536):
        b.sendall(data)
    b.shutdown(socket.SHUT_WR)
def serve():
    while True:
        client, _ = server.accept()
        try:
            upstream = socket.create_connection((sys.argv[1], 80), 5)
        except OSError:
            client.close()
            continue
        threading.Thread(target=pump, args=(client, upstream), daemon=True).start()
        threading.Thread(target=pump, args=(upstream, client), daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
import subprocess
sys.exit(subprocess.call(['curl', '-sS', '-f', '--max-time', '10', '-H', 'Host: ' + sys.argv[1], 'http://127.0.0.1:7001/relayed']))";

#[test]
fn a_relay_inside_changes_nothing() {
    // E09
    let Some(site) = Site::for_test(&[Need::Program("python3"), Need::Program("curl")]) else { return };
    let relay = site.workspace().join("relay.py");
    fs::write(relay, RELAY).expect("room for a script");
    let run = site.run().allow("api.example.com").bare();
    run.script("/usr/bin/python3 relay.py api.example.com").says("/relayed");
    for host in ["www.example.org", "169.254.169.254", "192.168.77.10"] {
        let ended = run.script(&format!("/usr/bin/python3 relay.py {host}"));
        assert!(ended.code != 0, "{host}: {ended}");
    }
    let hosts: Vec<_> = site.visits().into_iter().filter(|record| record.event == "request").collect();
    assert!(hosts.len() == 1 && hosts[0].server == "web", "{hosts:?}");
}

#[test]
fn every_attempt_has_one_record() {
    // E20, DESIGN §10
    for site in Site::for_everyone(CURLS) {
        let run = site.run().allow("api.example.com");
        let ended = run.script(&format!(
            "{CURL} http://api.example.com/1; {CURL} http://api.example.com/2
             for i in 1 2 3; do {CURL} http://www.example.org/$i || true; {CURL} https://www.example.org/ || true; done
             {CURL} --noproxy '*' -o /dev/null http://93.184.216.34/ || true
             {CURL} \"$SIDECAR_URL/nothing\" || true; {CURL} \"$SIDECAR_URL/health\""
        ));
        assert!(ended.code == 0, "{ended}");
        let audits = site.state().join("lockgate/audit");
        let audit =
            fs::read_dir(audits).expect("the audits").next().expect("one run").expect("a file").path();
        let text = fs::read_to_string(audit).expect("an audit");
        let records: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("a record")).collect();
        let count = |outcome: &str, target: &str| {
            let wanted = |record: &&Value| {
                record["outcome"] == outcome && record["target"].as_str().is_some_and(|t| t.contains(target))
            };
            records.iter().filter(wanted).count()
        };
        assert_eq!(count("allowed", "api.example.com"), 2, "{text}");
        assert_eq!(count("denied", "www.example.org"), 6, "{text}");
        assert_eq!(count("denied", "93.184.216.34"), 1, "{text}");
        // The gateway's own answers too, except to requests for its health.
        assert_eq!((count("failed", "/nothing"), count("allowed", "/health")), (1, 0), "{text}");
        let told = ended.stderr.matches("denied http://www.example.org/").count();
        assert!(
            told == 3 && ended.stderr.matches("denied www.example.org:443").count() == 1,
            "told once per target: {ended}"
        );
        assert!(ended.stderr.contains("7 requests denied"), "summed up: {ended}");
    }
}

#[test]
fn a_field_that_would_not_be_kept_is_an_error() {
    // E16
    let Some(site) = Site::for_test(&[]) else { return };
    let policies = [
        ("[egress]\nallow_all = true\n", "allow_all"),
        ("[[egress.allow]]\nhost = \"api.example.com\"\nmethod = [\"GET\"]\n", "method"),
        ("[[egress.allow]]\nhost = \"*.com\"\n", "*.com"),
        ("[[egress.allow]]\nhost = \"**.example.org\"\naddresses = [\"10.0.0.5\"]\n", "addresses"),
        ("[[egress.allow]]\nurl = \"ftp://example.org/*\"\n", "ftp"),
    ];
    for (policy, word) in policies {
        let ended = site.run().policy(policy).script("echo it ran");
        assert!(
            ended.code == 2 && ended.stderr.contains(word) && !ended.stdout.contains("it ran"),
            "{policy}: {ended}"
        );
    }
}

/// Waits for a file of the run.
fn await_file(site: &Site, name: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !site.workspace().join(name).exists() {
        assert!(Instant::now() < deadline, "{name} did not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_run_keeps_the_rules_it_began_with() {
    // E15, S4.26: the rules are read from the file once, and later changes to it have no effect.
    const NARROW: &str = "[[egress.allow]]\nhost = \"api.example.com\"\n";
    const WIDE: &str = "[egress]\ndefault = \"open-internet\"\n";
    for site in Site::for_everyone(CURLS) {
        let run = site.run().policy(NARROW);
        let file = site.outside().join("policy.toml");
        let half = &WIDE.replace("open", "deny, or open")[..24];
        let unrelated = format!("timeout = \"20m\"\n{NARROW}");
        let changes = [NARROW, &unrelated, WIDE, half, "", "[egress\n", "[egress]\nallow_all = true\n"];
        let ask = "curl -s --max-time 20 -o /dev/null -w";
        let script = format!(
            "for step in $(seq 0 {}); do
                until [ -e go$step ]; do sleep 0.02; done
                {ask} \"$step allowed %{{http_code}}\\n\" http://api.example.com/$step
                {ask} \"$step denied %{{http_code}}\\n\" http://www.example.org/$step
                {ask} \"$step bare %{{http_code}}\\n\" --noproxy '*' https://www.example.org/$step || true
                ! printf '{WIDE}' 2>/dev/null > {}
                touch done$step
            done",
            changes.len() - 1,
            file.display(),
        );
        let ended = std::thread::scope(|scope| {
            let runs = scope.spawn(|| run.script(&script));
            for (step, text) in changes.iter().enumerate() {
                if step % 2 == 0 {
                    // The same file, or another one of its name.
                    fs::write(&file, text).expect("room for a policy");
                } else {
                    site.file("other.toml", text);
                    fs::rename(site.outside().join("other.toml"), &file).expect("a folder of this test's");
                }
                fs::write(site.workspace().join(format!("go{step}")), "").expect("room for a mark");
                await_file(&site, &format!("done{step}"));
            }
            runs.join().expect("the run")
        });
        let expected: String = (0..changes.len())
            .map(|step| format!("{step} allowed 200\n{step} denied 403\n{step} bare 000\n"))
            .collect();
        assert_eq!((ended.code, ended.stdout.as_str()), (0, expected.as_str()), "{ended}");
        let elsewhere: Vec<_> =
            site.visits().into_iter().filter(|visit| visit.text("host") != "api.example.com").collect();
        assert!(
            elsewhere.iter().all(|visit| visit.event != "request" && visit.event != "tls"),
            "{elsewhere:?}"
        );

        // A half-written or invalid file makes the next run refuse, and nothing runs; a wide rule takes effect.
        let again = |text: &str| {
            let again = site.run().policy(text);
            again.script(&format!("echo it ran; {ask} '%{{http_code}}' http://www.example.org/again"))
        };
        for text in [half, "[egress\n", "[egress]\nallow_all = true\n"] {
            let refused = again(text);
            assert!(refused.code == 2 && refused.stdout.is_empty(), "{text:?}: {refused}");
            assert!(refused.stderr.contains("policy.toml"), "{text:?}: {refused}");
        }
        assert_eq!(again("").stdout, "it ran\n403");
        assert_eq!(again(WIDE).stdout, "it ran\n200");
    }
}

#[test]
fn the_open_internet_is_that_of_one_run() {
    // S4.27, S4.70
    for site in Site::for_everyone(CURLS) {
        let ask = "curl -s --max-time 20 -o /dev/null -w";
        let script = |own: &str, other: &str| {
            format!(
                "{AWAIT}
                touch {own}; await '[ -e {other} ]' 30
                {ask} '%{{http_code}}\\n' http://www.example.org/{own}
                {ask} '%{{http_code}}\\n' --noproxy '*' https://www.example.org/{own} || true
                {ask} '%{{http_code}}\\n' http://169.254.169.254/{own}
                touch {own}-asked; await '[ -e {other}-asked ]' 30"
            )
        };
        let closed = site.run().allow("api.example.com");
        let open = closed.clone().flags(["--preset", "open-internet"]);
        let alone = |when: &str| {
            let ended = closed.script(&format!("{ask} '%{{http_code}}\\n' http://www.example.org/{when}"));
            assert_eq!((ended.code, ended.stdout.as_str()), (0, "403\n"), "{when}: {ended}");
        };
        // The first run makes the world's authority, which two cannot do at once.
        alone("before");
        let (open, shut) = std::thread::scope(|scope| {
            let open = scope.spawn(|| open.script(&script("open", "shut")));
            let shut = scope.spawn(|| closed.script(&script("shut", "open")));
            (open.join().expect("the run"), shut.join().expect("the run"))
        });
        assert_eq!((open.code, open.stdout.as_str()), (0, "200\n200\n403\n"), "{open}\n{shut}");
        assert_eq!((shut.code, shut.stdout.as_str()), (0, "403\n000\n403\n"), "{shut}");
        // Nor does the next run inherit it.
        alone("after");
        let paths: Vec<String> = site.requests().iter().map(|it| it.text("path").to_owned()).collect();
        assert_eq!(paths, ["/open", "/open"], "{:?}", site.visits());
    }
}

#[test]
fn a_run_that_asks_for_nothing_sends_nothing() {
    // S1.45: no telemetry, and no check for a newer version.
    for site in Site::for_everyone(CURLS) {
        let run = site.run().flags(["--preset", "open-internet"]);
        assert_eq!(run.script("sleep 2; echo done").stdout, "done\n");
        for words in [&["runs", "ls"][..], &["runs", "show", "latest"], &["audit", "verify"], &["doctor"]] {
            let _ = site.lockgate(words);
        }
        let records: Vec<_> =
            site.world().records().into_iter().filter(|record| record.event != "absent").collect();
        assert!(records.is_empty(), "{records:?}");
        // The control: a real request is seen.
        run.attempt(&format!("{CURL} http://www.example.org/")).says("\"server\":\"web\"");
        let seen = |server: &str| !site.world().records_of(server).is_empty();
        assert!(seen("resolver") && seen("web"), "{:?}", site.world().records());
    }
}
