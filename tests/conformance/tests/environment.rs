//! Promise: nothing of the caller's environment enters but what is named; what the run needs is set.
//! S0.16, S0.17, S0.22, S1.12, S1.13; C14; both backends.

use std::process::Command;

use lockgate_conformance::{Backend, Bench, Canary, Needs, Seen, is_root, ready, run};

/// Variables of the caller's: those that hold a secret here, and others that lead somewhere.
const SECRET: [&str; 3] = ["AWS_SECRET_ACCESS_KEY", "LD_PRELOAD_HINT", "RUN_TOKEN"];
const PLAIN: [(&str, &str); 2] =
    [("SSH_AUTH_SOCK", "/run/agent.sock"), ("PLATFORM_API_URL", "http://platform.example")];

#[test]
fn the_callers_environment_stays_outside() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let (secret, named) = (Canary::draw(), Canary::draw());
    let mut free = Command::new(bench.probe());
    free.arg("environment").envs(SECRET.map(|name| (name, secret.text()))).envs(PLAIN);
    let control = Seen::only(&run(free.env("XDG_STATE_HOME", bench.state())));
    let passed = |name: &str, value: &str| control.text(name) == value;
    assert!(SECRET.iter().all(|name| passed(name, secret.text())), "{control}");
    assert!(PLAIN.iter().all(|(name, value)| passed(name, value)), "{control}");
    assert!(passed("XDG_STATE_HOME", bench.state().to_str().unwrap()), "{control}");
    for backend in Backend::all() {
        let run = bench.run(backend);
        let run = SECRET.iter().fold(run, |run, name| run.caller(name, secret.text()));
        let run = PLAIN.iter().fold(run, |run, (name, value)| run.caller(name, value));
        let run = run.caller("NAMED", named.text()).flags(["--env", "NAMED", "--env", "GIVEN=value"]);
        let seen = run.probe(&["environment"]);
        let text = seen.detail().to_string();
        assert!(!text.contains(secret.text()), "{}: {seen}", backend.name());
        for absent in SECRET.iter().chain(PLAIN.iter().map(|(name, _)| name)).chain(&["XDG_STATE_HOME"]) {
            assert!(seen.detail().get(absent).is_none(), "{absent} is set under {}: {seen}", backend.name());
        }
        assert_eq!(seen.text("NAMED"), named.text());
        assert_eq!(seen.text("GIVEN"), "value");
        assert_eq!(seen.text("LOCKGATE"), "1");
        assert!(!seen.text("LOCKGATE_RUN_ID").is_empty());
        // S0.16: the sidecar has a name wherever the run has a network of its own; under `process` it has a port of this machine's.
        let is_at = |variable: &str, port: u16| match backend {
            Backend::Process => {
                let port = seen.text(variable).strip_prefix("http://127.0.0.1:");
                port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port != 0))
            }
            _ => seen.text(variable) == format!("http://sidecar:{port}"),
        };
        for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
            assert!(is_at(proxy, 8081), "{proxy} under {}: {seen}", backend.name());
        }
        assert!(is_at("SIDECAR_URL", 8080), "S0.17 under {}: {seen}", backend.name());
        assert_ne!(seen.text("SIDECAR_URL"), seen.text("HTTP_PROXY"), "{}", backend.name());
        for direct in ["NO_PROXY", "no_proxy"] {
            let own = match backend {
                Backend::Process => "localhost,127.0.0.1,::1,sidecar",
                _ => "localhost,127.0.0.1,::1,0.0.0.0,lockgate,sidecar",
            };
            assert_eq!(seen.text(direct), own, "{}", backend.name());
        }
    }
}

#[test]
fn who_watches_a_plain_command_cannot_be_read() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let line =
        "cat /proc/$$/environ > /dev/null && echo own; cat /proc/$PPID/environ > /dev/null 2>&1 && echo its";
    let seen = bench.run(Backend::Process).shell(line);
    // Root may read every process, unless it lacks the capability, as in a container.
    let is_let = is_root() && seen.stdout == "own\nits\n";
    assert!(seen.stdout == "own\n" || is_let, "{seen}");
}
