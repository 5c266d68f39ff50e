//! Keys of organisations: a run uses those of the organisation it names, on every path, and no others; the platform's own list of keys is
//! imported into vaults and is nowhere in a run. S1.27; C13, C15, C16.

use std::fs;
use std::process::Command;
use std::time::Duration;

use lockgate_clients::{Canary, Ended, Need, Run, Site, files_below, product, run_to_end};

const NEEDS: &[Need] = &[Need::Program("curl")];
const LIMIT: Duration = Duration::from_secs(120);
const POLICY: &str = "providers = [\"anthropic\"]\n";
const ORGANISATIONS: [&str; 2] = ["acme", "globex"];
/// One request to a model, by both ways of the gateway.
const ASK: &str = r#"
ask() { path=$1; shift; printf '%s=%s\n' "$path" "$(curl -sS -m 20 -o answer -w '%{http_code}' -H 'content-type: application/json' \
    -H 'anthropic-version: 2023-06-01' -d '{"model":"anthropic/claude-sonnet-4-5","max_tokens":10,"messages":[{"role":"user","content":"hi"}]}' "$@")"
    cat answer >> answers; }
ask llm "$SIDECAR_URL/llm/v1/messages"
ask proxy "$SIDECAR_URL/proxy" -H 'X-Provider: anthropic' -H 'X-Target: https://api.anthropic.com/v1/messages'"#;
/// Requests by the proxy and by a connection without either, and what the command can see of its own and other environments.
const LINUX: &str = r#"
ask forward https://api.anthropic.com/v1/messages
ask transparent --noproxy '*' https://api.anthropic.com/v1/messages
cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\0' '\n'; env; cat answers"#;
const PROCESS: &str = "\nenv; cat answers";

/// Runs the product's command line with a variable in the caller's environment.
fn with(site: &Site, name: &str, value: &str, words: &[&str]) -> Ended {
    let mut command: Command = site.world().command(product().expect("`Site` asked first"));
    command.args(words).current_dir(site.workspace()).env("XDG_STATE_HOME", site.state()).env(name, value);
    run_to_end(&mut command, LIMIT)
}

/// Stores a key of an organisation.
fn keep(site: &Site, organisation: &str, provider: &str, key: &Canary) {
    let value = site.file("value", key.text());
    let from = value.to_string_lossy();
    let ended = site.lockgate(&["creds", "set", provider, "--org", organisation, "--from-file", &from]);
    assert!(ended.code == 0 && ended.stderr.contains(&format!("--org {organisation}")), "{ended}");
    fs::remove_file(value).expect("a file of this test's");
}

/// Starts a run with the platform's list in the caller's environment, and asks to pass it on.
fn run(run: &Run<'_>, list: &str, script: &str) -> Ended {
    let mut command =
        run.clone().flags(["--env", "SYSTEM_PROVIDER_KEYS"]).command(&["/bin/sh", "-uc", script]);
    run_to_end(command.env("SYSTEM_PROVIDER_KEYS", list), LIMIT)
}

/// Returns the keys that the model's server received, in order.
fn sent(site: &Site) -> Vec<String> {
    site.requests().iter().map(|it| it.header("x-api-key").unwrap_or_default().to_owned()).collect()
}

#[test]
fn each_run_sends_its_organisations_key_on_every_path_and_nobody_elses() {
    for backend in ["linux", "process"] {
        let Some(site) = Site::for_test(NEEDS) else { return };
        let keys = [Canary::draw(), Canary::draw()];
        let entries = ORGANISATIONS.iter().zip(&keys).map(|(name, key)| {
            format!(r#"{{"id": "of-{name}", "providerId": "anthropic", "apiKey": "{}", "organizations": ["{name}"]}}"#, key.text())
        });
        let list = format!("[{}]", entries.collect::<Vec<_>>().join(","));
        let ended = with(&site, "SYSTEM_PROVIDER_KEYS", &list, &["creds", "import-env"]);
        assert!(ended.code == 0, "{ended}");
        for name in ORGANISATIONS {
            assert!(
                ended.stderr.contains(&format!("anthropic of {name}: taken from SYSTEM_PROVIDER_KEYS")),
                "{ended}"
            );
        }
        keys.iter().for_each(|key| key.is_not_in("what import-env says", format!("{ended}")));

        let (script, paths) = match backend {
            "linux" => (format!("{ASK}{LINUX}"), &["llm", "proxy", "forward", "transparent"][..]),
            // A proxy without a sandbox is used without TLS in this test.
            _ => (format!("{ASK}{PROCESS}"), &["llm", "proxy"][..]),
        };
        let mut expected = Vec::new();
        for (name, key) in ORGANISATIONS.iter().zip(&keys) {
            site.world().expect_key("api.anthropic.com", key.text()).expect("the world's own file");
            let asked = site.run().policy(POLICY).flags(["--backend", backend, "--org", name]);
            let ended = run(&asked, &list, &script);
            for path in paths {
                ended.says(&format!("{path}=200"));
            }
            keys.iter().for_each(|key| key.is_not_in("what a run sees and says", format!("{ended}")));
            assert!(!ended.stdout.contains("SYSTEM_PROVIDER_KEYS"), "{ended}");
            expected.extend(paths.iter().map(|_| key.text().to_owned()));
            assert_eq!(sent(&site), expected, "{backend} of {name}");

            let record = site.lockgate(&["runs", "show", "latest", "--json"]);
            let record: serde_json::Value = serde_json::from_str(&record.stdout).expect("a record");
            assert_eq!(record["org"], *name, "{record}");
            site.lockgate(&["runs", "show", "latest"]).says(&format!("org        {name}"));
        }
        for file in
            [site.state(), site.outside(), site.workspace()].iter().flat_map(|folder| files_below(folder))
        {
            for key in &keys {
                key.is_not_in(&file.display().to_string(), fs::read(&file).unwrap_or_default());
            }
        }
        // The controls: the audits exist, and each names the target.
        let audits = files_below(&site.state().join("lockgate/audit"));
        let asked = |path| fs::read_to_string(path).is_ok_and(|text| text.contains("api.anthropic.com"));
        assert_eq!(audits.iter().filter(|path| asked(*path)).count(), 2, "{audits:?}");
    }
}

#[test]
fn the_platforms_list_is_in_no_memory_of_a_run_that_others_can_read() {
    // C13: neither of the process that was started, nor of those forked from it.
    let Some(site) = Site::for_test(&[Need::Program("curl"), Need::Program("pgrep")]) else { return };
    let key = Canary::draw();
    keep(&site, "acme", "anthropic", &key);
    let list = format!(r#"[{{"providerId": "anthropic", "apiKey": "{}"}}]"#, key.text());
    let (list, policy) = (site.file("list", list), site.file("policy.toml", POLICY));
    let with_key = format!("--org acme --policy {}", policy.display());
    for flags in [with_key.as_str(), "--no-project --allow api.example.com"] {
        let script = format!(
            r#"
            rm -f going done
            SYSTEM_PROVIDER_KEYS=$(cat "$LIST") "$PRODUCT" run {flags} -- sh -c 'touch going; until [ -e done ]; do sleep 0.02; done' & run=$!
            await '[ -e going ]'
            for process in $run $(pgrep -P $run); do echo "of $process"; cat /proc/$process/environ; done | tr '\0' '\n'
            touch done; wait $run; echo "run=$?""#
        );
        let ended = site.shell().with("LIST", &list).within(LIMIT).run(&script);
        ended.says("run=0");
        // The control: environments were read, and the variable's name is visible.
        assert!(ended.stdout.matches("of ").count() >= 3, "{ended}");
        assert!(ended.stdout.contains("SYSTEM_PROVIDER_KEYS=\n"), "{ended}");
        key.is_not_in("what could be seen", format!("{ended}"));
    }
}

#[test]
fn there_is_no_way_from_one_vault_to_another() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let (key, own) = (Canary::draw(), Canary::draw());
    keep(&site, "acme", "anthropic", &key);
    let refused = |organisation: Option<&str>, remedy: &str| {
        let flags: Vec<&str> = organisation.iter().flat_map(|name| ["--org", name]).collect();
        let ended = site.run().policy(POLICY).flags(flags).script("true");
        assert!(ended.code == 2 && ended.stderr.contains("`anthropic`"), "{organisation:?}: {ended}");
        let said = ended.stderr.lines().any(|line| line.trim_end().ends_with(remedy));
        assert!(said, "{organisation:?}, expected {remedy}: {ended}");
        key.is_not_in("a refusal", format!("{ended}"));
    };
    // Neither the caller's own key nor an organisation's.
    refused(None, "lockgate creds set anthropic");
    refused(Some("globex"), "lockgate creds set anthropic --org globex");
    site.keep("anthropic", "access_token", own.text());
    refused(Some("globex"), "lockgate creds set anthropic --org globex");
    // Another organisation's vault file is useless here, even when it is moved into place.
    let vault = |name: &str| site.state().join(format!("lockgate/organisations/{name}/vault"));
    fs::create_dir_all(vault("globex")).expect("a folder of this test's");
    fs::copy(vault("acme").join("anthropic.json"), vault("globex").join("anthropic.json")).expect("a record");
    let moved = site.run().policy(POLICY).flags(["--org", "globex"]).script(ASK);
    assert!(moved.stdout.contains("proxy=502"), "{moved}");
    assert!(site.requests().is_empty(), "{:?}", site.requests());

    site.world().expect_key("api.anthropic.com", own.text()).expect("the world's own file");
    let ended = site.run().policy(POLICY).script(ASK);
    assert!(ended.stdout.contains("proxy=200"), "{ended}");
    assert!(sent(&site).iter().all(|sent| sent == own.text()), "{:?}", sent(&site));

    // The contents that each vault lists.
    for (flags, other) in
        [(&["--org", "acme"][..], "no such"), (&["--org", "initech"], "acme"), (&[], "acme")]
    {
        let listed = site.lockgate(&[&["creds", "ls", "-q"], flags].concat());
        let expected = if flags.contains(&"initech") { "" } else { "anthropic\n" };
        assert!(listed.code == 0 && listed.stdout == expected && !listed.stderr.contains(other), "{listed}");
    }
    assert!(!site.state().join("lockgate/organisations/initech").exists(), "a list makes nothing");
    assert_eq!(site.lockgate(&["creds", "rm", "anthropic", "--org", "acme"]).code, 0);
    refused(Some("acme"), "lockgate creds set anthropic --org acme");
    assert_eq!(site.lockgate(&["creds", "show", "anthropic"]).code, 0, "the person's own is not acme's");
}

#[test]
fn what_changes_in_its_vault_counts_and_in_others_does_not() {
    // C16: by a sidecar alone, whose policy names the organisation.
    let Some(site) = Site::for_test(NEEDS) else { return };
    let policy = r#"org = "acme"
[[provider]]
id = "one"
authorized_uris = ["https://protocols.example/*"]
inject = { header = "authorization", value = "Bearer {{access_token}}" }
"#;
    let keys = [Canary::draw(), Canary::draw(), Canary::draw()];
    let [first, second, own] = &keys;
    keep(&site, "acme", "one", first);
    let (next, mine) = (site.file("next", second.text()), site.file("mine", own.text()));
    let left = site.beside(policy).script(&format!(
        r#"both() {{ code $1-via via "https://protocols.example/$1"; code $1-gate proxy "https://protocols.example/$1" one; }}
        both first
        "$PRODUCT" creds set one --from-file {mine} 2>/dev/null; both still
        "$PRODUCT" creds set one --org acme --from-file {next} 2>/dev/null; both second
        "$PRODUCT" creds rm one --org acme; both gone
        printf 'why=%s\n' "$(via https://protocols.example/why | tr -d '\n')""#,
        mine = mine.display(),
        next = next.display()
    ));
    for step in ["first", "still", "second"] {
        assert_eq!(
            [left.said(&format!("{step}-via")), left.said(&format!("{step}-gate"))],
            ["200"; 2],
            "{step}"
        );
    }
    assert_eq!([left.said("gone-via"), left.said("gone-gate")], ["502"; 2], "{}", left.ended);
    assert!(left.said("why").contains("lockgate creds set one --org acme"), "{}", left.ended);
    let sent: Vec<_> =
        site.requests().iter().map(|it| it.header("authorization").unwrap_or_default().to_owned()).collect();
    let (one, two) = (format!("Bearer {}", first.text()), format!("Bearer {}", second.text()));
    assert_eq!(sent, [&one, &one, &one, &one, &two, &two].map(String::clone));
    let told = format!("{}{}{:?}", left.ended, left.words(), left.audit());
    keys.iter().for_each(|key| key.is_not_in("what was said and recorded", &told));

    // With a platform, the platform decides whose keys are used.
    let beside = site.beside(policy).with("CONFIG_SECRET", "x").attempt("true");
    assert!(
        beside.words().contains("`acme`") && beside.words().contains("CONFIG_SECRET"),
        "{}",
        beside.words()
    );
}

#[test]
fn whose_keys_is_said_by_flag_file_or_variable_in_this_order() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let show = |words: &[&str]| {
        with(&site, "LOCKGATE_ORG", "shell", &[&["config", "show", "--origin"], words].concat())
    };
    show(&[]).says("org = \"shell\"  # LOCKGATE_ORG");
    fs::write(site.workspace().join("lockgate.toml"), "org = \"acme\"\n").expect("room");
    show(&[]).says("org = \"acme\"  # lockgate.toml");
    show(&["--org", "globex"]).says("org = \"globex\"  # command line");
    // The project's file came with a clone.
    let ended = site.run().script("true");
    assert!(ended.code == 2 && ended.stderr.contains("lockgate.toml: org"), "{ended}");
    let bad = site.run().flags(["--no-project", "--org", "../acme"]).script("true");
    assert!(bad.code == 2 && bad.stderr.contains("an organisation is named in"), "{bad}");
    let bad = with(&site, "LOCKGATE_ORG", "A", &["run", "--no-project", "--", "true"]);
    assert!(bad.code == 2 && bad.stderr.contains("LOCKGATE_ORG: org"), "{bad}");
    let bad = site.lockgate(&["creds", "ls", "--org", "a/b"]);
    assert!(bad.code == 2 && bad.stderr.contains("an organisation is named in"), "{bad}");
    assert!(!site.state().join("lockgate/organisations").exists(), "none of these makes a place for keys");
}

#[test]
fn a_platforms_list_is_taken_whole_or_not_at_all_and_nothing_of_it_is_told() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let keys = [Canary::draw(), Canary::draw(), Canary::draw()];
    let [one, two, three] = keys.each_ref().map(Canary::text);
    let import = |list: &str, words: &[&str]| {
        let ended = with(&site, "SYSTEM_PROVIDER_KEYS", list, &[&["creds", "import-env"], words].concat());
        keys.iter().for_each(|key| key.is_not_in("what import-env says", format!("{ended}")));
        ended
    };
    let held = |flags: &[&str]| site.lockgate(&[&["creds", "ls", "-q"], flags].concat()).stdout;

    let wrong = format!(
        r#"[{{"providerId": "openai", "apiKey": "{one}"}}, {{"providerId": "exa", "apiKey": "{two}", "organizations": ["No"]}}]"#
    );
    let ended = import(&wrong, &[]);
    assert!(ended.code == 2 && ended.stderr.contains("entry 2: `organizations[0]`"), "{ended}");
    assert!(import(&format!("[{{\"apiKey\": \"{one}\"]"), &[]).stderr.contains("it is not JSON"));
    assert_eq!(held(&[]), "");

    let list = format!(
        r#"[{{"id": "a", "label": "A", "providerId": "anthropic", "apiKey": "{one}", "organizations": ["acme", "globex"], "models": []}},
            {{"id": "b", "providerId": "openai", "apiKey": "{two}"}},
            {{"id": "c", "providerId": "exa", "apiKey": "{three}", "organizations": ["globex"]}}]"#
    );
    let none = import(&list, &["--org", "initech"]);
    assert!(none.code == 2 && none.stderr.contains("no key of `initech`"), "{none}");
    let some = import(&list, &["SYSTEM_PROVIDER_KEYS", "--org", "acme"]);
    assert!(some.code == 0 && some.stderr.contains("3 left where they are"), "{some}");
    assert_eq!([held(&["--org", "acme"]), held(&["--org", "globex"]), held(&[])], ["anthropic\n", "", ""]);
    let all = import(&list, &[]);
    assert!(all.code == 0 && all.stderr.contains("left out `label`, `models`"), "{all}");
    let held = [held(&["--org", "acme"]), held(&["--org", "globex"]), held(&[])];
    assert_eq!(held, ["anthropic\n", "anthropic\nexa\n", "openai\n"]);

    // Two keys for one place are too many.
    let mut command = site.world().command(product().expect("`Site` asked first"));
    command.args(["creds", "import-env"]).env("XDG_STATE_HOME", site.state());
    let rivals = run_to_end(command.env("SYSTEM_PROVIDER_KEYS", &list).env("OPENAI_API_KEY", three), LIMIT);
    assert!(rivals.code == 2 && rivals.stderr.contains("both hold a key of openai"), "{rivals}");
}

#[test]
fn the_keys_of_all_vaults_are_rotated() {
    // S1.18
    let Some(site) = Site::for_test(NEEDS) else { return };
    let (old, new) = ("1".repeat(64), "2".repeat(64));
    let with = |keys: &str, words: &[&str]| with(&site, "CONNECTION_ENCRYPTION_KEY", keys, words);
    let value = site.file("value", Canary::draw().text());
    let value = value.to_string_lossy();
    for flags in [&[][..], &["--org", "acme"], &["--org", "globex"]] {
        let ended = with(&old, &[&["creds", "set", "one", "--from-file", &value], flags].concat());
        assert_eq!(ended.code, 0, "{ended}");
    }
    let both = format!("{new},{old}");
    with(&both, &["keys", "rotate"]).says("3 rewrapped, 0 already up to date");
    with(&both, &["keys", "rotate"]).says("0 rewrapped, 3 already up to date");
    for flags in [&[][..], &["--org", "acme"], &["--org", "globex"]] {
        let shown = with(&new, &[&["creds", "show", "one"], flags].concat());
        assert!(shown.code == 0 && shown.stdout.contains("40 octets"), "{flags:?}: {shown}");
    }
    // A record that cannot be rewritten is named with its organisation.
    fs::write(site.state().join("lockgate/organisations/acme/vault/one.json"), "{}").expect("room");
    let ended = with(&both, &["keys", "rotate", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert!(ended.code == 1 && told["already"] == 2 && told["failed"][0]["org"] == "acme", "{ended}");
}
