//! Promise: the caller never waits for a pipe that a grandchild still holds, and no output is lost.
//! L05, L07.

use lockgate_conformance::{Backend, Bench, Canary, Needs, ready, vanishes};

#[test]
fn a_grandchilds_pipe_does_not_hold_the_caller() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    for backend in Backend::all() {
        let mark = Canary::draw();
        let ended =
            bench.run(backend).command([bench.probe().to_str().unwrap(), "orphan", "20", mark.text()]);
        assert!(ended.code == 0 && ended.stdout.contains("\"done\""), "{} {ended}", backend.name());
        assert!(ended.took < Backend::patience(5), "{} {ended}", backend.name());
        if backend == Backend::isolated() {
            assert!(vanishes(mark.text(), Backend::patience(1)));
        }
    }
}

// S4.56
#[test]
fn output_is_whole() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    for backend in Backend::all() {
        let ended = bench.run(backend).shell("head -c 3000000 /dev/zero | tr '\\0' x; echo end >&2");
        assert!(
            ended.code == 0 && ended.stdout.len() == 3_000_000,
            "{}: {} octets",
            backend.name(),
            ended.stdout.len()
        );
        assert!(ended.stderr.contains("end"), "{}", backend.name());
    }
}
