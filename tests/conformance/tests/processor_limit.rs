//! Promise: a run uses no more processor than it was given.
//! S1.31, S2.9.

use lockgate_conformance::{Backend, Bench, Needs, ready};

#[test]
fn processor_time_is_bounded() {
    if !ready(&[Needs::Linux, Needs::ControlGroups]) {
        return;
    }
    let bench = Bench::new();
    let share = |seen: &lockgate_conformance::Seen| {
        seen.detail()["processor"].as_f64().unwrap() / seen.detail()["wall"].as_f64().unwrap()
    };
    let control = share(&bench.control(&["spin", "2", "2"]));
    if control < 0.5 {
        // The machine is busy, so the number below would prove nothing.
        eprintln!("the control got only {control:.2} processors");
    }
    let inside = share(&bench.run(Backend::isolated()).flags(["--cpus", "0.25"]).probe(&["spin", "4", "2"]));
    assert!(inside < 0.4, "{inside:.2} processors of 0.25");
}
