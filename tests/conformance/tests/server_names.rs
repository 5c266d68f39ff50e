//! Promise: a TLS connection's server name must be the name that was resolved; none, another or a broken one is refused.
//! DESIGN §3 (splice); S4.67; C03, E03, E13.

use lockgate_conformance::{Backend, Bench, Needs, World, ready};

/// Names that are none of the two, or of two hosts at once.
const BROKEN: &[&str] = &[
    r"api.example.com\0.example.org",
    r"www.example.org\0api.example.com",
    "api.example.com\r\n",
    "",
    "[::1]",
];

#[test]
fn the_server_name_must_agree() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    world.controls(&[
        &["tls", "api.example.com", "443", "www.example.org"],
        &["tls", "api.example.com", "443", "www.example.org", "segments"],
        &["tls", "api.example.com", "443", "www.example.org", "records"],
        &["tls", "api.example.com", "443", "-"],
        &["tls", "api.example.com", "443", "93.184.216.34"],
    ]);
    // A server of TLS refuses the others itself. One that repeats what it gets shows that they arrive.
    let names = BROKEN.iter().map(|name| ["tls", "api.example.com", "7777", name]).collect::<Vec<_>>();
    let at_echo: Vec<&[&str]> = names.iter().map(|words| words.as_slice()).collect();
    world.controls(&at_echo);
    let run = bench.run(Backend::isolated()).allow("api.example.com").within(&world);
    run.everything_works(&[
        &["tls", "api.example.com", "443", "api.example.com", "segments"],
        &["tls", "api.example.com", "443", "api.example.com", "records"],
    ]);
    world.forget();
    let names = BROKEN.iter().map(|name| ["tls", "api.example.com", "443", name]).collect::<Vec<_>>();
    let others: &[&[&str]] = &[
        &["tls", "api.example.com", "443", "www.example.org"],
        &["tls", "api.example.com", "443", "www.example.org", "segments"],
        &["tls", "api.example.com", "443", "www.example.org", "records"],
        &["tls", "api.example.com", "443", "-"],
        &["tls", "api.example.com", "443", "93.184.216.34"],
    ];
    run.nothing_works(&[others, &names.iter().map(|words| words.as_slice()).collect::<Vec<_>>()].concat());
    assert!(world.at("web").is_empty(), "{:?}", world.records());
    // At the server that repeats, nobody but the sidecar refuses them: one octet that comes back would be an answer.
    let run = bench.run(Backend::isolated()).allow("api.example.com:7777").within(&world);
    run.everything_works(&[&["tls", "api.example.com", "7777", "api.example.com"]]);
    run.nothing_works(&at_echo);
}
