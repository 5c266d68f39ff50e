//! Promise: an allowed host is allowed on its ports only, for any TCP protocol on them.
//! DESIGN §6 (`ports`); E06, E18.

use lockgate_conformance::{Attempt, Backend, Bench, Needs, World, ready};

const CLOSED: &[&[&str]] = &[
    &["tcp-line", "api.example.com", "7777", "hello\n"],
    &["tcp", "api.example.com", "2525"],
    &["tcp", "api.example.com", "22"],
    &["tcp", "api.example.com", "8443"],
];
/// A closed port, and an open one in unusual spellings.
const TARGETS: &[&str] =
    &["api.example.com:7777", "api.example.com:+443", "api.example.com:0443", "api.example.com: 443"];

#[test]
fn only_the_named_ports_are_open() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    world.controls(CLOSED);
    world.controls_by_proxy(&[], TARGETS);

    let usual = bench.run(Backend::isolated()).allow("api.example.com").within(&world);
    let seen = usual.at_once(&Attempt::all(CLOSED, &[], TARGETS));
    for (attempt, seen) in CLOSED.iter().zip(&seen) {
        assert!(!seen.done(), "{attempt:?}: {seen}");
    }
    let by_tunnel = &seen[CLOSED.len()..];
    assert!(by_tunnel[0].number("status") == 403, "{}", by_tunnel[0]);
    for (spelled, seen) in TARGETS.iter().zip(by_tunnel) {
        assert!(!seen.done(), "{spelled} was accepted: {seen}");
    }
    assert!(world.records().iter().all(|it| it["event"] == "query"), "{:?}", world.records());
    let open = usual.by_tunnel("api.example.com:443");
    assert!(open.done(), "the proxy opens no tunnel at all: {open}");

    let named = bench
        .run(Backend::isolated())
        .allow("api.example.com:7777")
        .allow("api.example.com:2525")
        .within(&world);
    let seen = named
        .probes(&[&["tcp-line", "api.example.com", "7777", "hello\n"], &["tcp", "api.example.com", "2525"]]);
    assert!(seen[0].text("received").contains("hello"), "{}", seen[0]);
    assert!(named.by_tunnel("api.example.com:7777").done(), "a named port is closed to a tunnel");
    assert!(
        seen[1].text("received").starts_with("220"),
        "the server speaks first and was not heard: {}",
        seen[1]
    );
}
