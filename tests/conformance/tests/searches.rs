//! The control of `canary`: what its search finds. A process inside that has a secret in its environment or in its memory, and nowhere else,
//! is found there by the same search.

use lockgate_conformance::{Backend, Bench, Canary, Needs, ready};

#[test]
fn a_secret_in_another_process_inside_is_found() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    for (place, file) in [("environment", "environ"), ("heap", "mem")] {
        let secret = Canary::draw();
        let masked = secret.masked();
        let run = bench.run(Backend::isolated());
        let seen = run.probes(&[&["keep", place, &masked], &["walk-for", &masked, "everyone"]]);
        assert!(seen[0].done() && seen[1].done(), "{place}: {}{}", seen[0], seen[1]);
        assert!(seen[1].number("memories") > 0, "no memory was read: {}", seen[1]);
        let process = format!("/proc/{}/", seen[0].number("process"));
        let found: Vec<&str> = seen[1].detail()["found"]
            .as_array()
            .unwrap()
            .iter()
            .map(|found| found["place"].as_str().unwrap())
            .collect();
        assert!(found.contains(&format!("{process}{file}").as_str()), "{place}: {}", seen[1]);
        // A secret on the heap is in no file: nothing but the memory itself can have told it.
        let of_process =
            |place: &&str| place.starts_with(&process) && (file == "environ" || place.ends_with("/mem"));
        assert!(found.iter().all(of_process), "{place}: {}", seen[1]);
    }
}
