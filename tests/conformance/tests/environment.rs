//! Promise: nothing of the caller's environment enters but what is named; what the run needs is set.
//! S0.16, S0.17, S0.22, S1.12, S1.13; C14; both backends.

use lockgate_conformance::{Backend, Bench, Canary, Needs, ready};

#[test]
fn the_callers_environment_stays_outside() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let (secret, named) = (Canary::draw(), Canary::draw());
    for backend in Backend::all() {
        let run = bench.run(backend);
        let run = run.caller("AWS_SECRET_ACCESS_KEY", secret.text()).caller("LD_PRELOAD_HINT", secret.text());
        let run = run.caller("SSH_AUTH_SOCK", "/run/agent.sock").caller("NAMED", named.text());
        let run = run.flags(["--env", "NAMED", "--env", "GIVEN=value"]);
        let seen = run.probe(&["environment"]);
        let text = seen.detail().to_string();
        assert!(!text.contains(secret.text()), "{}: {seen}", backend.name());
        for absent in ["SSH_AUTH_SOCK", "RUN_TOKEN", "PLATFORM_API_URL", "XDG_STATE_HOME"] {
            assert!(seen.detail().get(absent).is_none(), "{absent} is set under {}: {seen}", backend.name());
        }
        assert_eq!(seen.text("NAMED"), named.text());
        assert_eq!(seen.text("GIVEN"), "value");
        assert_eq!(seen.text("LOCKGATE"), "1");
        assert!(!seen.text("LOCKGATE_RUN_ID").is_empty());
        for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
            let port = seen
                .text(proxy)
                .strip_prefix("http://")
                .and_then(|rest| rest.trim_end_matches('/').rsplit_once(':'));
            assert!(
                port.is_some_and(|(_, port)| port.parse::<u16>().is_ok()),
                "{proxy} under {}: {seen}",
                backend.name()
            );
        }
    }
}
