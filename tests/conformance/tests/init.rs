//! Promise: the sandbox's own init cannot be read, traced, stopped or killed by what it guards.
//! THREATS X "own init".

use std::fs;

use lockgate_conformance::{
    Backend, Bench, Canary, Needs, Seen, makes_user_root, processes_named, ready, within,
};

#[test]
fn init_is_out_of_reach() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let own = std::process::id().to_string();
    bench.controls(&[&["proc-read", &own]]);
    let run = bench.run(Backend::isolated());
    run.nothing_works(&[&["stop-init"], &["ptrace", "1"]]);
    let seen = run.probe(&["proc-read", "1"]);
    // Root of a namespace may count init's open descriptors (docs/docker.md). Reading them, and all else, is refused there as well.
    let counts = |seen: &Seen| {
        let all = seen.detail().as_object().unwrap();
        all.iter()
            .all(|(part, said)| part == "fd" || said.as_str().is_some_and(|it| it.starts_with("refused")))
    };
    assert!(!seen.done() || makes_user_root() && counts(&seen), "{seen}");
    let ended = run.harm("kill -9 1; kill -15 1; kill -19 1; sleep 0.2; echo still here");
    assert!(ended.code == 0 && ended.stdout.contains("still here"), "{ended}");
    assert!(run.probe(&["identity"]).number("pid") != 1, "the command is process 1 and would have to reap");
}

/// A thread with an unblocked signal would take it for the whole process at the moment another thread starts the command.
#[test]
fn no_thread_of_init_at_an_engine_takes_a_signal() {
    if !Backend::isolated().is_engine() || !ready(&[Needs::Linux, Needs::Root]) {
        return;
    }
    let (bench, mark) = (Bench::new(), Canary::draw());
    let hold = bench.probe();
    let live = bench.run(Backend::isolated()).start([hold.to_str().unwrap(), "hold", "30", mark.text()]);
    let field = |status: &str, name: &str| {
        let text = fs::read_to_string(status).ok()?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line[name.len()..].trim().to_owned())
    };
    let is_init = |id: &String| {
        fs::read_to_string(format!("/proc/{id}/cmdline")).is_ok_and(|line| line.contains("engine-agent"))
    };
    let init = || {
        let named = processes_named(mark.text());
        let parent = |(id, _): &(u32, String)| field(&format!("/proc/{id}/status"), "PPid:");
        named.iter().filter_map(parent).find(is_init)
    };
    assert!(within(Backend::patience(10), || init().is_some()), "the command did not start");
    let threads = fs::read_dir(format!("/proc/{}/task", init().unwrap())).unwrap().flatten();
    let blocked: Vec<u64> = threads
        .filter_map(|thread| field(thread.path().join("status").to_str()?, "SigBlk:"))
        .map(|mask| u64::from_str_radix(&mask, 16).unwrap())
        .collect();
    // SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGPIPE, SIGALRM, SIGTERM, and SIGCHLD: signal(7).
    let fatal = [1, 2, 3, 10, 12, 13, 14, 15, 17].iter().fold(0, |mask, number| mask | 1u64 << (number - 1));
    assert!(blocked.len() >= 2 && blocked.iter().all(|mask| mask & fatal == fatal), "{blocked:x?}");
    live.signal("TERM");
    let ended = live.wait();
    assert!(ended.code == 143, "{ended}");
}
