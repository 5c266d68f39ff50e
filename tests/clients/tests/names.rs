//! Names: a name that is not allowed is never looked up outside, and a name that leads to a private address is not followed, not even when
//! all public hosts are open. S2.14, S4.22, S4.28, S4.29; E04, E12, E14.

use std::time::Duration;

use lockgate_clients::{Need, Site, allowing};
use serde_json::json;

const CURL: &str = "curl -sS --max-time 20";
const OPEN: &str = "[egress]\ndefault = \"open-internet\"\n";

#[test]
fn no_question_of_the_agents_leaves() {
    for site in Site::for_everyone(&[Need::Program("dig")]) {
        let run = site.run().allow("api.example.com").bare();
        let dig = "dig +time=2 +tries=1 +noall +comments +answer";
        let kinds = [
            "A",
            "AAAA",
            "TXT",
            "NULL",
            "MX",
            "SRV",
            "HTTPS",
            "SVCB",
            "ANY",
            "CNAME",
            "NS",
            "SOA",
            "PTR",
            "CAA",
            "TYPE65534",
        ];
        let servers = [
            "",
            "@8.8.8.8",
            "@9.9.9.9",
            "@2620:fe::fe",
            "@192.168.77.1",
            "+tcp",
            "+tcp @1.1.1.1",
            "+edns=0 +dnssec @8.8.8.8",
            "+subnet=1.2.3.4/24 @8.8.8.8",
            "+nordflag @8.8.8.8",
            "-p 5353 @8.8.8.8",
        ];
        let names = [
            "www.example.org",
            "c2VjcmV0.api.example.com",
            "a.b.c.api.example.com",
            "aPi.exAmple.com.evil.test",
        ];
        let mut script = String::new();
        for kind in kinds {
            script += &format!("{dig} {} {kind} || true\n", names[0]);
            script += &format!("{dig} {} {kind} @8.8.8.8 || true\n", names[1]);
            // The allowed name itself: its address is the sidecar's own, and it has no other records.
            script += &format!("{dig} api.example.com {kind} @9.9.9.9 || true\n");
        }
        for server in servers {
            script += &names.map(|name| format!("{dig} {name} A {server} || true\n")).concat();
        }
        script += "getent hosts www.example.org || true; getent ahosts host.docker.internal || true\n";
        let ended = run.script(&script);
        assert!(
            ended.code == 0 && ended.stdout.contains("NXDOMAIN") && ended.stdout.contains("198.1"),
            "{ended}"
        );
        // A public address in an answer could only come from outside.
        assert!(!ended.stdout.contains("93.184.216."), "{ended}");
        let asked: Vec<_> =
            site.world().records().into_iter().filter(|record| record.event != "absent").collect();
        assert!(asked.is_empty(), "{asked:?}");
    }
}

#[test]
fn a_name_is_only_looked_up_to_be_connected_to() {
    let Some(site) = Site::for_test(&[Need::Program("curl"), Need::Program("getent")]) else { return };
    let run = site.run().policy(OPEN).bare();
    run.script("getent ahosts secret-bytes.example.net; getent ahosts www.example.org").says("198.1");
    assert!(site.world().records_of("resolver").is_empty(), "{:?}", site.world().records_of("resolver"));
    run.script(&format!("{CURL} https://www.example.org/")).says("\"server\":\"web\"");
    let asked: Vec<String> =
        site.world().records_of("resolver").iter().map(|r| r.text("name").to_lowercase()).collect();
    assert!(!asked.is_empty() && asked.iter().all(|name| name == "www.example.org."), "{asked:?}");
}

#[test]
fn a_name_that_turns_private_is_left() {
    for policy in [OPEN, "[[egress.allow]]\nhost = \"**.example.com\"\n"] {
        let Some(site) = Site::for_test(&[Need::Program("curl")]) else { return };
        let run = site.run().policy(policy);
        // E14: the first answer is public, all later ones are private, each with a TTL of zero.
        let attempt = format!("{CURL} -f http://rebind.example.com/");
        let ended = run.clone().bare().script(&format!(
            "{attempt}; for i in 1 2 3; do ! {attempt} 2>/dev/null; done; for i in 1 2; do ! {CURL} -f https://rebind.example.com/ 2>/dev/null; done"
        ));
        assert!(ended.code == 0 && ended.stdout.matches("\"server\":\"web\"").count() == 1, "{ended}");
        for name in [
            "mixed",
            "private",
            "meta",
            "loopback",
            "loopback6",
            "zero",
            "v6private",
            "mapped",
            "alias-private",
            "lan",
            "host",
        ] {
            for run in [run.clone(), run.clone().bare()] {
                let ended = run.fastest(&format!("{CURL} -f http://{name}.example.com/"));
                assert!(ended.code != 0 && ended.took < Duration::from_secs(1), "{name}: {ended}");
                assert!(
                    ended.stderr.contains("lockgate: denied"),
                    "{name}: the person was not told: {ended}"
                );
            }
        }
        let others: Vec<_> = site.visits().into_iter().filter(|record| record.server != "web").collect();
        assert!(others.is_empty(), "{others:?}");
        let connections = site.visits().into_iter().filter(|record| record.event == "connect").count();
        assert_eq!(connections, 1, "{:?}", site.visits());
    }
}

#[test]
fn the_floor_holds_in_the_open_internet() {
    for site in Site::for_everyone(&[Need::Program("curl"), Need::Program("getent")]) {
        // Even if a resolver gives these names a public address. S4.28
        let web = json!(["93.184.216.34"]);
        let names =
            ["metadata.google.internal", "host.docker.internal", "localhost", "sidecar", "agent", "metadata"];
        let table: serde_json::Map<String, serde_json::Value> =
            names.iter().map(|name| ((*name).to_owned(), web.clone())).collect();
        site.world().resolve(&table.into()).expect("room for a table");
        let run = site.run().flags(["--preset", "open-internet"]);
        // S3.8
        run.clone().bare().attempt(&format!("{CURL} https://www.example.org/")).says("\"server\":\"web\"");
        run.attempt(&format!("{CURL} https://www.example.org/")).says("\"server\":\"web\"");
        let before = site.visits().len();
        for name in names {
            let bare = run.clone().bare().fastest(&format!("{CURL} -f http://{name}/"));
            assert!(bare.code != 0 && bare.took < Duration::from_secs(1), "{name}: {bare}");
            // `NO_PROXY` has no effect: the proxy itself refuses.
            let proxied =
                run.fastest(&format!("{CURL} -f --noproxy '' -x http://sidecar:8081 http://{name}/"));
            assert!(proxied.code != 0 && proxied.took < Duration::from_secs(1), "{name}: {proxied}");
        }
        let resolved = run
            .bare()
            .script("! getent ahosts metadata.google.internal && ! getent ahosts host.docker.internal");
        assert!(resolved.code == 0, "{resolved}");
        let after: Vec<_> =
            site.visits().into_iter().skip(before).filter(|record| record.event != "closed").collect();
        assert!(after.is_empty(), "{after:?}");
    }
}

#[test]
fn the_sidecar_is_where_its_name_says() {
    for site in Site::for_everyone(&[Need::Program("dig"), Need::Program("curl")]) {
        let script = "dig +short sidecar A\ndig +short sidecar AAAA\n\
                      for name in sidecar $(dig +short sidecar A); do\n\
                      curl -sS --noproxy '*' --max-time 5 http://$name:8080/health\necho\ndone\n";
        let ended = site.run().allow("api.example.com").bare().script(script);
        let lines: Vec<&str> = ended.stdout.lines().collect();
        // The sidecar has no IPv6 address, because it would not answer there.
        assert_eq!(lines[..2], ["198.18.0.0", "{\"status\":\"ok\"}"], "{ended}");
        assert_eq!(lines.iter().filter(|line| line.contains("\"ok\"")).count(), 2, "{ended}");
    }
}

#[test]
fn names_have_public_addresses_for_those_who_look() {
    for site in Site::for_everyone(&[Need::Program("python3"), Need::Program("curl")]) {
        let look = "import ipaddress, socket\n\
                    found = {a[4][0] for a in socket.getaddrinfo('api.example.com', 443)}\n\
                    print(*(f'{a} {ipaddress.ip_address(a).is_global}' for a in found))\n";
        std::fs::write(site.workspace().join("look.py"), look).expect("a program that looks");
        // The last but one gives the proxy the address.
        let script = "python3 look.py\n\
                      at=$(python3 -c \"import socket; print(socket.gethostbyname('api.example.com'))\")\n\
                      ask() { curl -sS --max-time 20 -o /dev/null -w '%{http_code}\\n' \"$@\" https://api.example.com/; }\n\
                      ask -4\n\
                      ask -x http://sidecar:8081 --connect-to api.example.com:443:$at:443\n\
                      curl -sS --max-time 5 http://sidecar:8080/health\n";
        let asked = |flags: &[&str]| site.run().flags(flags).allow("api.example.com").bare().script(script);
        let usual = asked(&[]);
        assert!(
            usual.stdout.contains("198.18.0.1 False") && usual.stdout.contains("\n200\n200\n"),
            "{usual}"
        );
        let ended = asked(&["--name-addresses", "22.0.0.0/16"]);
        let lines: Vec<&str> = ended.stdout.lines().collect();
        assert_eq!(lines, ["22.0.0.1 True", "200", "200", "{\"status\":\"ok\"}"], "{ended}");
    }
}

#[test]
fn a_machine_that_changes_networks_is_followed() {
    let Some(site) = Site::for_test(&[Need::Root, Need::Program("curl")]) else { return };
    let policy = allowing(&["api.example.com", "later.example.org"]);
    std::fs::write(site.outside().join("policy.toml"), policy).expect("a policy outside");
    std::fs::write(
        site.workspace().join("ask"),
        "for at in first second third; do echo \"$at: $(for name in api.example.com later.example.org; do\n\
        curl -sS -o /dev/null --max-time 20 -w '%{http_code} ' \"$@\" http://$name/; done)\"\n\
        : > asked-$at; i=0; while [ ! -e after-$at ] && [ $((i += 1)) -lt 300 ]; do sleep 0.1; done; done\n",
    )
    .expect("a script inside");
    // As programs write such files, another takes the place of the one before. A sidecar asks for them every three seconds at most.
    let script = r#"
        cp -a /etc "$OUTSIDE/etc"; exec unshare --mount sh -uc '
            cp /etc/resolv.conf world.conf; cp /etc/hosts world.hosts; mount --bind "$OUTSIDE/etc" /etc
            await() { i=0; until "$@" 2>/dev/null; do [ $((i += 1)) -lt 300 ] || exit 9; sleep 0.1; done; }
            after() { await [ -e asked-$1 ]; sleep 3.2; $2; : > after-$1; }
            resolver() { cp world.conf /etc/new; mv /etc/new /etc/resolv.conf; }
            name() { { cat world.hosts; echo 93.184.216.34 later.example.org; } > /etc/new; mv /etc/new /etc/hosts; }
            changes() { after first resolver; after second name; after third true; }
            begin() { rm -f asked-* after-*; cp world.hosts /etc/hosts; : > /etc/new; mv /etc/new /etc/resolv.conf; changes & }
            begin; "$PRODUCT" run --policy "$OUTSIDE/policy.toml" -- sh ask; wait
            begin; "$PRODUCT" sidecar --policy "$OUTSIDE/policy.toml" --forward 127.0.0.1:8081 & sidecar=$!
            await curl -so /dev/null http://127.0.0.1:8081/; sh ask -x http://127.0.0.1:8081; kill $sidecar; wait'"#;
    let ended = site.shell().run(script);
    let followed = "first: 502 502 \nsecond: 200 502 \nthird: 200 200 \n";
    assert_eq!(ended.stdout, followed.repeat(2), "{ended}");
}
