//! Promise: an address is no way around a name: not dialled directly, in a tunnel, or behind an allowed `Host`.
//! S0.37; C02, C03, E07, E10.

use lockgate_conformance::{Attempt, Backend, Bench, Needs, World, ready};

const ATTEMPTS: &[&[&str]] = &[
    &["http", "93.184.216.34", "80", "/"],
    &["http", "93.184.216.34", "80", "/", "api.example.com"],
    &["http", "93.184.216.35", "80", "/", "api.example.com"],
    &["http", "2606:2800:220:1::1", "80", "/"],
    &["http", "::ffff:93.184.216.34", "80", "/"],
    &["tls", "93.184.216.34", "443", "api.example.com"],
    &["tls", "2606:2800:220:1::1", "443", "api.example.com"],
];
const URLS: &[&str] =
    &["http://93.184.216.34/", "http://[2606:2800:220:1::1]/", "http://0x5db8d822/", "http://1572395042/"];
const TARGETS: &[&str] = &["93.184.216.34:443", "[2606:2800:220:1::1]:443", "1572395042:443"];

#[test]
fn raw_addresses_are_refused() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    world.controls(ATTEMPTS);
    world.controls_by_proxy(URLS, TARGETS);
    let run = bench.run(Backend::isolated()).allow("api.example.com").within(&world);
    run.nothing_works_at_once(&Attempt::all(ATTEMPTS, URLS, TARGETS));
    assert!(world.at("web").is_empty(), "{:?}", world.at("web"));
    // By its name the same server is reached by the same proxy.
    let named = Attempt::all(&[], &["http://api.example.com/"], &["api.example.com:443"]);
    for (attempt, seen) in named.iter().zip(run.at_once(&named)) {
        assert!(seen.done(), "{attempt:?} did not work inside: {seen}");
    }
}

#[test]
fn an_allowed_name_does_not_cover_another_inside_the_request() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    world.controls(&[&["http", "api.example.com", "80", "/", "www.example.org"]]);
    let run = bench.run(Backend::isolated()).allow("api.example.com").within(&world);
    run.nothing_works(&[&["http", "api.example.com", "80", "/", "www.example.org"]]);
    assert!(world.reached("www.example.org").is_empty(), "{:?}", world.at("web"));
}
