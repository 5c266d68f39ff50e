//! The variables by which programs find the run's authority: each is set inside where TLS is opened, and names a file that has it.

use std::time::Duration;

use lockgate_clients::{Need, Site, product, run_to_end};

/// Those that replace a program's own authorities, and those that come beside them.
const BUNDLES: [&str; 9] = [
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "CODEX_CA_CERTIFICATE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
];
const EXTRAS: [&str; 2] = ["NODE_EXTRA_CA_CERTS", "DENO_CERT"];

#[test]
fn every_one_names_a_file_with_the_runs_authority() {
    for site in Site::for_everyone(&[Need::Program("curl"), Need::Program("openssl")]) {
        let names = BUNDLES.into_iter().chain(EXTRAS).collect::<Vec<_>>().join(" ");
        // A file of many certificates verifies a chain by those of them that it needs.
        let script = format!(
            r#"curl -sS -o /dev/null https://api.example.com/v1/x || true
            openssl s_client -proxy "${{HTTPS_PROXY#http://}}" -connect api.example.com:443 -servername api.example.com </dev/null 2>/dev/null | openssl x509 > leaf 2>/dev/null || true
            for name in {names}; do eval "file=\${{$name:-}}"; printf '%s=' $name
                [ -n "$file" ] || {{ echo unset; continue; }}
                verified=$(openssl verify -no-CApath -no-CAstore -CAfile "$file" leaf 2>&1 | tail -1)
                echo "$verified $(grep -c 'BEGIN CERTIFICATE' "$file") $(grep -c PRIVATE "$file")"; done"#
        );
        let policy = "[[egress.allow]]\nurl = \"https://api.example.com/v1/*\"\n";
        let ended = site.run().policy(policy).script(&script);
        let said = |name: &str| {
            let found = ended.stdout.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            found.unwrap_or_else(|| panic!("nothing was said of {name}: {ended}")).to_owned()
        };
        let shape = |name: &str| {
            let (verified, counts) = said(name)
                .split_once(": OK ")
                .map(|(_, counts)| (true, counts.to_owned()))
                .unwrap_or_default();
            assert!(verified && counts.ends_with(" 0"), "{name}: {ended}");
            counts.split(' ').next().and_then(|count| count.parse::<usize>().ok()).unwrap_or(0)
        };
        // The machine's own authorities are in a bundle too.
        BUNDLES.iter().for_each(|name| assert!(shape(name) > 1, "{name}: {ended}"));
        EXTRAS.iter().for_each(|name| assert_eq!(shape(name), 1, "{name}: {ended}"));
        // A run that opens nothing leaves each program its own.
        let ended = site.run().allow("api.example.com").script(&script);
        assert_eq!(ended.stdout.matches("=unset\n").count(), BUNDLES.len() + EXTRAS.len(), "{ended}");
    }
}

/// An authority and, in the workspace, the script that asks a server of it which no bundle of this machine knows.
const PRIVATE: &str = r#"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=The office" -keyout ca.key -out ca.pem 2>/dev/null
cat "$SSL_CERT_FILE" ca.pem > all.pem"#;

#[test]
fn one_that_the_callers_own_file_adds_counts_inside_opened_or_not() {
    for site in Site::for_everyone(&[Need::Program("curl"), Need::Program("openssl")]) {
        site.file(
            "opened.toml",
            "[[egress.allow]]\nhost = \"www.example.org\"\n[[egress.allow]]\nurl = \"https://api.example.com/v1/*\"\n",
        );
        site.file("spliced.toml", "[[egress.allow]]\nhost = \"www.example.org\"\n");
        let names = BUNDLES.into_iter().chain(EXTRAS).collect::<Vec<_>>().join(" ");
        let look = format!(
            r#"for name in {names}; do eval "file=\${{$name:-}}"; [ -n "$file" ] || continue
                openssl verify -no-CApath -no-CAstore -CAfile "$file" ca.pem >/dev/null 2>&1 && echo "$1 $name"; done
            curl -sS -o /dev/null -w "$1 %{{http_code}}\n" https://www.example.org/x"#
        );
        std::fs::write(site.workspace().join("look.sh"), look).unwrap();
        let script = format!(
            r#"{PRIVATE}
            cp ca.pem "$WORK"
            for policy in opened spliced; do
                SSL_CERT_FILE=$PWD/all.pem "$PRODUCT" run --workspace "$WORK" --policy $policy.toml -- sh look.sh $policy; done
            "$PRODUCT" run --workspace "$WORK" --policy spliced.toml -- sh look.sh none"#
        );
        let mut command = site.world().command("/bin/sh");
        command.args(["-uc", &script]).current_dir(site.outside()).env("WORK", site.workspace());
        command.env("PRODUCT", product().expect("`Site` asked first")).env("XDG_STATE_HOME", site.state());
        let ended = run_to_end(&mut command, Duration::from_secs(90));
        for policy in ["opened", "spliced"] {
            for name in BUNDLES.into_iter().chain(EXTRAS) {
                assert!(ended.stdout.contains(&format!("{policy} {name}\n")), "{policy} {name}: {ended}");
            }
            assert!(ended.stdout.contains(&format!("{policy} 200\n")), "{ended}");
        }
        assert!(
            !ended.stdout.contains("none SSL_CERT_FILE") && ended.stdout.contains("none 200\n"),
            "{ended}"
        );
    }
}
