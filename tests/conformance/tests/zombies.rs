//! Promise: orphans are reaped; a night of them does not fill the process table.
//! S3.14; L03.

use lockgate_conformance::{Backend, Bench, Needs, ready};

#[test]
fn orphans_are_reaped() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let control = bench.control(&["zombies", "100"]);
    assert!(control.number("made") == 100, "{control}");
    let seen = bench.run(Backend::isolated()).probe(&["zombies", "2000"]);
    assert!(seen.number("made") == 2000 && seen.number("left") == 0, "{seen}");
}
