//! Promise: a run uses the keys of the organisation it names, on every path, and no others; they are in nothing that it sees or
//! leaves. S1.27; C13. (What each vault takes and gives is tested beside the clients.)

use lockgate_conformance::{Backend, Bench, Canary, Needs, World, files_under, ready, within};

const POLICY: &str = "[[provider]]\nid = \"one\"\nauthorized_uris = [\"http://api.example.com/*\"]\n\
                      inject = { header = \"x-key\", value = \"{{access_token}}\" }\n";
const ORGANISATIONS: [&str; 2] = ["acme", "globex"];

/// Requests by the gateway and by the proxy, and without either where that works.
fn script(backend: Backend, name: &str) -> String {
    let at = format!("http://api.example.com/of-{name}");
    let curl = "curl -sS --max-time 20 -o answer -w '%{http_code}\\n'";
    let bare = match backend {
        Backend::Process => String::new(),
        _ => format!("{curl} --noproxy '*' {at}-transparent; "),
    };
    format!(
        "{curl} -H 'X-Provider: one' -H 'X-Target: {at}-gateway' \"$SIDECAR_URL/proxy\"; {curl} {at}-forward; {bare}env"
    )
}

// S0.1, S0.4
#[test]
fn a_run_uses_the_keys_of_its_organisation_and_no_others() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    for backend in Backend::all() {
        let (bench, named) = (Bench::new(), backend.name());
        let world = World::new(&bench);
        let policy = bench.file("outside/policy.toml", POLICY);
        let keys = [Canary::draw(), Canary::draw()];
        for (name, key) in ORGANISATIONS.iter().zip(&keys) {
            let value = bench.file("outside/value", key.text());
            let from = value.to_str().expect("a path that is text");
            let stored = bench.lockgate(&["creds", "set", "one", "--org", name, "--from-file", from]);
            assert!(stored.code == 0, "{stored}");
            std::fs::remove_file(value).expect("a file of this test's");
        }
        let list = format!(r#"[{{"providerId": "one", "apiKey": "{}"}}]"#, keys[0].text());
        let run = |flags: &[&str]| {
            let run = bench.run(backend).caller("SYSTEM_PROVIDER_KEYS", &list).flags(flags);
            run.flags(["--env", "SYSTEM_PROVIDER_KEYS", "--policy"]).flags([&policy]).within(&world)
        };
        for (name, key) in ORGANISATIONS.iter().zip(&keys) {
            let ended = run(&["--org", name]).shell(&script(backend, name));
            let paths = if backend == Backend::Process { 2 } else { 3 };
            assert_eq!(ended.stdout.matches("200\n").count(), paths, "{named}: {ended}");
            assert!(!ended.stdout.contains("SYSTEM_PROVIDER_KEYS"), "{named}: {ended}");
            for other in &keys {
                assert!(!format!("{ended}").contains(other.text()), "{named}: it is told a key: {ended}");
            }
            let mut asked = world.reached(&format!("/of-{name}-"));
            asked.retain(|record| record["event"] == "request");
            let with_it = asked.iter().filter(|record| record.to_string().contains(key.text())).count();
            assert_eq!((asked.len(), with_it), (paths, paths), "{named} of {name}: {asked:?}");
            let record = bench.records(&["runs", "show", "latest", "--json"]);
            assert_eq!(record[0]["org"], *name, "{named}");
        }
        for (flags, remedy) in
            [(&[][..], "creds set one"), (&["--org", "initech"], "creds set one --org initech")]
        {
            let refused = run(flags).command(["true"]);
            let is_named = refused.stderr.lines().any(|line| line.trim_end().ends_with(remedy));
            assert!(refused.code == 2 && is_named, "{named}, expected {remedy}: {refused}");
        }
        for file in files_under(&bench.state()) {
            let bytes = std::fs::read(bench.state().join(&file)).unwrap_or_default();
            for key in &keys {
                assert!(
                    !String::from_utf8_lossy(&bytes).contains(key.text()),
                    "{} holds a key",
                    file.display()
                );
            }
        }
    }
}

// C16
#[test]
fn a_key_that_changed_counts_from_the_next_request_on() {
    const ROUNDS: usize = 4;
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let backend = Backend::isolated();
    let bench = Bench::new();
    let world = World::new(&bench);
    let policy = bench.file("outside/policy.toml", POLICY);
    let keys: Vec<Canary> = (0..ROUNDS).map(|_| Canary::draw()).collect();
    let keep = |key: &Canary| {
        let value = bench.file("outside/value", key.text());
        let stored = bench.lockgate(&[
            "creds",
            "set",
            "one",
            "--from-file",
            value.to_str().expect("a path that is text"),
        ]);
        assert!(stored.code == 0, "{stored}");
    };
    keep(&keys[0]);
    let line = format!(
        "for round in $(seq 0 {ROUNDS}); do until [ -e go-$round ]; do sleep 0.02; done; \
         curl -sS --max-time 20 -o answer -w '%{{http_code}}\\n' http://api.example.com/round-$round; echo >asked-$round; done"
    );
    let run = bench.run(backend).flags(["--policy"]).flags([&policy]).within(&world);
    let live = run.start(["/bin/sh", "-c", &line]);
    let ask = |round: usize| {
        bench.file(format!("workspace/go-{round}"), "");
        let asked = bench.workspace().join(format!("asked-{round}"));
        assert!(within(Backend::patience(30), || asked.exists()), "round {round} was not asked");
    };
    ask(0);
    for (round, key) in keys.iter().enumerate().skip(1) {
        keep(key);
        ask(round);
    }
    let removed = bench.lockgate(&["creds", "rm", "one"]);
    assert!(removed.code == 0, "{removed}");
    ask(ROUNDS);
    let ended = live.wait();
    assert_eq!(ended.stdout.matches("200\n").count(), ROUNDS, "{ended}");
    for (round, key) in keys.iter().enumerate() {
        let mut asked = world.reached(&format!("/round-{round}"));
        asked.retain(|record| record["event"] == "request");
        assert!(asked.len() == 1 && asked[0].to_string().contains(key.text()), "{round}: {asked:?}");
    }
    assert!(world.reached(&format!("/round-{ROUNDS}")).is_empty(), "asked with a key that was removed");
}
