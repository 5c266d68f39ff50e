//! Promise: a host that is not allowed gets nothing: 403 that names its guard on the proxy, a fast refusal elsewhere.
//! S0.37, S0.38, S4.66; E02, E20; both backends at the proxy.

use lockgate_conformance::{Attempt, Backend, Bench, Needs, Seen, World, ready};

fn names_its_guard(seen: &Seen) {
    assert!(seen.number("status") == 403, "{seen}");
    let headers = &seen.detail()["headers"];
    assert!(
        headers["content-type"].as_str().unwrap_or_default().starts_with("application/problem+json"),
        "{seen}"
    );
    assert!(headers.get("x-lockgate-denied").is_some(), "{seen}");
    let body: serde_json::Value = serde_json::from_str(seen.text("body")).expect("a problem document");
    for key in ["guard", "target", "hint"] {
        assert!(body[key].as_str().is_some_and(|text| !text.is_empty()), "`{key}` is missing: {seen}");
    }
}

#[test]
fn the_proxy_refuses_and_says_why() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    world.controls(&[&["http", "www.example.org", "80", "/"]]);
    for backend in Backend::all() {
        let run = bench.run(backend).allow("api.example.com").within(&world);
        let seen = run
            .attempts(&[Attempt::Proxy("http://www.example.org/"), Attempt::Tunnel("www.example.org:443")]);
        names_its_guard(&seen[0]);
        assert!(seen[1].number("status") == 403, "{}", seen[1]);
        let told = run.shell("curl -sS --max-time 10 https://www.example.org/");
        assert!(told.stderr.contains("www.example.org"), "the person was not told: {told}");
        assert!(world.at("web").is_empty(), "{} let it through: {:?}", backend.name(), world.records());
    }
}

#[test]
fn without_the_proxy_it_fails_fast() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    let attempts: &[&[&str]] = &[
        &["resolve", "www.example.org"],
        &["http", "www.example.org", "80", "/"],
        &["tls", "www.example.org", "443", "www.example.org"],
    ];
    world.controls(attempts);
    let run = bench.run(Backend::isolated()).allow("api.example.com").within(&world);
    for (attempt, mut seen) in attempts.iter().zip(run.probes(attempts)) {
        assert!(seen.refused(), "{attempt:?}: {seen}");
        // A pause of the machine makes one attempt slow, not three.
        for _ in 0..2 {
            if seen.number("ms") >= 1000 {
                seen = run.probe(attempt);
                assert!(seen.refused(), "{attempt:?}: {seen}");
            }
        }
        assert!(seen.number("ms") < 1000, "{attempt:?} was not refused within a second: {seen}");
    }
    assert!(world.at("web").is_empty(), "{:?}", world.records());
}
