//! Promise: without a policy nothing gets out, not even a question for a name; an empty list allows nothing.
//! S4.2; E01, E02.

use lockgate_conformance::{Attempt, Backend, Bench, Needs, World, ready};

const ATTEMPTS: &[&[&str]] = &[
    &["resolve", "api.example.com"],
    &["http", "api.example.com", "80", "/"],
    &["http", "93.184.216.34", "80", "/", "api.example.com"],
    &["http", "2606:2800:220:1::1", "80", "/", "api.example.com"],
    &["tls", "93.184.216.34", "443", "api.example.com"],
    &["dns", "api.example.com", "A", "9.9.9.9"],
];

#[test]
fn no_policy_allows_nothing() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    world.controls(ATTEMPTS);
    let by_proxy = ["http://api.example.com/"];
    world.controls_by_proxy(&by_proxy, &[]);
    bench.run(Backend::isolated()).within(&world).nothing_works_at_once(&Attempt::all(
        ATTEMPTS,
        &by_proxy,
        &[],
    ));
    // E02
    for (name, policy) in [("unsaid", "[egress]\ndefault = \"deny\"\n"), ("empty", "[egress]\nallow = []\n")]
    {
        let policy = bench.file(format!("outside/{name}.toml"), policy);
        let run = bench.run(Backend::isolated()).flags(["--policy", policy.to_str().unwrap()]);
        run.within(&world).nothing_works_at_once(&Attempt::all(ATTEMPTS, &by_proxy, &[]));
    }
    let got_out: Vec<_> =
        ["web", "resolver", "anywhere"].iter().flat_map(|server| world.at(server)).collect();
    assert!(got_out.is_empty(), "{got_out:?}");
    // The same file with one entry in the list lets that one out.
    let one = bench.file("outside/one.toml", "[egress]\nallow = [{ host = \"api.example.com\" }]\n");
    let run = bench.run(Backend::isolated()).flags(["--policy", one.to_str().unwrap()]).within(&world);
    let seen = run.by_proxy(by_proxy[0]);
    assert!(seen.done(), "the list is not read: {seen}");
}
