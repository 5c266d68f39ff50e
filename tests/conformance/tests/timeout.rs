//! Promise: at its time limit a run is ended, whatever it does, and says so: exit 124.
//! S0.24, S1.34, S1.36, S4.14; DESIGN §4.

use lockgate_conformance::{Backend, Bench, Canary, Needs, ready, vanishes};

#[test]
fn the_time_limit_ends_a_run() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    for backend in Backend::all() {
        let mark = Canary::draw();
        let run = bench.run(backend).flags(["--timeout", "2s"]);
        let probe = bench.probe();
        let line = format!("trap '' TERM INT HUP; '{}' hold 60 {}; sleep 60", probe.display(), mark.text());
        let ended = run.shell(&line);
        assert!(ended.code == 124, "{} {ended}", backend.name());
        assert!(ended.took < Backend::patience(20), "{} {ended}", backend.name());
        assert!(ended.stderr.contains("2s") || ended.stderr.contains("time"), "{} {ended}", backend.name());
        assert!(vanishes(mark.text(), Backend::patience(2)), "{} left the command running", backend.name());
    }
    let clamped = bench.run(Backend::isolated()).flags(["--timeout", "5h"]).command(["true"]);
    assert!(
        clamped.code == 0 && clamped.stderr.contains("30"),
        "a longer wish is clamped, and said so: {clamped}"
    );
}
