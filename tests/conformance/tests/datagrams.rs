//! Promise: nothing but TCP by way of the sidecar: no UDP, ICMP, raw, packet, vsock, SCTP or other socket leads out.
//! S0.37; E05, E11, E20.

use std::ffi::OsString;

use lockgate_conformance::{Attempt, Backend, Bench, Needs, Seen, World, is_root, ready};
use lockgate_needs::missing;

/// Sockets that would be a way out or an attack surface of the kernel, and that every kernel has which runs these tests. Reading routes by
/// netlink is ordinary.
const REFUSED: &[&str] = &[
    "raw4",
    "raw6",
    "raw-icmp",
    "raw-tcp",
    "packet-raw",
    "packet-datagram",
    "netlink-netfilter",
    "netlink-generic",
    "ping4",
    "ping6",
];
/// The same of families that a kernel may be built without.
const REFUSED_IF_ANY: &[&str] = &[
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
    "netlink-xfrm",
    "netlink-audit",
];

#[test]
fn odd_sockets_cannot_be_opened() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let control = bench.control_apart(&["sockets"]);
    let inside = bench.run(Backend::isolated()).probe(&["sockets"]);
    let came = |name: &str| control.detail()[name]["outcome"].as_str().unwrap().to_owned();
    for name in REFUSED {
        assert!(came(name) == "done", "the control for {name} did not work: {control}");
    }
    for name in REFUSED_IF_ANY {
        assert!(["done", "absent"].contains(&came(name).as_str()), "the control for {name}: {control}");
    }
    // A family that this kernel lacks would be absent. Whoever refuses it did not ask the kernel.
    for name in REFUSED.iter().chain(REFUSED_IF_ANY) {
        assert!(inside.detail()[*name]["outcome"] == "refused", "{name} was not refused: {inside}");
    }
}

const DATAGRAMS: &[[&str; 4]] = &[
    ["udp", "93.184.216.34", "443", "quic"],
    ["udp", "api.example.com", "443", "quic"],
    ["udp", "9.9.9.9", "5353", "mdns"],
    ["udp", "2606:2800:220:1::1", "443", "quic"],
    ["udp", "192.168.77.10", "123", "time"],
];
const ECHO: &[&str] = &["icmp", "93.184.216.34"];

// S2.5
#[test]
fn datagrams_lead_nowhere() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    world.controls(&[&["dns", "api.example.com", "A", "9.9.9.9"]]);
    let datagrams: Vec<&[&str]> = DATAGRAMS.iter().map(|it| &it[..]).collect();
    world.controls_of_datagrams(&datagrams);
    // Only root may let everybody send echoes (icmp(7), ping_group_range): without root there is no control for them.
    if is_root() {
        let line = "echo '0 2147483647' > /proc/sys/net/ipv4/ping_group_range; exec \"$0\" \"$@\"";
        let words = ["/bin/sh", "-c", line].map(OsString::from).into_iter().chain([bench.probe().into()]);
        let words: Vec<_> = words.chain(ECHO.iter().map(OsString::from)).collect();
        let control = Seen::only(&world.command(&words));
        assert!(control.done(), "the control {ECHO:?} did not work: {control}");
        world.forget();
    }
    let run = bench.run(Backend::isolated()).allow("api.example.com").within(&world);
    // The other end of a vsock is a hypervisor, which nobody has here: what opens outside is above.
    let attempts = [&datagrams[..], &[ECHO, &["vsock", "2", "1024"]]].concat();
    run.nothing_works_at_once(&Attempt::all(&attempts, &[], &[]));
    assert!(world.reached("datagram").is_empty() && world.at("resolver").is_empty(), "{:?}", world.records());
    // What is refused by an engine's network never comes to the sidecar.
    let backend = Backend::isolated();
    if !backend.is_engine() {
        let records = bench.every_audit_record();
        // A link has no IPv6: nothing is sent that could be refused.
        let leaves = |host: &str| !(backend.has_link() && host.contains(':'));
        for [_, host, port, _] in DATAGRAMS.iter().filter(|it| leaves(it[1])) {
            let target =
                if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
            let found: Vec<_> =
                records.iter().filter(|it| it["action"] == "UDP" && it["target"] == target).collect();
            assert!(found.len() == 1 && found[0]["outcome"] == "denied", "{target}: {records:#?}");
        }
    }
}

/// The world's own host, by which each engine's networks are links of its machine.
const MACHINE: &str = "192.168.77.2";

// A packet that comes by such a link is the machine's own matter, unless that looks where packets come from: the kernel's default is not to.
#[test]
fn nothing_goes_past_the_routes() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    let probe = bench.probe();
    let unfiltered = "for it in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $it; done; exec \"$@\"";
    let hears = ["/bin/sh", "-c", unfiltered, "sh"].map(OsString::from).into_iter();
    let hears: Vec<OsString> = hears
        .chain([probe.clone().into()])
        .chain(["hear", "224.0.0.1", "5300"].map(OsString::from))
        .collect();
    let astray = ["astray", "5300", MACHINE, "9.9.9.9"];
    let control: Vec<OsString> =
        hears.iter().cloned().chain([probe.into()]).chain(astray.map(OsString::from)).collect();
    let run = bench.run(Backend::isolated()).allow("api.example.com").behind(hears).within(&world);
    let line = format!("'{}' {}", bench.probe().display(), astray.join(" "));
    for (ended, heard) in [(world.command(&control), true), (run.shell(&line), false)] {
        let [sent, came] = &Seen::all(&ended)[..] else { panic!("{ended}") };
        assert!(sent.done() || !heard, "the control: {ended}");
        assert!(if heard { came.done() } else { came.absent() }, "heard, {heard}: {ended}");
    }
}

/// How many addresses of IPv6 a run sends to at once (docs/bounds.md); `::1` and the kernel's own come to these.
const NEIGHBOURS: u64 = 1024;

// The machine has one table of neighbours, whose entries no limit of memory counts.
#[test]
fn the_machines_neighbours_are_few() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let many = ["neighbours", "5000"];
    let entries = |seen: &Seen| seen.detail()["entries"].as_u64().unwrap_or_else(|| panic!("{seen}"));
    let control = bench.control_apart(&many);
    // Some kernels collect the neighbours of the loopback as well, beyond a bound of their own.
    if !control.done() || entries(&control) < 5000 {
        return missing(&format!("a table of neighbours that 5000 addresses of IPv6 fill: {control}"));
    }
    let inside = bench.run(Backend::isolated()).probe(&many);
    // A link has no IPv6.
    let is_bounded = inside.done() && entries(&inside) < NEIGHBOURS + 32;
    assert!(is_bounded || Backend::isolated().has_link(), "{inside}");
}
