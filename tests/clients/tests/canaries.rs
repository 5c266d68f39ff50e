//! After a busy run the credential is nowhere but where it was sent: not inside the sandbox, not in what the run leaves, not in what other
//! users of the machine can see of the sidecar, not in the vault's files.
//! S0.7, S0.31, S0.35, S0.52, S1.2, S1.18, S1.20; C13, C14, C16.

use std::fs;
use std::process::Command;
use std::time::Duration;

use lockgate_clients::{Canary, Ended, Need, Site, files_below, product, run_to_end};

const NEEDS: &[Need] = &[Need::Program("curl"), Need::Program("pgrep")];
const POLICY: &str = r#"
[[provider]]
id = "one"
authorized_uris = ["https://protocols.example/*", "http://protocols.example/*", "https://expired.tls.example/*"]
env = ["ONE_TOKEN", "ONE_KEY"]
inject = { header = "authorization", value = "Bearer {{access_token}}" }
placeholders = "anywhere"
"#;
/// Requests of every kind, with the answers in the workspace; the last one is still in progress when the script ends.
const BUSY: &str = r#"
for form in plain base64 hex percent json gzip deflate br chunks1 header www-authenticate set-cookie location early-hints; do
    for version in --http1.1 --http2; do curl -sSi $version "https://protocols.example/echo-auth?as=$form" >> answers; done
    curl -sSi "http://protocols.example/echo-auth?as=$form" >> answers
    curl -sSi --noproxy '*' "https://protocols.example/echo-auth?as=$form&status=500" >> answers
    curl -sSi "$SIDECAR_URL/proxy" -H 'X-Provider: one' -H "X-Target: https://protocols.example/echo-auth?as=$form" >> answers
done
curl -sSi "$SIDECAR_URL/proxy" -H 'X-Provider: one' -H 'X-Target: https://protocols.example/{{access_token}}?x={{nope}}' >> answers
curl -sSi "$SIDECAR_URL/proxy" -H 'X-Provider: one' -H 'X-Target: https://protocols.example/{{access_token}}' >> answers
curl -sSi -H "X-Key: $ONE_TOKEN" "https://protocols.example/echo?key=$ONE_KEY" >> answers
curl -sSi https://expired.tls.example/ >> answers
curl -sSi -X TRACE https://protocols.example/ >> answers
curl -sSi -H "X-Key: $ONE_TOKEN" http://www.example.org/ >> answers || true
curl -sSi -u "me:$ONE_TOKEN" https://protocols.example/redirect?to=/echo -L >> answers
env; cat /proc/self/environ; cat /proc/*/environ /proc/*/cmdline /proc/*/maps 2>/dev/null | tr '\0' '\n'
"#;

/// Runs a script of the caller's, who has the policy as `$POLICY`.
fn with_policy(site: &Site, script: &str) -> Ended {
    let shell = site.shell().with("POLICY", site.file("canaries.toml", POLICY));
    shell.within(Duration::from_secs(120)).run(script)
}

#[test]
fn nothing_inside_or_left_behind_holds_it() {
    // C13, C14
    for site in Site::for_everyone(NEEDS) {
        let Some(probe) = site.probe() else { return };
        let canary = Canary::draw();
        site.keep("one", "access_token", canary.text());
        let (masked, probe) = (canary.masked(), probe.display().to_string());
        let places = "/tmp /home /root /run /dev /var /etc /opt /srv /mnt /.lockgate-etc";
        let walk = format!("echo; {probe} walk-for {masked} everyone \"$PWD\" {places} || true");
        // The control: a planted value is found.
        fs::write(site.workspace().join("planted"), canary.text()).expect("room");
        let control = site.run().script(&format!("{probe} walk-for {masked} \"$PWD\""));
        fs::remove_file(site.workspace().join("planted")).expect("it was planted");
        control.says("\"outcome\":\"done\"");

        let ended = site.run().policy(POLICY).script(&format!("set +e\n{BUSY}{walk}"));
        assert!(
            ended.stdout.contains("\"outcome\":\"absent\"") && ended.stdout.contains("ONE_KEY=lgph_"),
            "{ended}"
        );
        canary.is_not_in("stdout", &ended.stdout);
        canary.is_not_in("stderr", &ended.stderr);
        let answers = fs::read_to_string(site.workspace().join("answers")).expect("answers");
        canary.is_not_in("an answer", &answers);
        assert!(
            answers.matches("HTTP/").count() > 80 && answers.matches(&"*".repeat(20)).count() > 50,
            "{answers}"
        );
        // The credential was sent where it belongs.
        let sent = format!("Bearer {}", canary.text());
        let got = site.requests().iter().filter(|r| r.header("authorization") == Some(&sent)).count();
        assert!(got >= 60, "{got}");

        let mut looked = 0;
        for file in files_below(&site.state())
            .into_iter()
            .chain(files_below(&site.outside()))
            .chain(files_below(&site.workspace()))
        {
            canary.is_not_in(&file.display().to_string(), fs::read(&file).unwrap_or_default());
            looked += 1;
        }
        assert!(looked > 5, "{looked} files");
        for words in [
            &["runs", "ls", "--json"][..],
            &["runs", "show", "latest", "--json"],
            &["audit", "show", "latest", "--json"],
            &["audit", "verify", "latest"],
            &["creds", "ls", "--json"],
            &["creds", "show", "one"],
            &["creds", "show", "one", "--json"],
        ] {
            let told = site.lockgate(words);
            assert!(told.code == 0 && !told.stdout.is_empty() || words[1] == "verify", "{words:?}: {told}");
            canary.is_not_in(&format!("{words:?}"), format!("{told}"));
        }
        // S1.18: the vault exists and is unreadable.
        let vault = files_below(&site.state().join("lockgate/vault"));
        assert!(!vault.is_empty(), "there is no vault");
        for file in vault {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(&file).expect("a file").permissions().mode();
            assert_eq!(mode & 0o077, 0, "{} may be read by others", file.display());
        }
    }
}

#[test]
fn others_see_nothing_of_it_in_the_sidecar() {
    // C13: the sidecar's environment, command line and open files; its memory can be neither read nor dumped.
    for site in Site::for_everyone(NEEDS) {
        let canary = Canary::draw();
        site.keep("one", "access_token", canary.text());
        let ended = with_policy(
            &site,
            r#"
            "$PRODUCT" run --policy "$POLICY" -- sh -c 'curl -sSf -o /dev/null https://protocols.example/one; touch going; until [ -e done ]; do sleep 0.02; done; echo inside=$(ls /proc | grep -c "^[0-9]")' & run=$!
            await '[ -e going ]'
            depth() { grep '^NSpid:' "/proc/$1/status" | wc -w; }
            for child in $(pgrep -P $run); do
                if [ "$(depth $child)" -eq "$(depth $$)" ]; then sidecar=$child; fi
            done
            for process in $sidecar $run $(pgrep -P $run); do
                cat /proc/$process/cmdline; cat /proc/$process/environ 2>&1; ls -l /proc/$process/fd 2>&1; cat /proc/$process/maps 2>&1; cat /proc/$process/status; done | tr '\0' '\n'
            echo "core=$(sed -n 's/^Max core file size *\([0-9a-z]*\) .*/\1/p' /proc/$sidecar/limits)"
            [ "$(stat -c %u /proc/$sidecar/environ)" -ne "$(id -u)" ] || [ $(id -u) -eq 0 ] || echo "environ can be read by its owner"
            kill -0 $sidecar && echo alive
            if [ $(id -u) -ne 0 ]; then
                head -c 1 /proc/$sidecar/environ >/dev/null 2>&1 && echo "environ can be read"
                dd if=/proc/$sidecar/mem of=/dev/null bs=1 count=1 >/dev/null 2>&1 && echo "memory can be read"
                ls /proc/$sidecar/fd >/dev/null 2>&1 && echo "files can be listed"
            fi
            touch done; wait $run; echo "run=$?""#,
        );
        ended.says("run=0");
        assert!(ended.stdout.contains("alive"), "{ended}");
        canary.is_not_in("what could be seen", format!("{ended}"));
        assert!(!ended.stdout.contains("can be read") && !ended.stdout.contains("can be listed"), "{ended}");
        assert!(ended.stdout.contains("core=0"), "{ended}");
        assert_eq!(
            site.requests()[0].header("authorization"),
            Some(format!("Bearer {}", canary.text()).as_str())
        );
    }
}

#[test]
fn what_is_set_or_removed_counts_from_the_next_request() {
    // C16: during a run, on a kept connection, and after a refusal.
    for site in Site::for_everyone(NEEDS) {
        let (first, second) = (Canary::draw(), Canary::draw());
        site.keep("one", "access_token", first.text());
        let value = site.file("second", second.text());
        let inside = r#"
            ask() { curl -sS -o body -w "%{http_code}\n" "https://protocols.example/$1" > "$1.new"; mv "$1.new" "$1"; }
            step() { until [ -e "go-$1" ]; do sleep 0.02; done; ask "$1"; }
            ask first; step second; step removed; step again; cat first second removed again | tr "\n" " ""#;
        fs::write(site.workspace().join("inside.sh"), inside).expect("room");
        let script = format!(
            r#"
            "$PRODUCT" run --policy "$POLICY" -- sh inside.sh & run=$!
            await '[ -e first ]'; "$PRODUCT" creds set one --from-file {0} >/dev/null; touch go-second
            await '[ -e second ]'; "$PRODUCT" creds rm one >/dev/null; touch go-removed
            await '[ -e removed ]'; cat body; "$PRODUCT" creds set one --from-file {0} >/dev/null; touch go-again
            wait $run; echo "run=$?""#,
            value.display()
        );
        let ended = with_policy(&site, &script);
        ended.says("200 200 502 200 run=0");
        assert!(
            ended.stdout.contains("creds set one") && ended.stdout.contains("credential_unavailable"),
            "{ended}"
        );
        let keys: Vec<String> = site
            .requests()
            .iter()
            .map(|r| r.header("authorization").unwrap_or_default().to_owned())
            .collect();
        let (one, two) = (format!("Bearer {}", first.text()), format!("Bearer {}", second.text()));
        assert_eq!(keys, [one, two.clone(), two]);
        for canary in [&first, &second] {
            canary.is_not_in("what was said", format!("{ended}"));
        }
    }
}

#[test]
fn a_vault_that_was_tampered_with_gives_nothing() {
    // S1.18, S1.20: another provider's file in its place, a changed octet, another key.
    let Some(site) = Site::for_test(NEEDS) else { return };
    let canary = Canary::draw();
    let other = Canary::draw();
    site.keep("one", "access_token", canary.text());
    site.keep("other", "access_token", other.text());
    let vault = site.state().join("lockgate/vault");
    let of = |id: &str| {
        let found = files_below(&vault)
            .into_iter()
            .find(|path| path.to_string_lossy().contains(id) && fs::read(path).is_ok_and(|o| o.len() > 60));
        found.unwrap_or_else(|| panic!("no file for {id}: {:?}", files_below(&vault)))
    };
    let (one, swapped) = (of("one"), of("other"));
    let kept = fs::read(&one).expect("a file of the vault");
    let mut damaged = kept.clone();
    let at = damaged.len() - 20;
    damaged[at] = if damaged[at] == b'A' { b'B' } else { b'A' };
    for (what, content) in
        [("another's", fs::read(&swapped).expect("a file")), ("damaged", damaged), ("empty", Vec::new())]
    {
        fs::write(&one, content).expect("a file of the vault");
        let left = site.beside(POLICY).script(
            "code it via https://protocols.example/x; code gate proxy https://protocols.example/x one",
        );
        assert!(
            left.said("it").starts_with('5') && left.said("gate").starts_with('5'),
            "{what}: {}",
            left.ended
        );
    }
    fs::write(&one, kept).expect("a file of the vault");
    let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let left = site
        .beside(POLICY)
        .with("CONNECTION_ENCRYPTION_KEY", key)
        .script("code it via https://protocols.example/x");
    assert!(left.said("it").starts_with('5'), "{}", left.ended);
    assert!(site.requests().is_empty(), "{:?}", site.requests());
    let left = site.beside(POLICY).script("code it via https://protocols.example/x");
    assert_eq!(left.said("it"), "200", "{}", left.ended);
    assert_eq!(
        site.requests()[0].header("authorization"),
        Some(format!("Bearer {}", canary.text()).as_str())
    );
}

#[test]
fn a_sidecar_alone_is_shut_in_as_well() {
    for site in Site::for_everyone(NEEDS) {
        let ended = with_policy(
            &site,
            r#"
            "$PRODUCT" sidecar --policy "$POLICY" --forward 127.0.0.1:7083 --ca "$OUTSIDE/ca.pem" --env-file "$OUTSIDE/env" 2>"$OUTSIDE/err" & sidecar=$!
            complaints=$OUTSIDE/err; await 'grep -q "proxy at" "$OUTSIDE/err"'
            for child in $(pgrep -P $sidecar); do
                grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/$child/status
                head -c 1 /proc/$child/environ 2>&1 | wc -c
            done
            kill $sidecar; wait $sidecar; echo ended=$?"#,
        );
        let said: String = ended.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            said.contains("CapEff: 0000000000000000")
                && said.contains("NoNewPrivs: 1")
                && said.contains("Seccomp: 2")
                && said.ends_with("ended=0"),
            "{ended}"
        );
    }
}

#[test]
fn a_command_that_prints_a_credential_is_not_told_what_only_the_product_is() {
    let Some(site) = Site::for_test(&[]) else { return };
    let (keys, secret) = ("1".repeat(64), Canary::draw());
    let own = [
        ("CONNECTION_ENCRYPTION_KEY", keys.clone()),
        ("PROXY_URL", format!("http://me:{}@proxy.example:3128", secret.text())),
        ("SYSTEM_PROVIDER_KEYS", "[]".to_owned()),
        ("SYSTEM_PROXIES", "[]".to_owned()),
        ("RUN_TOKEN", secret.text().to_owned()),
        ("CONFIG_SECRET", secret.text().to_owned()),
    ];
    let set = |name: &str| {
        let script = format!("printf '%s' \"${{{name}}}x\"");
        let mut command = Command::new(product().expect("`Site` asked first"));
        command.args(["creds", "set", "one", "--from-command", "/bin/sh", "-c", &script]);
        command.env("XDG_STATE_HOME", site.state()).envs(own.clone()).env("THEIRS", "yes");
        let ended = run_to_end(&mut command, Duration::from_secs(10));
        assert_eq!(ended.code, 0, "{ended}");
        let mut command = Command::new(product().expect("`Site` asked first"));
        command.args(["creds", "show", "one"]).env("XDG_STATE_HOME", site.state());
        let shown = run_to_end(command.env("CONNECTION_ENCRYPTION_KEY", &keys), Duration::from_secs(10));
        assert_eq!(shown.code, 0, "{shown}");
        shown.stdout
    };
    for (name, _) in &own {
        let shown = set(name);
        assert!(shown.contains(" 1 octets"), "{name}: {shown}");
    }
    // The control: any other variable is passed on.
    let shown = set("THEIRS");
    assert!(shown.contains(" 4 octets"), "{shown}");
}
