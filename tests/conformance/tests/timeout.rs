//! Promise: at its time limit a run is ended, whatever it does, and says so: exit 124.
//! S0.24, S1.34, S1.36, S4.14; DESIGN §4.

use std::process::{Command, Stdio};
use std::time::Duration;

use lockgate_conformance::{Backend, Bench, Canary, Live, Needs, processes_named, ready, vanishes, within};

#[test]
fn the_time_limit_ends_a_run() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let line = |seconds: u32, mark: &Canary| {
        let probe = bench.probe();
        format!("trap '' TERM INT HUP; '{}' hold {seconds} {}", probe.display(), mark.text())
    };
    // The control: without a limit it outlives that of the runs, and does not mind the signals that would end another.
    let mark = Canary::draw();
    let free = Live::start(Command::new("/bin/sh").args(["-c", &line(4, &mark)]).stdin(Stdio::null()));
    // When the probe is there, the trap is.
    let holds = || processes_named(mark.text()).iter().any(|(_, line)| !line.contains("trap"));
    assert!(within(Backend::patience(5), holds), "the control did not start");
    ["TERM", "INT", "HUP"].iter().for_each(|signal| free.signal(signal));
    let free = free.wait();
    assert!(free.code == 0 && free.took >= Duration::from_secs(4), "the control was ended: {free}");

    for backend in Backend::all() {
        let mark = Canary::draw();
        let run = bench.run(backend).flags(["--timeout", "2s"]);
        let ended = run.shell(&format!("{}; sleep 60", line(60, &mark)));
        assert!(ended.code == 124, "{} {ended}", backend.name());
        assert!(ended.took < Backend::patience(20), "{} {ended}", backend.name());
        let told = "timed out after 2s; --timeout, or `timeout` in the policy, sets it";
        assert!(ended.stderr.contains(told), "{} {ended}", backend.name());
        assert!(vanishes(mark.text(), Backend::patience(2)), "{} left the command running", backend.name());
    }
    let clamped = bench.run(Backend::isolated()).flags(["--timeout", "5h"]).command(["true"]);
    let told = "timeout 5h is longer than the ceiling; the run ends after 30m";
    assert!(clamped.code == 0 && clamped.stderr.contains(told), "{clamped}");
}
