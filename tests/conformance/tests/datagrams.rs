//! Promise: nothing but TCP by way of the sidecar: no UDP, ICMP, raw, packet, vsock, SCTP or other socket leads out.
//! S0.37; E05, E11.

use lockgate_conformance::{Attempt, Backend, Bench, Needs, World, ready};

/// Address families that would be a way out or an attack surface of the kernel. Reading routes by netlink is ordinary.
const REFUSED: &[&str] = &[
    "raw4",
    "raw6",
    "raw-icmp",
    "raw-tcp",
    "packet-raw",
    "packet-datagram",
    "vsock-stream",
    "vsock-datagram",
    "sctp-stream",
    "sctp-packet",
    "dccp",
    "alg",
    "bluetooth",
    "can",
    "tipc",
    "rds",
    "xdp",
    "key",
    "smc",
    "qipcrtr",
    "netlink-netfilter",
    "netlink-generic",
    "netlink-xfrm",
    "netlink-audit",
    "ping4",
    "ping6",
];

#[test]
fn odd_sockets_cannot_be_opened() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let control = bench.control_apart(&["sockets"]);
    let working = REFUSED.iter().filter(|name| control.detail()[**name]["outcome"] == "done").count();
    assert!(working >= 6, "too few controls work: {control}");
    let inside = bench.run(Backend::isolated()).probe(&["sockets"]);
    for name in REFUSED {
        assert!(inside.detail()[*name]["outcome"] != "done", "{name} opened: {inside}");
    }
}

// S2.5
#[test]
fn datagrams_lead_nowhere() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    world.controls(&[&["dns", "api.example.com", "A", "9.9.9.9"]]);
    let _ = world.control(&["udp", "93.184.216.34", "443", "quic"]);
    assert!(!world.reached("datagram").is_empty(), "the control's datagram was not recorded");
    world.forget();
    let run = bench.run(Backend::isolated()).allow("api.example.com").within(&world);
    let attempts: &[&[&str]] = &[
        &["udp", "93.184.216.34", "443", "quic"],
        &["udp", "api.example.com", "443", "quic"],
        &["udp", "9.9.9.9", "5353", "mdns"],
        &["udp", "2606:2800:220:1::1", "443", "quic"],
        &["udp", "192.168.77.10", "123", "time"],
        &["icmp", "93.184.216.34"],
        &["vsock", "2", "1024"],
    ];
    run.nothing_works_at_once(&Attempt::all(attempts, &[], &[]));
    assert!(world.reached("datagram").is_empty() && world.at("resolver").is_empty(), "{:?}", world.records());
}
