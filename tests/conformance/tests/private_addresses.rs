//! Promise: loopback of the host, the LAN, metadata services and names that lead there cannot be reached, not even
//! when the name is allowed or everything public is. S0.34, S0.39, S1.38, S3.5, S4.28, S4.29, S4.60; E12, E14, E17.

use std::ffi::OsString;

use lockgate_conformance::{Attempt, Backend, Bench, Needs, World, ready};

const BY_ADDRESS: &[&[&str]] = &[
    &["http", "192.168.77.10", "80", "/"],
    &["http", "169.254.169.254", "80", "/latest/meta-data/"],
    &["http", "100.100.100.200", "80", "/latest/meta-data/"],
    &["http", "10.0.0.5", "80", "/"],
    &["http", "fd00::5", "80", "/"],
    &["http", "127.0.0.1", "8000", "/"],
    &["http", "::1", "8000", "/"],
];
const URLS: &[&str] = &[
    "http://169.254.169.254/",
    "http://127.0.0.1:8000/",
    "http://localhost:8000/",
    "http://2130706433:8000/",
];
/// E17: the sidecar is no way to itself or to another sidecar.
const TARGETS: &[&str] = &["127.0.0.1:8081", "localhost:8081", "[::1]:8081", "sidecar:8081", "0.0.0.0:8081"];
/// For the proxy of `process`.
const OF_PROCESS: &[&str] = &["http://169.254.169.254/", "http://127.0.0.1:8000/", "http://192.168.77.10/"];
/// For the proxies that refuse all of the above.
const PUBLIC: &[&str] = &["http://api.example.com/"];
const BY_NAME: &[&[&str]] = &[
    &["http", "private.example.com", "80", "/"],
    &["http", "meta.example.com", "80", "/"],
    &["http", "v6private.example.com", "80", "/"],
];
const ALLOWED: &[&str] = &[
    "private.example.com",
    "meta.example.com",
    "v6private.example.com",
    "mapped.example.com",
    "mixed.example.com",
    "rebind.example.com",
];

fn nobody_was_reached(world: &World, how: &str) {
    for server in ["lan", "metadata", "private", "host-loopback"] {
        assert!(world.at(server).is_empty(), "{how} reached {server}: {:?}", world.at(server));
    }
}

// S3.1, S3.2
#[test]
fn private_addresses_are_out_of_reach() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    world.controls(BY_ADDRESS);
    world.controls_by_proxy(&[URLS, OF_PROCESS].concat(), TARGETS);
    let open = bench.file("outside/open.toml", "[egress]\ndefault = \"open-internet\"\n");
    let open = ["--policy", open.to_str().unwrap()];
    for run in [bench.run(Backend::isolated()), bench.run(Backend::isolated()).flags(open)] {
        run.within(&world).nothing_works_at_once(&Attempt::all(BY_ADDRESS, URLS, TARGETS));
        nobody_was_reached(&world, "a run");
    }
    // The proxy that refuses all of them serves what is public.
    let public = Attempt::all(&[], PUBLIC, &["api.example.com:443"]);
    let run = bench.run(Backend::isolated()).flags(open).within(&world);
    for (attempt, seen) in public.iter().zip(run.at_once(&public)) {
        assert!(seen.done(), "{attempt:?} did not work in open mode: {seen}");
    }
    let process = bench.run(Backend::Process).flags(open).within(&world);
    let seen = process.at_once(&Attempt::all(&[], &[OF_PROCESS, PUBLIC].concat(), &[]));
    let (refused, public) = seen.split_at(OF_PROCESS.len());
    for (url, seen) in OF_PROCESS.iter().zip(refused) {
        assert!(!seen.done(), "{url} by the proxy of process: {seen}");
    }
    assert!(public[0].done(), "the proxy of process serves nobody: {}", public[0]);
    nobody_was_reached(&world, "the proxy of process");
}

// S3.4: neither an allowed name nor the open internet makes an exception.
#[test]
fn names_that_lead_to_private_addresses_are_refused() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    world.controls(BY_NAME);
    // The other names: one that leads to a public and to a private address, one that comes to lead there, and an address in another form.
    let mixed = world.control(&["resolve", "mixed.example.com"]);
    assert!(mixed.detail().to_string().contains("\"10.0.0.5\""), "{mixed}");
    let line = ["rebind", "rebind", "mapped"].map(|name| format!("\"$0\" http {name}.example.com 80 /; "));
    let words = ["/bin/sh", "-c", &line.concat()].map(OsString::from).into_iter();
    let words = words.chain([bench.probe().into()]);
    let ended = world.command(&words.collect::<Vec<_>>());
    for server in ["private", "metadata"] {
        assert!(!world.at(server).is_empty(), "the control did not reach {server}: {ended}");
    }
    world.forget();
    let open = bench.file("outside/open.toml", "[egress]\ndefault = \"open-internet\"\n");
    let named = ALLOWED.iter().fold(bench.run(Backend::isolated()), |run, name| run.allow(name));
    for run in [named, bench.run(Backend::isolated()).flags(["--policy", open.to_str().unwrap()])] {
        let run = run.within(&world);
        // A name that first leads to a public address may be reached there, and never at its second address.
        let twice: Vec<[&str; 4]> = ALLOWED.iter().flat_map(|name| [["http", *name, "80", "/"]; 3]).collect();
        let twice: Vec<&[&str]> = twice.iter().map(|words| words.as_slice()).collect();
        let seen = run.probes(&[BY_NAME, &twice].concat());
        for (attempt, seen) in BY_NAME.iter().zip(seen) {
            assert!(!seen.done(), "{attempt:?} worked inside: {seen}");
        }
        // In another run, where a tunnel is the first request for each of them.
        let targets = ALLOWED.iter().map(|name| format!("{name}:80")).collect::<Vec<_>>();
        let targets: Vec<_> = targets.iter().map(|target| Attempt::Tunnel(target)).collect();
        let _ = run.at_once(&targets);
        nobody_was_reached(&world, "a name");
    }
}
