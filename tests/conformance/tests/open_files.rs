//! Promise: descriptors and pseudo-terminals are bounded, and the host keeps its own.
//! L06, L10.

use lockgate_conformance::{Backend, Bench, Needs, Seen, is_root, ready};
use lockgate_needs::missing;

#[test]
fn descriptors_and_terminals_are_bounded() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    bench.controls(&[&["open-files", "200"], &["open-terminals", "3"]]);
    let run = bench.run(Backend::isolated());
    run.everything_works(&[&["open-files", "900"], &["open-terminals", "3"]]);
    let seen = run.probes(&[&["open-files", "1500000"], &["open-terminals", "5000"]]);
    assert!(!seen[0].done() && seen[0].errno() == "EMFILE", "{}", seen[0]);
    assert!(!seen[1].done(), "{}", seen[1]);
    // An engine has its own bound.
    if !Backend::isolated().is_engine() {
        assert_eq!(seen[1].detail()["got"], 128, "{}", seen[1]);
    }
    bench.controls(&[&["open-terminals", "3"]]);
}

#[test]
fn message_queues_of_a_caller_who_is_not_root_are_half_of_his_own() {
    if Backend::isolated().is_engine() || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let all: &[&str] = &["open-queues", "100000"];
    let got = |seen: &Seen| seen.detail()["got"].as_u64().expect("a number");
    let outside = bench.control(all);
    if outside.errno() != "EMFILE" || got(&outside) < 2 {
        return missing(&format!("a limit of POSIX message queues that is reached: {outside}"));
    }
    let inside = bench.run(Backend::isolated()).probe(all);
    // Root's runs have users of their own.
    let expected = if is_root() { got(&outside) } else { got(&outside) / 2 };
    assert!(inside.errno() == "EMFILE" && got(&inside) == expected, "{inside}; outside {outside}");
}
