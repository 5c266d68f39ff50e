//! Promise: an allowed host works unchanged, by name, on every plane, with or without proxy variables.
//! S0.28, S0.30, S4.24, S4.67; E08.

use lockgate_conformance::{Attempt, Backend, Bench, Needs, Seen, World, ready};

const TRANSPARENT: &[&[&str]] = &[
    &["resolve", "api.example.com"],
    &["http", "api.example.com", "80", "/transparent"],
    &["tls", "api.example.com", "443", "api.example.com"],
    &["tls", "api.example.com", "443", "API.Example.COM"],
];
const EXPLICIT: &[&str] = &["http://api.example.com/explicit"];
const TUNNEL: &[&str] = &["api.example.com:443"];

fn works_by_proxy(seen: &[Seen], world: &World) {
    assert_eq!(seen.len(), EXPLICIT.len() + TUNNEL.len());
    for seen in seen {
        assert!(seen.done() && seen.number("status") == 200, "{seen}");
    }
    assert!(!world.reached("/explicit").is_empty(), "the server saw no request");
}

#[test]
fn an_allowed_host_works_on_every_plane() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    world.controls(&[
        &["http", "api.example.com", "80", "/"],
        &["tls", "api.example.com", "443", "api.example.com"],
    ]);
    let run = bench.run(Backend::isolated()).allow("api.example.com").within(&world);

    let seen = run.attempts(&Attempt::all(TRANSPARENT, EXPLICIT, TUNNEL));
    let (transparent, explicit) = seen.split_at(TRANSPARENT.len());
    for (attempt, seen) in TRANSPARENT.iter().zip(transparent) {
        assert!(seen.done(), "{attempt:?} did not work inside: {seen}");
    }
    assert!(!world.reached("/transparent").is_empty(), "the server saw no request");
    works_by_proxy(explicit, &world); // S1.11
    let bare = "env -u HTTP_PROXY -u http_proxy -u HTTPS_PROXY -u https_proxy -u ALL_PROXY -u all_proxy \
                curl -sS --max-time 20 --noproxy '*' https://api.example.com/bare";
    // An image has its own list of authorities, without the world's.
    let machines =
        ["--mount", "/etc/ssl/certs:/authorities", "--env", "SSL_CERT_FILE=/authorities/ca-certificates.crt"];
    let has_image = Backend::isolated().has_own_image() || Backend::isolated().is_engine();
    let run = if has_image { run.flags(machines) } else { run };
    let ended = run.shell(bare);
    assert!(ended.code == 0, "{ended}");
    assert!(!world.reached("/bare").is_empty(), "the server saw no request");
}

#[test]
fn an_allowed_host_works_by_the_proxy_of_process() {
    if !ready(&[Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    let run = bench.run(Backend::Process).allow("api.example.com").within(&world);
    works_by_proxy(&run.attempts(&Attempt::all(&[], EXPLICIT, TUNNEL)), &world);
}
