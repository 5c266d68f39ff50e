//! The variables by which programs find the run's authority: each is set inside where TLS is opened, and names a file that has it.

use lockgate_clients::{Need, Site};

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
