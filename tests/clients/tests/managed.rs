//! The machine's managed policy, `/etc/lockgate/policy.toml`: what it says bounds the caller's own file, an approved project's, and flags.
//! It lies in a copy of `/etc` that only this test's processes see.

use std::time::Duration;

use lockgate_clients::{Ended, Need, Site, product, run_to_end};

const NEEDS: &[Need] =
    &[Need::Root, Need::Program("curl"), Need::Program("python3"), Need::Program("unshare")];
/// Wide open, and long.
const OWN: &str = r#"
timeout = "10m"
limits.pids = 400
[[egress.allow]]
host = "api.example.com"
[[egress.allow]]
host = "www.example.org"
"#;
const PROJECT: &str = "[[egress.allow]]\nhost = \"files.example.com\"\n";
/// Prints the status of a request to each host, 000 for a tunnel that is refused.
const REACH: &str = r#"for to in api.example.com/v1/x api.example.com/v2/x www.example.org/x files.example.com/x protocols.example/x; do
    printf '%s=%s\n' $to "$(curl -sS -o /dev/null -w '%{http_code}' https://$to)"; done"#;

/// Runs a script in the workspace, where it finds `lockgate`, with this managed policy, or with none.
fn machine(site: &Site, managed: Option<&str>, script: &str) -> Ended {
    let own = site.outside().join("config/lockgate");
    std::fs::create_dir_all(&own).expect("room");
    std::fs::write(own.join("config.toml"), OWN).expect("room");
    std::fs::write(site.workspace().join("lockgate.toml"), PROJECT).expect("room");
    let policy = managed.map(|text| site.file("managed.toml", text));
    let make =
        policy.map(|path| format!("mkdir etc/lockgate; cp '{}' etc/lockgate/policy.toml", path.display()));
    let script = format!(
        r#"cd "$OUTSIDE"; mkdir -p etc; mount -t tmpfs none etc; cp -a /etc/. etc; {}
        mount --bind etc /etc; cd "$WORK"; lockgate() {{ "$PRODUCT" "$@"; }}
        lockgate policy approve >/dev/null || exit 9
        {script}"#,
        make.unwrap_or_default()
    );
    let mut command = site.world().command("unshare");
    command
        .args(["--mount", "sh", "-uc", &script])
        .env("OUTSIDE", site.outside())
        .env("WORK", site.workspace());
    command.env("PRODUCT", product().expect("`Site` asked first")).env("XDG_STATE_HOME", site.state());
    command.env("XDG_CONFIG_HOME", site.outside().join("config"));
    run_to_end(&mut command, Duration::from_secs(90))
}

#[test]
fn what_it_does_not_allow_stays_closed() {
    let managed = "[[egress.allow]]\nurl = \"https://api.example.com/v1/*\"\n[[egress.allow]]\nhost = \"*.example.org\"\n\
                   [[egress.deny]]\nhost = \"www.example.org\"\n[[egress.allow]]\nhost = \"sub.example.com\"\n";
    let open = [
        "api.example.com/v1/x=200",
        "api.example.com/v2/x=200",
        "www.example.org/x=200",
        "files.example.com/x=200",
        "protocols.example/x=200",
    ];
    let bounded = [
        "api.example.com/v1/x=200",
        "api.example.com/v2/x=403",
        "www.example.org/x=000",
        "files.example.com/x=000",
        "protocols.example/x=000",
    ];
    for (managed, wanted) in [(None, open), (Some(managed), bounded)] {
        let Some(site) = Site::for_test(NEEDS) else { return };
        let ended = machine(
            &site,
            managed,
            &format!("lockgate run --allow protocols.example -- sh -c '{}'", REACH.replace('\'', r"'\''")),
        );
        assert_eq!(ended.stdout.lines().collect::<Vec<_>>(), wanted, "{ended}");
        let named = ended.stderr.matches("managed_policy").count();
        assert!(managed.is_none() && named == 0 || named >= 3, "{ended}");
        let arrived = wanted.iter().filter(|line| line.ends_with("200")).count();
        assert_eq!(site.requests().len(), arrived, "{:?}", site.requests());
    }
}

#[test]
fn its_limits_and_its_time_are_the_most_there_is() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let forks = "import os, time\nn = 0\ntry:\n    while n < 100:\n        if os.fork() == 0: time.sleep(3); os._exit(0)\n        n += 1\nexcept OSError: pass\nprint(\"forks=%d\" % (n // 10 * 10))";
    let script = format!(
        r#"lockgate run --pids 300 -- /usr/bin/python3 -c '{forks}'
        lockgate run --timeout 9m -- sleep 60; echo "code=$?""#
    );
    let ended = machine(&site, Some("timeout = \"4s\"\nlimits.pids = 40\n"), &script);
    assert!(["forks=20\ncode=124\n", "forks=30\ncode=124\n"].contains(&ended.stdout.as_str()), "{ended}");
    for told in ["the ceiling is `timeout` in", "timed out after 4s; `timeout` in"] {
        assert!(ended.stderr.contains(&format!("{told} /etc/lockgate/policy.toml")), "{ended}");
    }
    assert!(ended.took < Duration::from_secs(40), "{ended}");
    let ended = machine(&site, None, &script.replace("9m", "1s"));
    assert_eq!(ended.stdout, "forks=100\ncode=124\n", "{ended}");
}

#[test]
fn its_backend_is_the_only_one() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let script = r#"lockgate run --backend process -- echo ran; echo "code=$?"; lockgate run -- echo own"#;
    let ended = machine(&site, Some("backend = \"linux\"\n"), script);
    assert!(!ended.stdout.contains("ran\n") && ended.stdout.ends_with("own\n"), "{ended}");
    assert!(
        !ended.stdout.contains("code=0") && ended.stderr.contains("/etc/lockgate/policy.toml"),
        "{ended}"
    );
    let ended = machine(&site, None, script);
    assert!(ended.stdout.starts_with("ran\ncode=0\n"), "{ended}");
}
