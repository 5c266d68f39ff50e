//! Promise: descriptors and pseudo-terminals are bounded, and the host keeps its own.
//! L06, L10.

use lockgate_conformance::{Backend, Bench, Needs, ready};

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
    bench.controls(&[&["open-terminals", "3"]]);
}
