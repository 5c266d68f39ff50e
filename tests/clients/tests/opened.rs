//! Which connections are terminated and which are spliced: those with a credential, or with rules of paths and methods, are terminated, and
//! no others; `policy explain` says which, and why. "Where the documents disagree: TLS"; S4.24, S4.65, S4.67; C18, C22.

use lockgate_clients::{Canary, Need, Site};

const NEEDS: &[Need] = &[Need::Program("curl"), Need::Program("openssl")];
const POLICY: &str = r#"
[[provider]]
id = "one"
authorized_uris = ["https://protocols.example/v1/*"]
env = "ONE_TOKEN"
inject = { header = "authorization", value = "Bearer {{access_token}}" }
[[egress.allow]]
host = "www.example.org"
[[egress.allow]]
url = "https://api.example.com/v1/*"
[[egress.allow]]
host = "files.example.com"
[[egress.deny]]
url = "https://files.example.com/admin/*"
"#;

fn site() -> Option<(Site, Canary)> {
    let site = Site::for_test(NEEDS)?;
    let canary = Canary::draw();
    site.keep("one", "access_token", canary.text());
    Some((site, canary))
}

/// Prints the issuer of the certificate that a host shows: `host=issuer`.
const ISSUER: &str = r#"issuer() { openssl s_client -connect $1:443 -servername $1 -verify_quiet </dev/null 2>/dev/null | openssl x509 -noout -issuer | sed "s/^/$1=/"; }
"#;

#[test]
fn only_what_must_be_seen_is_opened() {
    // S4.67, C18
    for site in Site::for_everyone(NEEDS) {
        let canary = Canary::draw();
        site.keep("one", "access_token", canary.text());
        let outside = site.shell().run(&format!("{ISSUER} issuer www.example.org"));
        let worlds = outside.stdout.trim().split_once('=').expect("an issuer").1.to_owned();
        let hosts = "www.example.org protocols.example api.example.com files.example.com";
        let ended = site.run().policy(POLICY).bare().script(&format!("{ISSUER} for host in {hosts}; do issuer $host; done; curl -sSf -o /dev/null https://www.example.org/x https://protocols.example/v1/x"));
        assert_eq!(ended.code, 0, "{ended}");
        let issuer = |host: &str| {
            let line = ended.stdout.lines().find_map(|line| line.strip_prefix(&format!("{host}=")));
            line.unwrap_or_else(|| panic!("no certificate of {host}: {ended}")).to_owned()
        };
        // Without a credential the certificate is the world's own; otherwise the run's.
        assert_eq!(issuer("www.example.org"), worlds);
        for host in ["protocols.example", "api.example.com", "files.example.com"] {
            assert_ne!(issuer(host), worlds, "{host}");
            assert!(issuer(host).to_lowercase().contains("lockgate"), "{}", issuer(host));
        }
        // Another run has another authority.
        let again =
            site.run().policy(POLICY).bare().script(&format!(
                "sha256sum < /.lockgate-etc/authority.pem; {ISSUER} issuer protocols.example"
            ));
        let first = site.run().policy(POLICY).script("sha256sum < /.lockgate-etc/authority.pem");
        assert_ne!(again.stdout.lines().next(), first.stdout.lines().next());
        let requests = site.requests();
        assert_eq!(requests[0].header("authorization"), None, "{requests:?}");
        assert_eq!(requests[1].header("authorization"), Some(format!("Bearer {}", canary.text()).as_str()));
        // A run without a credential or such a rule has no authority at all.
        let plain = site.run().allow("www.example.org").bare().script(&format!(
            "{ISSUER} ls /.lockgate-etc/authority.pem 2>&1 || true; issuer www.example.org"
        ));
        plain.says(&format!("www.example.org={worlds}"));
        assert!(plain.stdout.to_lowercase().contains("no such file"), "{plain}");
    }
}

#[test]
fn tls_is_opened_at_the_other_ports_of_a_host_with_a_credential() {
    // C22: by CONNECT and redirected, a key of the command's own is refused and a range is left out.
    for site in Site::for_everyone(NEEDS) {
        let canary = Canary::draw();
        site.keep("one", "access_token", canary.text());
        let policy = format!("{POLICY}[[egress.allow]]\nhost = \"protocols.example:8443\"\n");
        let run = site.run().policy(&policy);
        for run in [run.clone(), run.bare()] {
            let before = site.requests().len();
            let ended = run.script(
                r#"for own in '' 'Authorization: Bearer own'; do curl -sS -o /dev/null -w "own=$own code=%{http_code}\n" -r 0-3 -H "$own" https://protocols.example:8443/x; done"#,
            );
            ended.says("own= code=200");
            ended.says("own=Authorization: Bearer own code=403");
            let requests = &site.requests()[before..];
            assert_eq!(requests.len(), 1, "{requests:?}");
            assert_eq!(requests[0].header("range"), None, "{requests:?}");
            assert_eq!(requests[0].header("authorization"), None, "{requests:?}");
        }
    }
}

#[test]
fn the_certificate_shown_inside_is_for_its_host_and_nobody_else() {
    // S4.67
    let Some((site, canary)) = site() else { return };
    let ended = site.run().policy(POLICY).bare().script(
        r#"openssl s_client -connect protocols.example:443 -servername protocols.example </dev/null 2>/dev/null > leaf
        openssl x509 -in leaf -noout -ext subjectAltName,basicConstraints,keyUsage,extendedKeyUsage -dates
        openssl verify -CAfile /.lockgate-etc/authority.pem leaf
        openssl x509 -in /.lockgate-etc/authority.pem -noout -ext basicConstraints,keyUsage -dates -checkend 0
        grep -c PRIVATE /.lockgate-etc/authority.pem /.lockgate-etc/ca-bundle.pem || true; rm leaf"#,
    );
    ended.says("leaf: OK");
    assert!(
        ended.stdout.contains("DNS:protocols.example\n") && ended.stdout.matches("DNS:").count() == 1,
        "{ended}"
    );
    assert!(ended.stdout.contains("authority.pem:0") && ended.stdout.contains("ca-bundle.pem:0"), "{ended}");
    assert!(ended.stdout.contains("CA:TRUE"), "{ended}");
    canary.is_not_in("what was said", format!("{ended}"));
}

#[test]
fn explain_says_which_and_why() {
    // S4.67
    let Some((site, _)) = site() else { return };
    let policy = site.file("explained.toml", POLICY);
    let explain = |target: &str| {
        let ended = site.lockgate(&["policy", "explain", "--policy", &policy.to_string_lossy(), target]);
        format!("{}\n{}", ended.stdout, ended.stderr).to_lowercase()
    };
    let credentialed = explain("https://protocols.example/v1/x");
    assert!(
        credentialed.contains("open") && credentialed.contains("credential") && credentialed.contains("one"),
        "{credentialed}"
    );
    let spliced = explain("https://www.example.org/x");
    assert!(spliced.contains("tls is spliced"), "{spliced}");
    let path = explain("https://api.example.com/v1/x");
    assert!(path.contains("open") && path.contains("path"), "{path}");
    // Each has its own reason.
    assert!(!path.contains("credential") && !credentialed.contains("names paths"), "{path}{credentialed}");
    let denied = explain("https://files.example.com/ok");
    assert!(denied.contains("open"), "{denied}");
    // A terminated tunnel has its requests judged as well, by whichever rule.
    for outside in
        ["https://api.example.com/v2", "https://files.example.com/admin/x", "https://protocols.example/v2"]
    {
        let denied = explain(outside);
        assert!(!denied.contains("allowed by") && !denied.contains("every address"), "{denied}");
        let ended = site.lockgate(&["policy", "explain", "--policy", &policy.to_string_lossy(), outside]);
        assert_eq!(ended.code, 1, "{ended}");
    }
}

#[test]
fn without_an_authority_nothing_is_opened_and_nothing_slips_through() {
    // C18, C22: a sidecar without `--ca` refuses what it would have to inspect, and says so.
    let Some((site, canary)) = site() else { return };
    let left = site.beside(POLICY).script(
        r#"mkdir blind; "$PRODUCT" sidecar --policy "$OUT/policy.toml" --forward 127.0.0.1:7081 --env-file blind/env --audit blind/audit.jsonl 2>blind/err & blind=$!
        await 'grep -q "proxy at" blind/err'
        code bound gate -k -x http://127.0.0.1:7081 https://protocols.example/v1/x
        code path gate -k -x http://127.0.0.1:7081 https://api.example.com/v1/x
        code plain gate -k -x http://127.0.0.1:7081 https://www.example.org/x
        kill $blind; cat blind/err blind/audit.jsonl; rm -r blind"#,
    );
    assert_eq!(
        (left.said("bound"), left.said("path"), left.said("plain")),
        ("000", "000", "200"),
        "{}",
        left.ended
    );
    assert!(left.ended.stdout.contains("without --ca no TLS is opened"), "{}", left.ended);
    assert!(left.ended.stdout.contains("rule_needs_visible_request"), "{}", left.ended);
    canary.is_not_in("what was said", format!("{}", left.ended));
    assert_eq!(site.requests().len(), 1, "{:?}", site.requests());
}

#[test]
fn explain_says_what_becomes_of_an_address() {
    // S4.65, E12: no resolver is needed to tell; an invalid target is denied, not a usage error.
    let Some((site, _)) = site() else { return };
    let explain = |target: &str| site.lockgate(&["policy", "explain", "--preset", "open-internet", target]);
    for target in ["http://169.254.169.254/", "http://10.0.0.1/", "http://[fd00:ec2::254]/"] {
        let ended = explain(target);
        assert!(ended.code == 1 && ended.stdout.contains("address_blocked"), "{target}: {ended}");
    }
    for target in ["http://127.1/", "http://0x7f000001/", "http://127.0.0.1/"] {
        let ended = explain(target);
        assert!(ended.code == 1 && ended.stdout.contains("denied"), "{target}: {ended}");
    }
    // The controls: a public address, and a name, which is not resolved here.
    let public = explain("http://93.184.216.34/");
    assert!(public.code == 0 && public.stdout.contains("its address is public"), "{public}");
    let name = explain("http://private.example.com/");
    assert!(name.code == 0 && name.stdout.contains("every address"), "{name}");
    assert!(site.world().records_of("resolver").is_empty(), "{:?}", site.world().records_of("resolver"));
}
