//! Promise: a run at Docker's engine is over when its command has ended and its sidecar has said its last word; what the engine has of it
//! goes behind it, by somebody who holds nothing of the caller's, and is never forgotten.
//! S3.16, S3.17; L01, L05.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use lockgate_conformance::{
    Backend, Bench, Live, Needs, Run, ask_engine, objects, processes_named, promised, ready, within,
};
use serde_json::{Value, json};

/// The wrapper that reads the command's output to the end of the pipe.
const READ: [&str; 4] = ["/bin/sh", "-c", r#""$@" | cat"#, "sh"];

/// Starts a run that goes on until it is told to end.
fn until_told(run: &Run) -> (Live, String) {
    let line = "begun; while [ ! -e go ]; do sleep 0.1; done; echo said";
    run.clone().caller("SIDECAR_POOL_SIZE", "0").begin(line)
}

/// Starts a foreign container on a run's network. The engine keeps the network while that container is there.
fn visit(run: &str) -> String {
    let (_, about) = ask_engine("GET", &format!("/containers/lockgate-agent-{run}/json"), &Value::Null);
    let network = format!("lockgate-exec-{run}");
    let request = json!({
        "Image": about["Config"]["Image"], "Cmd": ["sleep", "120"], "HostConfig": {"NetworkMode": network}
    });
    let (status, made) = ask_engine("POST", "/containers/create", &request);
    assert_eq!(status, 201, "{made}");
    let id = made["Id"].as_str().unwrap().to_owned();
    let (status, said) = ask_engine("POST", &format!("/containers/{id}/start"), &Value::Null);
    assert_eq!(status, 204, "{said}");
    id
}

fn leave(visitor: &str) {
    let (status, said) = ask_engine("DELETE", &format!("/containers/{visitor}?force=1"), &Value::Null);
    assert_eq!(status, 204, "{said}");
}

/// Returns what the engine has of a run, without what a test added.
fn left(run: &str) -> Vec<String> {
    objects(&format!("lockgate-exec-{run}"))
}

/// The processes that clean up behind the runs of this bench.
fn behind(bench: &Bench) -> Vec<u32> {
    let of_bench = processes_named(bench.workspace().to_str().unwrap());
    of_bench.into_iter().map(|(process, _)| process).collect()
}

fn lock_file(bench: &Bench, run: &str) -> PathBuf {
    bench.state().join("lockgate/live").join(run)
}

#[test]
fn whoever_takes_away_behind_a_run_holds_nothing_of_the_callers_and_tells_what_is_left() {
    if !promised("behind") || !ready(&[]) {
        return;
    }
    let bench = Bench::new();
    let (live, id) = until_told(&bench.run(Backend::isolated()).behind(READ));
    let visitor = visit(&id);
    bench.file("workspace/go", "");
    // The reader has reached the end of its pipe. L05
    let ended = live.wait();
    assert!(ended.code == 0 && ended.stdout == "said\n", "{ended}");
    let all = behind(&bench);
    assert!(!all.is_empty() && lock_file(&bench, &id).exists(), "nobody is behind the run any more");
    for process in all {
        let files = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        let files: Vec<String> = files
            .flat_map(|file| std::fs::read_link(file.path()))
            .map(|to| to.display().to_string())
            .collect();
        let foreign =
            |it: &&String| it.starts_with("pipe:") || it.starts_with("/dev/pts") || it.contains(".jsonl");
        let held: Vec<&String> = files.iter().filter(foreign).collect();
        assert!(held.is_empty(), "{process} holds {held:?} of {files:?}");
    }
    // The engine learns of it a little after the run.
    let runs = || {
        let (status, about) =
            ask_engine("GET", &format!("/containers/lockgate-agent-{id}/json"), &Value::Null);
        status != 404 && about["State"]["Running"] != false
    };
    assert!(within(Duration::from_secs(5), || !runs()), "the command's container runs");

    assert!(within(Backend::patience(2), || behind(&bench).is_empty()), "it tries for ever");
    let shown = bench.lockgate(&["runs", "show", &id]).stdout;
    assert!(shown.contains("could not be taken away") && shown.contains("active endpoints"), "{shown}");
    assert!(shown.contains("the next run tries again") && shown.contains("exited 0"), "{shown}");
    leave(&visitor);
    let shown = bench.lockgate(&["runs", "show", &id]).stdout;
    assert!(shown.contains("it is gone now") && !shown.contains("tries again"), "{shown}");
    assert!(left(&id).is_empty() && !lock_file(&bench, &id).exists(), "{:?}", left(&id));
}

// S4.58
#[test]
fn what_was_left_when_everybody_was_killed_is_found_by_the_next_start() {
    if !promised("behind") || !ready(&[]) {
        return;
    }
    let bench = Bench::new();
    let (live, id) = until_told(&bench.run(Backend::isolated()));
    let visitor = visit(&id);
    bench.file("workspace/go", "");
    assert!(live.wait().code == 0);
    let all = behind(&bench);
    assert!(!all.is_empty(), "nobody is behind the run");
    for process in all {
        let done = Command::new("kill").args(["-s", "KILL", &process.to_string()]).status();
        assert!(done.is_ok_and(|status| status.success()));
    }
    assert!(lock_file(&bench, &id).exists() && !left(&id).is_empty(), "{:?}", left(&id));
    leave(&visitor);
    let ended = bench.run(Backend::isolated()).command(["true"]);
    assert!(ended.code == 0, "{ended}");
    assert!(within(Backend::patience(1), || left(&id).is_empty()), "{:?}", left(&id)); // S3.17
    assert!(!lock_file(&bench, &id).exists());
}

#[test]
fn in_a_process_namespace_of_somebody_elses_nothing_is_left_behind() {
    if !promised("behind") || !ready(&[Needs::Root]) {
        return;
    }
    let bench = Bench::new();
    // Its first process is the run's; when that ends, the kernel ends all others.
    let apart = bench.run(Backend::isolated()).behind(["unshare", "--pid", "--fork", "--mount-proc"]);
    let (live, id) = until_told(&apart);
    assert!(!left(&id).is_empty(), "the inventory does not see a run that goes on");
    bench.file("workspace/go", "");
    let ended = live.wait_within(Duration::from_secs(60));
    assert!(ended.code == 0 && ended.stdout == "said\n", "{ended}");
    assert!(left(&id).is_empty() && !lock_file(&bench, &id).exists(), "{:?}", left(&id));
}
