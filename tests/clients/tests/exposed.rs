//! A credential that a run gives its command by value in one named variable: the command has it there alone; the person is warned and it is
//! recorded, without the value; a request with the value counts as one with the placeholder, and is refused where the placeholder would be.
//! S0.7, S4.37, S4.45; C13, C16, C22.

use std::fs;

use lockgate_clients::{Canary, Need, Site, files_below};

const NEEDS: &[Need] = &[Need::Program("curl")];
const POLICY: &str = r#"
[[provider]]
id = "one"
authorized_uris = ["https://protocols.example/*", "http://protocols.example/*"]
env = ["ONE_TOKEN", "ONE_KEY"]
inject = { header = "authorization", value = "Bearer {{access_token}}" }
[[provider]]
id = "two"
authorized_uris = ["https://api.example.com/v1/*"]
env = "TWO_TOKEN"
inject = { header = "x-api-key", value = "{{access_token}}" }
[[egress.allow]]
host = "www.example.org"
"#;
const EXPOSE: [&str; 2] = ["--expose", "ONE_TOKEN"];
/// `ask KEY …` prints the status of a request.
const ASK: &str = r#"ask() { key=$1; shift; printf '%s=%s\n' "$key" "$(curl -sS -o body -w '%{http_code}' "$@" || true)"; }"#;

fn filled(site: &Site) -> [Canary; 2] {
    let canaries = [Canary::draw(), Canary::draw()];
    site.keep("one", "access_token", canaries[0].text());
    site.keep("two", "access_token", canaries[1].text());
    canaries
}

/// Returns everything the product keeps or prints about its runs.
fn left(site: &Site) -> String {
    let mut all = String::new();
    for file in files_below(&site.state()).into_iter().chain(files_below(&site.outside())) {
        all += &format!(
            "{}: {}\n",
            file.display(),
            String::from_utf8_lossy(&fs::read(&file).unwrap_or_default())
        );
    }
    for words in [
        &["runs", "ls", "--json"][..],
        &["runs", "show", "latest"],
        &["runs", "logs", "latest"],
        &["audit", "show", "latest"],
        &["audit", "show", "latest", "--json"],
        &["policy", "ls", "--policy", "../outside/policy.toml", "--expose", "ONE_TOKEN"],
        &[
            "policy",
            "explain",
            "--policy",
            "../outside/policy.toml",
            "--expose",
            "ONE_TOKEN",
            "https://protocols.example/",
        ],
    ] {
        let told = site.lockgate(words);
        assert_eq!(told.code, 0, "{words:?}: {told}");
        all += &told.to_string();
    }
    all
}

#[test]
fn the_command_has_it_in_one_variable_and_nothing_writes_it_down() {
    for site in Site::for_everyone(NEEDS) {
        let canaries = filled(&site);
        let script = "echo ONE_TOKEN=$ONE_TOKEN; echo ONE_KEY=$ONE_KEY; echo TWO_TOKEN=$TWO_TOKEN";
        // The set-up commands have the command's variables.
        let run = site.run().policy(POLICY).flags(["--setup", r#"printf %s "$ONE_TOKEN" > set-up"#]);
        let ended = run.clone().flags(EXPOSE).script(script);
        assert_eq!(ended.said("ONE_TOKEN"), canaries[0].text(), "{ended}");
        assert_eq!(
            fs::read_to_string(site.workspace().join("set-up")).unwrap_or_default(),
            canaries[0].text()
        );
        for name in ["ONE_KEY", "TWO_TOKEN"] {
            assert!(ended.said(name).starts_with("lgph_"), "{ended}");
        }
        canaries[1].is_not_in("stdout", &ended.stdout);
        let warned = ended.stderr.matches("`ONE_TOKEN` holds the credential of `one` itself").count();
        assert_eq!(warned, 1, "{ended}");
        canaries[0].is_not_in("stderr", &ended.stderr);

        let left = left(&site);
        canaries.iter().for_each(|canary| canary.is_not_in("what the run leaves", &left));
        assert!(left.contains(r#""exposed":["ONE_TOKEN"]"#), "{left}");
        assert!(left.contains("exposed    ONE_TOKEN: the credential itself"), "{left}");
        assert!(left.contains("exposed ONE_TOKEN  the command holds the credential of one itself"), "{left}");
        assert!(left.contains("expose    ONE_TOKEN"), "{left}");
        assert!(left.contains("its credential is put in, and is exposed to the command as well"), "{left}");
        let audit = site.lockgate(&["audit", "show", "latest", "--json"]).stdout;
        let second = audit.lines().nth(1).unwrap_or_default();
        assert!(second.contains(r#""action":"expose","target":"ONE_TOKEN""#), "{audit}");
        assert_eq!(site.lockgate(&["audit", "verify", "latest"]).code, 0);

        // Not exposed, or taken back.
        let ended = run.script(script);
        canaries[0].is_not_in("a run that exposes nothing", format!("{ended}"));
        assert!(ended.said("ONE_TOKEN").starts_with("lgph_") && !ended.stderr.contains("itself"), "{ended}");
        let shown = site.lockgate(&["runs", "show", "latest", "--json"]).stdout;
        assert!(!shown.contains("exposed"), "{shown}");
    }
}

#[test]
fn a_request_with_it_is_one_with_its_placeholder() {
    for site in Site::for_everyone(NEEDS) {
        let canaries = filled(&site);
        let at = "https://protocols.example";
        let ended = site.run().policy(POLICY).flags(EXPOSE).script(&format!(
            r#"{ASK}
            for version in --http1.1 --http2; do
                ask bearer $version -H "Authorization: Bearer $ONE_TOKEN" {at}/bearer
                ask token $version -H "Authorization: token $ONE_TOKEN" {at}/token
                ask password $version -u "me:$ONE_TOKEN" {at}/password
                ask user $version -u "$ONE_TOKEN:x-oauth-basic" {at}/user
                ask query $version "{at}/query?a=1&access_token=$ONE_TOKEN&b=2"
            done
            ask clear -H "Authorization: Bearer $ONE_TOKEN" http://protocols.example/clear
            ask redirected --noproxy '*' -H "Authorization: Bearer $ONE_TOKEN" {at}/redirected
            ask gateway "$SIDECAR_URL/proxy" -H 'X-Provider: one' -H "X-Target: {at}/gateway" -H "Authorization: Bearer $ONE_TOKEN"
            ask placeholder -H "Authorization: Bearer $ONE_KEY" {at}/placeholder
            ask nothing {at}/nothing
            ask echoed -H "Authorization: Bearer $ONE_TOKEN" "{at}/echo-auth?as=plain"
            cat body"#
        ));
        let lines = ended.stdout.lines().filter(|line| line.contains('=')).collect::<Vec<_>>();
        assert!(lines.len() >= 16 && lines.iter().all(|line| line.ends_with("=200")), "{ended}");
        // An answer to the run is masked all the same, and no record contains it, not even in a query.
        canaries[0].is_not_in("an answer", &ended.stdout);
        assert!(ended.stdout.contains(&"*".repeat(40)), "{ended}");
        canaries[0].is_not_in("stderr", &ended.stderr);
        canaries[0].is_not_in("what the run leaves", left(&site));

        let requests = site.requests();
        let text = canaries[0].text();
        let of = |path: &'static str| requests.iter().filter(move |it| it.text("path").starts_with(path));
        for (path, value) in [
            ("/bearer", format!("Bearer {text}")),
            ("/token", format!("token {text}")),
            ("/clear", format!("Bearer {text}")),
            ("/redirected", format!("Bearer {text}")),
            ("/gateway", format!("Bearer {text}")),
            ("/placeholder", format!("Bearer {text}")),
            ("/nothing", format!("Bearer {text}")),
        ] {
            assert!(of(path).count() > 0, "{path}: {requests:?}");
            assert!(of(path).all(|it| it.header("authorization") == Some(value.as_str())), "{requests:?}");
        }
        for path in ["/password", "/user"] {
            assert!(
                of(path).all(|it| canaries[0].found_in(it.header("authorization").unwrap_or("")).is_some())
            );
            assert_eq!(of(path).count(), 2, "{requests:?}");
        }
        let query = format!("/query?a=1&access_token={text}&b=2");
        assert!(of("/query").count() == 2 && of("/query").all(|it| it.text("path") == query), "{requests:?}");
        assert!(
            of("/query").all(|it| it.header("authorization").is_none()),
            "it is there twice: {requests:?}"
        );
        assert!(!format!("{requests:?}").contains("lgph_"), "{requests:?}");
    }
}

#[test]
fn elsewhere_it_is_a_key_like_any_other() {
    // C22
    let Some(site) = Site::for_test(NEEDS) else { return };
    let canaries = filled(&site);
    let script = format!(
        r#"{ASK}
        ask longer -H "Authorization: Bearer ${{ONE_TOKEN}}x" https://protocols.example/longer
        ask two -H "Authorization: Bearer $ONE_TOKEN" -H "X-Api-Key: own" https://protocols.example/two
        ask foreign -H "Authorization: Bearer own" https://protocols.example/foreign
        ask other -H "X-Api-Key: $ONE_TOKEN" https://api.example.com/v1/other
        ask bearer -H "Authorization: Bearer $ONE_TOKEN" https://api.example.com/v1/bearer
        ask query "https://api.example.com/v1/query?key=$ONE_TOKEN"
        ask cookie -b "a=$ONE_TOKEN" https://protocols.example/cookie
        ask nowhere -H "Authorization: Bearer $ONE_TOKEN" https://web.example/nowhere"#
    );
    let ended = site.run().policy(POLICY).flags(EXPOSE).script(&script);
    for key in ["longer", "two", "foreign", "other", "bearer", "query", "cookie"] {
        assert_eq!(ended.said(key), "403", "{key}: {ended}");
    }
    assert_ne!(ended.said("nowhere"), "200", "{ended}");
    assert!(site.requests().is_empty(), "{:?}", site.requests());
    let audit = site.lockgate(&["audit", "show", "latest", "--json"]).stdout;
    assert_eq!(audit.matches(r#""guard":"pinned""#).count(), 6, "{audit}");
    assert_eq!(audit.matches(r#""guard":"credential_endpoint_mismatch""#).count(), 1, "{audit}");
    // The refusal is recorded and reported, without the value in its query.
    canaries[0].is_not_in("stderr", &ended.stderr);
    canaries[0].is_not_in("what the run leaves", left(&site));

    // A run that exposes nothing accepts no value: a request with one from elsewhere is refused.
    let told = site.file("told", canaries[0].text());
    let ended = site.run().policy(POLICY).mount(&told).script(&format!(
        r#"{ASK}
        ask own -H "Authorization: Bearer $(cat {})" https://protocols.example/own"#,
        told.display()
    ));
    assert_eq!(ended.said("own"), "403", "{ended}");
    assert!(site.requests().is_empty(), "{:?}", site.requests());
}

#[test]
fn what_it_stood_for_is_what_goes_out() {
    // C16: a credential that is replaced counts from the next request on; the command keeps the old value.
    let Some(site) = Site::for_test(NEEDS) else { return };
    let canaries = filled(&site);
    let new = site.file("new", canaries[1].text());
    let policy = site.file("policy.toml", POLICY);
    let inside = r#"curl -sSf -o /dev/null -H "Authorization: Bearer $ONE_TOKEN" https://protocols.example/before; touch before
        until [ -e after ]; do sleep 0.02; done
        curl -sSf -o /dev/null -H "Authorization: Bearer $ONE_TOKEN" https://protocols.example/after; echo inside=$?"#;
    fs::write(site.workspace().join("inside.sh"), inside).expect("room");
    let script = r#"
        "$PRODUCT" run --policy "$POLICY" --expose ONE_TOKEN -- sh inside.sh & run=$!
        await '[ -e before ]'
        "$PRODUCT" creds set one --from-file "$NEW" >/dev/null; touch after; wait $run; echo "run=$?""#;
    let ended = site.shell().with("POLICY", policy).with("NEW", new).run(script);
    assert!(ended.said("inside") == "0" && ended.said("run") == "0", "{ended}");
    let sent: Vec<Option<String>> =
        site.requests().iter().map(|it| it.header("authorization").map(str::to_owned)).collect();
    let bearer = |canary: &Canary| Some(format!("Bearer {}", canary.text()));
    assert_eq!(sent, [bearer(&canaries[0]), bearer(&canaries[1])], "{ended}");
}

#[test]
fn a_private_key_enters_no_sandbox_and_neither_does_what_nobody_named() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let _canaries = filled(&site);
    let body = Canary::draw();
    let refused = |flags: &[&str], word: &str| {
        let ended = site.run().policy(POLICY).flags(flags).script("echo it ran");
        assert!(ended.code == 2 && ended.stderr.contains(word), "{flags:?}: {ended}");
        assert!(!ended.stdout.contains("it ran"), "{ended}");
        body.is_not_in("a refusal", format!("{ended}"));
        ended
    };
    let before = site.lockgate(&["runs", "ls", "-q"]).stdout;
    for name in ["THREE_TOKEN", "ONE_*", "*", "PATH"] {
        let ended = refused(&["--expose", name], "no provider of this run");
        assert!(ended.stderr.contains("ONE_KEY, ONE_TOKEN, TWO_TOKEN"), "{ended}");
    }
    for kind in ["RSA ", "OPENSSH ", ""] {
        let pem =
            format!("-----BEGIN {kind}PRIVATE KEY-----\\n{}\\n-----END {kind}PRIVATE KEY-----", body.text());
        site.keep("one", "access_token", &pem);
        refused(&["--expose", "ONE_KEY"], "is a private key, and no private key enters a sandbox");
    }
    assert_eq!(site.lockgate(&["creds", "rm", "one"]).code, 0);
    site.keep("one", "user", "me");
    site.keep("one", "password", body.text());
    refused(&EXPOSE, "has several fields");
    assert_eq!(site.lockgate(&["runs", "ls", "-q"]).stdout, before, "none of them was a run");
}

#[test]
fn a_projects_file_exposes_nothing_until_it_is_approved() {
    for site in Site::for_everyone(NEEDS) {
        let canaries = filled(&site);
        let path = site.workspace().join("lockgate.toml");
        fs::write(&path, format!("{POLICY}\n[env.variable.ONE_TOKEN]\nexpose = true\n")).expect("room");
        let ended = site.run().script("echo ONE_TOKEN=$ONE_TOKEN");
        assert!(ended.code == 2 && ended.stderr.contains("env.variable"), "{ended}");
        canaries[0].is_not_in("what was said", format!("{ended}"));
        let approved = site.lockgate(&["policy", "approve"]);
        let words = "it puts a credential itself into `ONE_TOKEN`";
        assert!(approved.code == 0 && approved.stderr.contains(words), "{approved}");
        let ended = site.run().script("echo ONE_TOKEN=$ONE_TOKEN");
        assert_eq!(ended.said("ONE_TOKEN"), canaries[0].text(), "{ended}");
    }
}

#[test]
fn a_sidecar_alone_has_no_sandbox_to_expose_it_in() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let canaries = filled(&site);
    let policy = format!("{POLICY}\n[env.variable.ONE_TOKEN]\nexpose = true\n");
    let left = site.beside(&policy).attempt("echo it serves");
    assert!(left.ended.code != 0 && left.words().contains("exposes `ONE_TOKEN`"), "{}", left.words());
    canaries[0].is_not_in("what was said", format!("{}{}", left.ended, left.words()));
}
