//! Promise: only allowed names resolve, to addresses of the sidecar's own; no question of the agent's leaves.
//! S2.14, S4.23, S4.24; E04.

use std::ffi::{OsStr, OsString};

use lockgate_conformance::{Attempt, Backend, Bench, Needs, Seen, World, ready};

const NO_DATA: &[&[&str]] = &[
    &["dns", "api.example.com", "HTTPS"],
    &["dns", "api.example.com", "SVCB"],
    &["dns", "api.example.com", "TXT"],
    &["dns", "api.example.com", "MX"],
    &["dns", "api.example.com", "NULL"],
    &["dns", "api.example.com", "SRV"],
    &["dns", "api.example.com", "AXFR", "9.9.9.9", "tcp"],
];
const DENIED: &[&[&str]] = &[
    &["dns", "www.example.org", "A"],
    &["dns", "www.example.org", "AAAA", "9.9.9.9"],
    &["dns", "www.example.org", "A", "8.8.8.8", "tcp"],
    &["dns", "c2VjcmV0.api.example.com", "A"],
    &["dns", "c2VjcmV0.api.example.com", "TXT", "9.9.9.9"],
    &["dns", "example.com", "ANY"],
    &["dns", "metadata.google.internal", "A"],
];

#[test]
fn only_allowed_names_resolve() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    world.controls(&[&["dns", "api.example.com", "A"], &["dns", "www.example.org", "A", "9.9.9.9", "tcp"]]);
    let run = bench.run(Backend::isolated()).allow("api.example.com").within(&world);

    let allowed: &[&[&str]] = &[
        &["dns", "api.example.com", "A"],
        &["dns", "api.example.com", "A", "9.9.9.9"],
        &["dns", "aPi.eXample.com", "A", "8.8.8.8", "tcp"],
        &["dns", "api.example.com", "A", "[2620:fe::fe]:53"],
        &["dns-edns", "api.example.com", "A", "192.168.77.10"],
    ];
    // Behind an engine no other resolver is answered for: only the run's own network is reached.
    let allowed = if Backend::isolated().is_engine() { &allowed[..1] } else { allowed };
    // Nor is a resolver at an IPv6 address over a link, which carries no IPv6.
    let leads = |attempt: &&[&str]| !Backend::isolated().has_link() || !attempt.concat().contains("2620:");
    let allowed: Vec<_> = allowed.iter().copied().filter(leads).collect();
    let mut all = allowed.clone();
    all.extend(NO_DATA.iter().chain(DENIED));
    let mut seen = run.at_once(&Attempt::all(&all, &[], &[])).into_iter();
    for (attempt, seen) in allowed.iter().zip(&mut seen) {
        let address = seen.detail()["answers"][0]["data"].as_str().unwrap_or_default();
        assert!(address.starts_with("198.18.") || address.starts_with("198.19."), "{attempt:?}: {seen}");
    }
    for (attempt, seen) in NO_DATA.iter().zip(&mut seen) {
        assert!(!seen.done(), "{attempt:?} worked inside: {seen}");
    }
    for (attempt, seen) in DENIED.iter().zip(seen) {
        let elsewhere = Backend::isolated().is_engine() && attempt.len() > 3;
        assert!(seen.text("rcode") == "NXDOMAIN" || (elsewhere && !seen.done()), "{attempt:?}: {seen}");
    }
    assert!(world.at("resolver").is_empty(), "a question left the machine: {:?}", world.at("resolver"));
}

#[test]
fn who_asks_for_the_name_of_an_address_is_denied_nothing() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    let probe = bench.probe();
    let ask = ["1.0.18.198", "1.0.0.127", "9.9.9.9"]
        .map(|address| format!("'{}' dns {address}.in-addr.arpa PTR", probe.display()));
    let ended = bench.run(Backend::isolated()).allow("api.example.com").within(&world).shell(&ask.join("; "));
    assert!(Seen::all(&ended).len() == 3 && !ended.stderr.contains("denied"), "{ended}");
    assert!(world.at("resolver").is_empty(), "a question left the machine: {:?}", world.at("resolver"));
}

#[test]
fn other_ways_to_ask_are_closed() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    let datagrams: &[&[&str]] = &[&["dns", "api.example.com", "A", "9.9.9.9:5353"]];
    let by_tls: &[&[&str]] = &[&["tls", "9.9.9.9", "853", "dns.example.org"]];
    world.controls_of_datagrams(datagrams);
    world.controls(by_tls);
    let run = bench.run(Backend::isolated()).allow("api.example.com").within(&world);
    run.nothing_works_at_once(&Attempt::all(&[datagrams, by_tls].concat(), &[], &[]));
    let out: Vec<_> = ["resolver", "anywhere"].iter().flat_map(|server| world.at(server)).collect();
    assert!(out.is_empty(), "{out:?}");
}

/// The groups that are asked for a name without a resolver: mDNS (RFC 6762 §3) and LLMNR (RFC 4795 §2).
const GROUPS: [(&str, &str, &str); 2] =
    [("api.local", "224.0.0.251", "5353"), ("api", "224.0.0.252", "5355")];

#[test]
fn nobody_around_is_asked() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    let probe = bench.probe();
    // The host itself is in both groups while its command runs, and tells afterwards whether it heard anything.
    let hears: Vec<OsString> = GROUPS
        .iter()
        .flat_map(|(_, group, port)| [probe.as_os_str(), "hear".as_ref(), group.as_ref(), port.as_ref()])
        .map(OsStr::to_owned)
        .collect();
    let ask = GROUPS.map(|(name, group, port)| format!("'{}' dns {name} A {group}:{port}", probe.display()));
    let ask = ask.join("; ");
    let control = [&hears[..], &["/bin/sh", "-c", &ask].map(OsString::from)].concat();
    let run = bench.run(Backend::isolated()).allow("api.example.com").behind(hears).within(&world);
    for (ended, heard) in [(world.command(&control), true), (run.shell(&ask), false)] {
        let [one, another, groups @ ..] = &Seen::all(&ended)[..] else { panic!("{ended}") };
        assert!(!one.done() && !another.done(), "somebody answered: {ended}");
        assert!(groups.len() == 2, "{ended}");
        assert!(
            groups.iter().all(|it| if heard { it.done() } else { it.absent() }),
            "heard, {heard}: {ended}"
        );
    }
}
