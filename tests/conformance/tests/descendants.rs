//! Promise: when the command ends, everything it started ends, however far it tried to get away.
//! L02; both backends.

use lockgate_conformance::{Backend, Bench, Canary, Needs, processes_named, ready, vanishes, within};

#[test]
fn descendants_end_with_the_command() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let mark = Canary::draw();
    assert!(bench.control(&["orphan", "20", mark.text(), "closed"]).done());
    assert!(
        within(Backend::patience(1), || !processes_named(mark.text()).is_empty()),
        "the control did not outlive"
    );

    for backend in Backend::all() {
        let named = backend.name();
        let mark = Canary::draw();
        let seen = bench.run(backend).probe(&["orphan", "60", mark.text(), "closed"]);
        assert!(seen.done(), "{seen}");
        assert!(vanishes(mark.text(), Backend::patience(1)), "{named}: {:?}", processes_named(mark.text()));

        let mark = Canary::draw();
        let hold =
            format!("trap \"\" HUP TERM; exec \"{}\" hold 60 {}", bench.probe().display(), mark.text());
        let ended = bench.run(backend).shell(&format!("(setsid sh -c '{hold}' &) ; sleep 0.2; kill -9 $$"));
        assert!(ended.code == 137, "{ended}");
        assert!(vanishes(mark.text(), Backend::patience(1)), "{named}: {:?}", processes_named(mark.text()));
    }
}

#[test]
fn what_a_command_leaves_running_is_asked_to_end_before_it_is_killed() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    for backend in Backend::all() {
        // It has 200 ms, in which a busy machine may not get round to it.
        let tidies = |attempt: u8| {
            let name = format!("{}-{attempt}", backend.name());
            let tidy = format!(
                "(trap ': > {name}-tidied; exit' TERM; : > {name}; while :; do sleep 0.01; done) & \
                 while ! test -e {name}; do sleep 0.01; done; exit 3"
            );
            let ended = bench.run(backend).shell(&tidy);
            assert_eq!(ended.code, 3, "{name}: {ended}");
            bench.workspace().join(format!("{name}-tidied")).exists()
        };
        assert!((0..5).any(tidies), "{}: killed at once", backend.name());
    }
}

#[test]
fn descendants_end_with_the_command_line() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    for backend in Backend::all() {
        let bench = Bench::new();
        let mark = Canary::draw();
        let probe = bench.probe();
        let probe = probe.to_str().unwrap();
        let line = format!("'{probe}' orphan 60 {0} closed; exec '{probe}' hold 60 {0}", mark.text());
        let live = bench.run(backend).start(["/bin/sh", "-c", &line]);
        // The orphan and the command: the command line and its helpers further up the tree carry the words too.
        let holds = |line: &str| {
            line.starts_with("/proc/self/exe hold") || line.starts_with(&format!("{probe} hold"))
        };
        let held = || processes_named(mark.text()).iter().filter(|(_, line)| holds(line)).count() == 2;
        assert!(
            within(Backend::patience(10), held),
            "the command did not start: {:?}",
            processes_named(mark.text())
        );
        live.signal("KILL");
        let gone = vanishes(mark.text(), Backend::patience(2));
        assert!(gone, "{} outlived a kill -9: {:?}", backend.name(), processes_named(mark.text()));
    }
}

#[test]
fn nothing_outlives_who_kills_its_supervisor() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let mark = Canary::draw();
    let probe = bench.probe();
    let probe = probe.display();
    // A process that hides in a new session, and the command itself, which continues after the kill.
    let line = format!(
        "trap '' HUP TERM; '{probe}' orphan 60 {0} closed; kill -9 $PPID; exec '{probe}' hold 60 {0}",
        mark.text()
    );
    let ended = bench.run(Backend::Process).shell(&line);
    assert!(ended.code == 125 && ended.stderr.contains("its first process was ended"), "{ended}");
    assert!(vanishes(mark.text(), Backend::patience(1)), "{:?}", processes_named(mark.text()));
}

#[test]
fn a_stopped_supervisor_of_a_killed_run_is_ended() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let mark = Canary::draw();
    let probe = bench.probe();
    // The supervisor is the command's parent, and can no longer see that its own parent is gone. proc_pid_stat(5)
    let line = format!(
        "read -r _ _ _ above _ < /proc/$PPID/stat; echo $PPID > supervisor; kill -STOP $PPID; kill -9 $above; exec '{}' hold 60 {}",
        probe.display(),
        mark.text()
    );
    let killed = bench.run(Backend::Process).shell(&line);
    assert!(killed.code == 137 && !processes_named(mark.text()).is_empty(), "{killed}");
    let next = bench.run(Backend::Process).shell("echo next");
    assert!(next.code == 0 && next.stdout == "next\n" && !next.stderr.contains("could not"), "{next}");
    assert!(vanishes(mark.text(), Backend::patience(1)), "{:?}", processes_named(mark.text()));
    // Where nobody reaps orphans it stays as a zombie.
    let supervisor = std::fs::read_to_string(bench.workspace().join("supervisor")).unwrap();
    let supervisor = format!("/proc/{}/stat", supervisor.trim());
    let is_over = || std::fs::read_to_string(&supervisor).map_or(true, |stat| stat.contains(") Z "));
    assert!(within(Backend::patience(1), is_over), "{killed}");
    assert_eq!(std::fs::read_dir(bench.state().join("lockgate/live")).unwrap().count(), 0);
}
