//! Promise: where no flag names a backend, the variables of existing set-ups do; what they say must be a backend's name that can be
//! made here, and no other takes its place.
//! S0.10, S1.3, S4.15.

use lockgate_conformance::{Backend, Bench, Needs, Run, promised, ready};

/// Returns the backend of the last run, by its record, and whether its command had its own processes.
fn made(bench: &Bench, run: &Run) -> (String, bool) {
    let inside = run.probe(&["identity"]).detail()["namespaces"]["pid"].clone();
    let outside = bench.control(&["identity"]).detail()["namespaces"]["pid"].clone();
    let record = bench.records(&["runs", "show", "latest", "--json"]);
    (record[0]["backend"].as_str().unwrap_or_default().to_owned(), inside != outside)
}

#[test]
fn the_environment_names_the_backend_where_no_flag_does() {
    if !promised("backend_name") || !ready(&[Needs::Linux]) {
        return;
    }
    for backend in Backend::all() {
        let bench = Bench::new();
        let (run, name) = bench.run(backend).without_backend();
        let expected = (name.to_owned(), backend != Backend::Process);
        // S0.10, S1.3. The second variable is the product's own name for it.
        for variable in ["RUN_ADAPTER", "LOCKGATE_SANDBOX"] {
            assert_eq!(made(&bench, &run.clone().caller(variable, name)), expected, "{variable}={name}");
        }
        // The variables override a file, which counts where they are unset.
        let other = if backend == Backend::Process { "linux" } else { "process" };
        let file = |name: &str| {
            let path = bench.file(format!("outside/{name}.toml"), &format!("backend = \"{name}\"\n"));
            run.clone().flags(["--policy"]).flags([path])
        };
        assert_eq!(made(&bench, &file(other).caller("RUN_ADAPTER", name)), expected, "{other} by a file");
        assert_eq!(made(&bench, &file(name)), expected, "{name} by a file");
        // A flag overrides both.
        let louder = run.flags(["--backend", name]);
        for variable in ["RUN_ADAPTER", "LOCKGATE_SANDBOX"] {
            assert_eq!(
                made(&bench, &louder.clone().caller(variable, other)),
                expected,
                "--backend {name}, {variable}={other}"
            );
        }
    }
}

#[test]
fn no_sandbox_is_what_none_asks_for() {
    if Backend::isolated() != Backend::Linux || !ready(&[Needs::Linux]) {
        return;
    }
    // S4.15
    let bench = Bench::new();
    let (run, _) = bench.run(Backend::Process).without_backend();
    assert_eq!(made(&bench, &run.clone().caller("LOCKGATE_SANDBOX", "none")), ("process".into(), false));
    // An empty variable names no backend.
    let empty = run.caller("LOCKGATE_SANDBOX", "").caller("RUN_ADAPTER", "");
    assert_eq!(made(&bench, &empty), ("linux".into(), true));
}

#[test]
fn a_name_that_is_none_is_refused_and_nothing_runs() {
    if !promised("backend_name") || !ready(&[Needs::Linux]) {
        return;
    }
    for backend in Backend::all() {
        let bench = Bench::new();
        let (run, name) = bench.run(backend).without_backend();
        for variable in ["RUN_ADAPTER", "LOCKGATE_SANDBOX"] {
            for wrong in ["firejail", "Docker", "process,docker", " linux"] {
                let ended = run.clone().caller(variable, wrong).command(["touch", "ran"]);
                assert!(ended.code == 2, "{variable}={wrong}: {ended}");
                assert!(ended.stderr.contains(&format!("`{wrong}` is not a backend")), "{ended}");
                assert!(!bench.workspace().join("ran").exists(), "{variable}={wrong} ran something");
            }
        }
        let control = run.caller("RUN_ADAPTER", name).command(["touch", "ran"]);
        assert!(control.code == 0 && bench.workspace().join("ran").exists(), "{control}");
    }
}

#[test]
fn one_that_cannot_be_made_is_no_reason_for_a_weaker_one() {
    if Backend::isolated() != Backend::Linux || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let (run, _) = bench.run(Backend::Linux).without_backend();
    let run = run.caller("DOCKER_HOST", "unix:///nonexistent/docker.sock").caller("PI_IMAGE", "debian");
    let ended = run.clone().caller("RUN_ADAPTER", "docker").command(["touch", "ran"]);
    assert!(ended.code == 125 && ended.stderr.contains("/nonexistent/docker.sock"), "{ended}");
    assert!(!bench.workspace().join("ran").exists(), "something ran: {ended}");
    let control = run.caller("RUN_ADAPTER", "linux").command(["touch", "ran"]);
    assert!(control.code == 0 && bench.workspace().join("ran").exists(), "{control}");
}
