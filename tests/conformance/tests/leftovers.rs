//! Promise: nothing is left behind: after exit, timeout, cancel, and `kill -9` of the command line.
//! DESIGN §4, §10; S3.17, S3.18; L01, L09, L11.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockgate_conformance::{
    Backend, Bench, Canary, Live, Needs, Network, ask_engine, control_groups, files_under, mount_points,
    objects, processes_named, ready, vanishes, within,
};
use serde_json::Value;

/// Returns what of run `id` is still on the machine.
fn left(bench: &Bench, mark: &Canary, id: &str) -> Vec<String> {
    let mut left: Vec<String> = processes_named(mark.text()).into_iter().map(|(_, line)| line).collect();
    left.extend(processes_named(id).into_iter().map(|(_, line)| line));
    left.extend(mount_points(id));
    left.extend(mount_points(bench.workspace().to_str().unwrap()));
    left.extend(control_groups(id).into_iter().map(|path| path.display().to_string()));
    match Backend::isolated() {
        Backend::Docker | Backend::Podman => left.extend(objects(id)),
        Backend::Veth | Backend::ContainerVeth => left.extend(Network::shared().made(id)),
        _ => {}
    }
    let workspace = files_under(&bench.workspace()).into_iter().filter(|path| path != Path::new("probe"));
    left.extend(workspace.map(|path| format!("{} in the workspace", path.display())));
    let temporary = |path: &PathBuf| {
        let path = path.to_string_lossy();
        path.contains(".tmp") || path.ends_with(".sock") || path.ends_with(".lock") && path.contains(id)
    };
    left.extend(
        files_under(&bench.state()).into_iter().filter(temporary).map(|path| path.display().to_string()),
    );
    left
}

fn nothing_left(bench: &Bench, mark: &Canary, id: &str, after: &str) {
    assert!(
        within(Backend::patience(3), || left(bench, mark, id).is_empty()),
        "after {after}: {:?}",
        left(bench, mark, id)
    );
}

// S0.25, S1.9, S4.57
#[test]
fn nothing_is_left_after_any_end() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    std::thread::scope(|scope| {
        for signal in ["TERM", "INT", "HUP", "KILL"] {
            scope.spawn(move || nothing_is_left_after(signal));
        }
    });
}

#[test]
fn a_container_that_somebody_renames_is_taken_away() {
    if !Backend::isolated().is_engine() || !ready(&[]) {
        return;
    }
    let bench = Bench::new();
    let (live, id) =
        bench.run(Backend::isolated()).begin("begun; while [ ! -e go ]; do sleep 0.1; done; rm go");
    let renamed = format!("/containers/lockgate-agent-{id}/rename?name=renamed-{id}");
    assert_eq!(ask_engine("POST", &renamed, &Value::Null).0, 204);
    std::fs::write(bench.workspace().join("go"), "").unwrap();
    let ended = live.wait();
    assert!(ended.code == 0 && !ended.stderr.contains("take back"), "{ended}");
    assert!(within(Backend::patience(10), || objects(&id).is_empty()), "{:?}", objects(&id));
}

// The mounts inside are taken apart soon after a run has ended.
#[test]
fn a_file_system_that_was_shown_can_be_unmounted_afterwards() {
    // Only a user who may mount can test this, and an engine does not see mounts made here.
    let is_engine = matches!(Backend::isolated(), Backend::Docker | Backend::Podman);
    if is_engine || !ready(&[Needs::Linux, Needs::Root]) {
        return;
    }
    const SCRIPT: &str = r#"
        mount -t tmpfs none "$1"
        cd "$1"
        folder=$1
        shift
        "$@" &
        tries=0
        until [ -e began ]; do tries=$((tries + 1)); [ $tries -lt 200 ]; sleep 0.05; done
        cd /
        ! umount "$folder" 2>/dev/null || exit 3
        echo >"$folder/over"
        wait $!
        tries=0
        until umount "$folder" 2>/dev/null; do tries=$((tries + 1)); [ $tries -lt 40 ]; sleep 0.05; done"#;
    const COMMAND: &str = "echo >began; until [ -e over ]; do sleep 0.05; done";
    let bench = Bench::new();
    let folder = bench.workspace();
    let mut behind: Vec<OsString> =
        ["unshare", "--mount", "--propagation", "private", "sh", "-euc", SCRIPT, "sh"].map(Into::into).into();
    behind.push(folder.into());
    let ended = bench.run(Backend::isolated()).behind(behind).command(["sh", "-c", COMMAND]);
    assert!(ended.code == 0, "{ended}");
}

// L03: not even an ended process. Whoever adopts those of a run, as the first process of a container does, may never ask for them.
#[test]
fn a_run_leaves_nobody_to_be_reaped() {
    // What is at an engine is taken away behind the run, by a process that outlives it.
    if Backend::isolated().is_engine() || !ready(&[Needs::Linux]) {
        return;
    }
    // Runs a program that is to end with a code, and tells how many others it left to this process: dead ones, and those that die soon.
    const ADOPTS: &str = r#"
import ctypes, os, subprocess, sys, time
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
code, left = subprocess.run(sys.argv[2:]).returncode, 0
until = time.monotonic() + 20
while time.monotonic() < until:
    try:
        left += os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        break
    time.sleep(0.01)
sys.exit(10 + left if code == int(sys.argv[1]) else code)"#;
    let adopts = |code: &str| ["python3", "-c", ADOPTS, code].map(OsString::from);
    let [python, rest @ ..] = adopts("7");
    let leaves_two = ["sh", "-c", "sh -c 'sleep 0.1 & sleep 0.2 &'; exit 7"];
    let control = std::process::Command::new(python).args(rest).args(leaves_two).status().unwrap();
    assert_eq!(control.code(), Some(12), "who adopts sees what is left");
    let bench = Bench::new();
    for (flags, command, code) in
        [(&[][..], "exit 7", "7"), (&["--timeout", "1s"], "sleep 60 & sleep 60", "124")]
    {
        let run = bench.run(Backend::isolated()).flags(flags).behind(adopts(code));
        let ended = run.command(["sh", "-c", command]);
        assert!(ended.code == 10, "{ended}");
    }
}

fn nothing_is_left_after(signal: &str) {
    let (bench, mark) = (Bench::new(), Canary::draw());
    let (live, id) = bench.run(Backend::isolated()).hold(&mark);
    assert!(!left(&bench, &mark, &id).is_empty(), "the inventory does not see a running run");
    live.signal(signal);
    if signal == "INT" {
        // The first Ctrl-C asks, the second kills.
        std::thread::sleep(Duration::from_millis(300));
        if std::path::Path::new(&format!("/proc/{}", live.id())).exists() {
            live.signal(signal);
        }
    }
    let ended = live.wait();
    assert!(ended.code != 0, "{signal}: {ended}");
    assert!(vanishes(mark.text(), Backend::patience(3)), "{signal}: the command goes on");
    if signal == "KILL" {
        // The next start removes what a killed command line could not.
        assert!(bench.run(Backend::isolated()).command(["true"]).code == 0);
    }
    nothing_left(&bench, &mark, &id, signal);
}

// S4.58. S3.18: none is kept stopped for a while, so there is no age at which it is removed.
#[test]
fn a_stopped_container_of_a_dead_run_goes_with_the_next_start() {
    if !Backend::isolated().is_engine() || !ready(&[Needs::Linux]) {
        return;
    }
    let (bench, mark) = (Bench::new(), Canary::draw());
    let (live, id) = bench.run(Backend::isolated()).hold(&mark);
    let all = processes_named(mark.text());
    let (ours, commands): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(_, line)| line.contains("--backend"));
    assert!(!ours.is_empty() && !commands.is_empty(), "{ours:?} {commands:?}");
    // Stopped before any is killed: on a busy machine the last of them would have begun to clean up behind the first.
    for (signal, group) in [("STOP", &ours), ("KILL", &commands), ("KILL", &ours)] {
        let ids = group.iter().map(|(process, _)| process.to_string());
        let status = std::process::Command::new("kill").args(["-s", signal]).args(ids).status();
        // One of the command's may end with another.
        assert!(status.is_ok_and(|status| status.success() || group == &commands), "{signal}: {group:?}");
    }
    let _ = live.wait();
    // The second is Podman's name for it.
    let is_stopped =
        |it: &&String| [r#""State":"exited""#, r#""State":"stopped""#].iter().any(|word| it.contains(word));
    let stopped = || objects(&id).iter().filter(is_stopped).count();
    assert!(within(Backend::patience(5), || stopped() > 0), "none is stopped: {:?}", objects(&id));
    std::thread::sleep(Duration::from_secs(2));
    assert!(stopped() > 0, "somebody else took it away, and this test shows nothing: {:?}", objects(&id));
    let ended = bench.run(Backend::isolated()).command(["true"]);
    assert!(ended.code == 0, "{ended}");
    assert!(within(Backend::patience(2), || objects(&id).is_empty()), "{:?}", objects(&id));
}

#[test]
fn nothing_is_left_after_a_timeout_or_a_hundred_runs() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let (bench, mark) = (Bench::new(), Canary::draw());
    let (live, id) = bench.run(Backend::isolated()).flags(["--timeout", "1s"]).hold(&mark);
    assert!(live.wait().code == 124);
    nothing_left(&bench, &mark, &id, "a timeout");

    // Four at a time: each waits longer than it works.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let ended = bench.run(Backend::isolated()).command(["true"]);
                    assert!(ended.code == 0, "{ended}");
                }
            });
        }
    });
    let ids = bench.lockgate(&["runs", "ls", "-q"]).stdout;
    assert!(ids.lines().count() > 100, "{ids}");
    // Other tests make and remove groups at the same time.
    let is_ours = |group: &PathBuf| ids.lines().any(|id| group.ends_with(format!("lockgate-{id}")));
    let left = || control_groups("lockgate").into_iter().filter(is_ours).collect::<Vec<_>>();
    assert!(within(Backend::patience(5), || left().is_empty()), "{:?}", left());
    assert!(mount_points(bench.workspace().to_str().unwrap()).is_empty());
}

#[test]
fn two_hundred_at_once_come_and_go() {
    if !ready(&[Needs::Linux, Needs::ManyRuns]) {
        return;
    }
    let (bench, mark) = (Bench::new(), Canary::draw());
    let run = bench.run(Backend::isolated());
    let probe = bench.probe();
    // An engine takes a second of processor time for each, so two hundred are not tried there.
    let many = if Backend::isolated().is_engine() { 24 } else { 200 };
    let all: Vec<Live> =
        (0..many).map(|_| run.start([probe.to_str().unwrap(), "hold", "5", mark.text()])).collect();
    for live in all {
        let ended = live.wait_within(Duration::from_secs(170));
        assert!(ended.code == 0, "{ended}");
    }
    assert!(vanishes(mark.text(), Backend::patience(5)), "{:?}", processes_named(mark.text()));
}
