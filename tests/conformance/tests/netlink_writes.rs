//! Promise: the sandbox's network cannot be changed from inside: no route, address, link or firewall rule.
//! E05, E11.

use lockgate_conformance::{Backend, Bench, Needs, ready};

// S2.5: outside there are other routes, links and rules.
#[test]
fn the_network_cannot_be_changed() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    for attempt in ["netlink-address", "netlink-route", "netlink-link", "nftables-table"] {
        let control = bench.control_apart(&[attempt]);
        assert!(control.done(), "the control {attempt} did not work: {control}");
        let inside = bench.run(Backend::isolated()).probe(&[attempt]);
        assert!(!inside.done(), "{attempt} worked inside: {inside}");
    }
}
