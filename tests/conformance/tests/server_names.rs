//! Promise: a TLS connection's server name must be the name that was resolved; none, another or a broken one is refused.
//! DESIGN §3 (splice); S4.67; C03, E03, E13.

use lockgate_conformance::{Backend, Bench, Needs, World, ready};

#[test]
fn the_server_name_must_agree() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    world.controls(&[&["tls", "api.example.com", "443", "www.example.org"]]);
    let run = bench.run(Backend::isolated()).allow("api.example.com").within(&world);
    run.everything_works(&[
        &["tls", "api.example.com", "443", "api.example.com", "segments"],
        &["tls", "api.example.com", "443", "api.example.com", "records"],
    ]);
    let before = world.reached("www.example.org").len();
    run.nothing_works(&[
        &["tls", "api.example.com", "443", "www.example.org"],
        &["tls", "api.example.com", "443", "www.example.org", "segments"],
        &["tls", "api.example.com", "443", "www.example.org", "records"],
        &["tls", "api.example.com", "443", "-"],
        &["tls", "api.example.com", "443", r"api.example.com\0.example.org"],
        &["tls", "api.example.com", "443", r"www.example.org\0api.example.com"],
        &["tls", "api.example.com", "443", "api.example.com\r\n"],
        &["tls", "api.example.com", "443", ""],
        &["tls", "api.example.com", "443", "[::1]"],
        &["tls", "api.example.com", "443", "93.184.216.34"],
    ]);
    assert_eq!(world.reached("www.example.org").len(), before, "{:?}", world.records());
}
