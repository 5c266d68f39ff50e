//! Promise: an allowed host is allowed on its ports only, for any TCP protocol on them.
//! DESIGN §6 (`ports`); E06, E18.

use lockgate_conformance::{Backend, Bench, Needs, World, ready};

#[test]
fn only_the_named_ports_are_open() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    world.controls(&[&["tcp", "api.example.com", "7777", "hello\n"], &["tcp", "api.example.com", "2525"]]);

    let usual = bench.run(Backend::isolated()).allow("api.example.com").within(&world);
    for (port, seen) in [7777, 2525, 22, 8443].iter().zip(usual.probes(&[
        &["tcp", "api.example.com", "7777", "hello\n"],
        &["tcp", "api.example.com", "2525"],
        &["tcp", "api.example.com", "22"],
        &["tcp", "api.example.com", "8443"],
    ])) {
        assert!(!seen.done(), "port {port}: {seen}");
    }
    assert!(usual.by_tunnel("api.example.com:7777").number("status") == 403);
    for spelled in ["api.example.com:+443", "api.example.com:0443", "api.example.com: 443"] {
        assert!(!usual.by_tunnel(spelled).done(), "{spelled} was accepted");
    }
    assert!(world.reached(":7777").is_empty(), "{:?}", world.records());

    let named = bench
        .run(Backend::isolated())
        .allow("api.example.com:7777")
        .allow("api.example.com:2525")
        .within(&world);
    let seen =
        named.probes(&[&["tcp", "api.example.com", "7777", "hello\n"], &["tcp", "api.example.com", "2525"]]);
    assert!(seen[0].text("received").contains("hello"), "{}", seen[0]);
    assert!(
        seen[1].text("received").starts_with("220"),
        "the server speaks first and was not heard: {}",
        seen[1]
    );
}
