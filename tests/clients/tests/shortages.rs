//! Temporary shortages of descriptors, or of a resolver. The sidecar refuses or waits, says so, takes no processor time by it, and serves
//! as before once there is enough again. L10.

use lockgate_clients::{Left, Need, Site, allowing, provider};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Program("curl"),
    Need::Program("python3"),
    Need::Program("prlimit"),
    Need::Program("ip"),
];

/// Takes all descriptors that the sidecar may have, by silent connections, and holds them until the file `enough` exists. It makes `taken`
/// when all but a few are gone: later clients queue behind the others.
const TAKE: &str = r#"import os, socket, sys, time
serving = sys.argv[1]
held = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(100) for port in (8081, 8080)]
count = 0
while count < 60: time.sleep(0.02); count = len(os.listdir("/proc/%s/fd" % serving))
print("held=%d" % count); open("taken", "w").close()
while not os.path.exists("enough"): time.sleep(0.02)
"#;

fn policy() -> String {
    provider("http://files.example.com/*") + &allowing(&["www.example.org", "*.example.com"])
}

fn number(left: &Left, key: &str) -> u64 {
    left.said(key).parse().unwrap_or_else(|_| panic!("{key} is no number: {}", left.ended))
}

#[test]
fn without_a_descriptor_it_waits_and_does_not_spin() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let take = site.file("take.py", TAKE);
    let left = site.beside(&policy()).script(&format!(
        r#"served() {{ code $1 via --max-time 3 http://www.example.org/; code $1-gate gate --max-time 3 http://127.0.0.1:8080/health; }}
        # proc(5): its time in user and in kernel mode, in hundredths of a second.
        spent() {{ set -- $(sed 's/.*) //' /proc/$serving/stat); echo $(( ${{12}} + ${{13}} )); }}
        served before; prlimit --pid $serving --nofile=64
        /usr/bin/python3 {} $serving & takes=$!; await '[ -e taken ]'; rm taken
        begun=$(spent); served short; echo "spent=$(( $(spent) - begun ))"
        touch enough; wait $takes; rm enough
        await 'curl -s -o /dev/null -m 3 -x http://127.0.0.1:8081 http://www.example.org/'
        served after; await '[ $(ls /proc/$serving/fd | wc -l) -lt 32 ]'"#,
        take.display()
    ));
    for when in ["before", "after"] {
        assert_eq!((left.said(when), left.said(&format!("{when}-gate"))), ("200", "200"), "{}", left.ended);
    }
    // They were really gone, and no new client was served.
    assert!((60..=64).contains(&number(&left, "held")), "{}", left.ended);
    assert_eq!((left.said("short"), left.said("short-gate")), ("000", "000"), "{}", left.ended);
    // Six seconds passed, in which a busy loop would have taken 600.
    assert!(number(&left, "spent") < 15, "{}", left.ended);
}

/// How long each request of `asks` took, in seconds.
fn took(left: &Left, key: &str) -> f64 {
    left.said(key).rsplit(' ').next().and_then(|it| it.parse().ok()).expect("a time")
}

#[test]
fn without_a_resolver_names_are_refused_by_name_until_there_is_one() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    site.keep("one", "access_token", "a-credential-of-no-use");
    let left = site.beside(&policy()).script(
        r#"asks() { key=$1; shift; printf '%s=%s\n' $key "$(via -w ' %{http_code} %{http_connect} %{time_total}' "$@" 2>/dev/null | tr -d '\n')"; }
        routes() { ip route $1 unreachable 9.9.9.9; ip -6 route $1 unreachable 2620:fe::fe; }
        asks before http://www.example.org/
        routes add
        asks down http://api.example.com/; asks down-tunnel -p http://api.example.com/
        asks down-gate -H 'X-Provider: one' -H 'X-Target: http://files.example.com/' http://127.0.0.1:8080/proxy --noproxy '*'
        routes del
        asks after http://api.example.com/; asks after-tunnel -p http://api.example.com/"#,
    );
    // An unreachable resolver is reported at once, with the name that was looked up.
    for (key, code) in [("down", " 502 000 "), ("down-gate", " 502 000 "), ("down-tunnel", " 000 502 ")] {
        assert!(left.said(key).contains(code) && took(&left, key) < 2.0, "{key}: {}", left.ended);
    }
    assert!(left.said("down").contains("api.example.com does not resolve"), "{}", left.ended);
    assert_eq!(left.denials("name_not_found"), 3, "{:?}", left.audit());
    // No failure is cached.
    for key in ["before", "after"] {
        assert!(left.said(key).contains(" 200 000 "), "{key}: {}", left.ended);
    }
    assert!(left.said("after-tunnel").contains(" 200 200 "), "{}", left.ended);
}

#[test]
fn a_resolver_that_fails_or_says_nothing_holds_nobody_else_up() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let left = site.beside(&policy()).script(
        r#"asks() { key=$1; shift; printf '%s=%s\n' $key "$(via -w ' %{http_code} %{http_connect} %{time_total}' "$@" 2>/dev/null | tr -d '\n')"; }
        asks silent http://silence.example.com/ & silent=$!
        for n in 1 2 3 4 5 6 7 8; do asks silent$n -p http://silence.example.com/ & silent="$silent $!"; done
        asks fails http://failure.example.com/; asks meanwhile http://www.example.org/
        wait $silent; asks after http://www.example.org/"#,
    );
    for (key, name, most) in [("silent", "silence.example.com", 12.0), ("fails", "failure.example.com", 2.0)]
    {
        let said = left.said(key);
        assert!(said.contains(&format!("{name} does not resolve")), "{key}: {}", left.ended);
        assert!(said.contains(" 502 000 ") && took(&left, key) < most, "{key}: {}", left.ended);
    }
    for key in ["meanwhile", "after"] {
        assert!(left.said(key).contains(" 200 000 ") && took(&left, key) < 2.0, "{key}: {}", left.ended);
    }
    assert_eq!(left.denials("name_not_found"), 10, "{:?}", left.audit());
}
