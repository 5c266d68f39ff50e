//! How a world begins and ends: exit statuses, signals, capabilities, and that nothing of it is left, however it ended.
#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockgate_needs::{met, succeeds};
use lockgate_world::World;
use rustix::process::{Pid, Signal, kill_process};

/// How long the kernel may take to end the rest of a world.
const PATIENCE: Duration = Duration::from_secs(5);

fn status(world: &World, script: &str) -> Option<i32> {
    world.command("sh").args(["-c", script]).stdin(Stdio::null()).status().unwrap().code()
}

/// Returns the machine's processes whose arguments contain `mark`.
fn processes(mark: &str) -> Vec<String> {
    let folders = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = folders.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(mark))
        .collect()
}

fn links() -> Vec<String> {
    let text = fs::read_to_string("/proc/net/dev").unwrap();
    text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts a command that prints its folder and then waits, and returns it with that folder.
fn waiting(world: &World, script: &str) -> (Child, String, BufReader<std::process::ChildStdout>) {
    let mut child =
        world.command("sh").args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut folder = String::new();
    lines.read_line(&mut folder).unwrap();
    (child, folder.trim().to_owned(), lines)
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id().try_into().unwrap()).unwrap(), signal).unwrap();
}

fn mark(world: &World) -> String {
    world.folder().display().to_string()
}

#[test]
fn the_status_is_the_commands_own() {
    let Some(world) = World::for_test() else { return };
    assert_eq!(status(&world, "exit 7"), Some(7));
    assert_eq!(status(&world, "kill -9 $$"), Some(137));
    assert_eq!(world.command("/no/such/program").stderr(Stdio::null()).status().unwrap().code(), Some(127));
    assert_eq!(world.command("/etc").stderr(Stdio::null()).status().unwrap().code(), Some(126));
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let Some(world) = World::for_test() else { return };
    let binary = world.command("true").get_program().to_owned();
    for arguments in [&["--nothing", "--", "true"][..], &["--records"], &["--"], &[]] {
        let output = Command::new(&binary).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("usage"));
    }
}

#[test]
fn nothing_is_left_after_the_end() {
    let Some(world) = World::for_test() else { return };
    let before = links();
    // A daemon that outlives the command and has left its process group.
    let script = format!("setsid sh -c 'sleep 600; : {}' >/dev/null 2>&1 & echo $WORLD_DIR", mark(&world));
    let (mut child, folder, _lines) = waiting(&world, &script);
    assert!(child.wait().unwrap().success());
    assert_eq!(processes(&mark(&world)), Vec::<String>::new());
    assert!(!folder.is_empty() && !fs::exists(&folder).unwrap(), "{folder}");
    assert_eq!(links(), before);
}

#[test]
fn nothing_is_left_when_it_is_killed() {
    let Some(world) = World::for_test() else { return };
    let script =
        format!("echo $WORLD_DIR; setsid sh -c 'sleep 600; : {}' >/dev/null 2>&1; sleep 600", mark(&world));
    let (mut child, folder, _lines) = waiting(&world, &script);
    wait_until("the daemon did not start", || {
        processes(&mark(&world)).iter().any(|line| line.starts_with("sh -c sleep"))
    });
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("processes are left", || processes(&mark(&world)).is_empty());
    wait_until("the folder is left", || !fs::exists(&folder).unwrap());
}

#[test]
fn signals_reach_the_command() {
    let Some(world) = World::for_test() else { return };
    for (name, number) in [("TERM", Signal::TERM), ("INT", Signal::INT), ("HUP", Signal::HUP)] {
        let script =
            format!("trap 'echo got; exit 42' {name}; echo $WORLD_DIR; while :; do sleep 0.05; done");
        let (mut child, _folder, mut lines) = waiting(&world, &script);
        signal(&child, number);
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert_eq!((line.trim(), child.wait().unwrap().code()), ("got", Some(42)), "{name}");
    }
}

#[test]
fn an_unprivileged_user_gets_the_same_world_and_no_capability() {
    let Some(world) = World::for_unprivileged_test() else { return };
    let script = "grep CapEff /proc/self/status; id -u; cat /proc/self/uid_map; \
                  curl -sS --max-time 5 https://api.example.com/ && curl -sS --max-time 5 http://169.254.169.254/";
    let output = world.command("sh").args(["-c", script]).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("CapEff:\t0000000000000000"), "{said}");
    let user = said.lines().nth(1).unwrap();
    assert_ne!(user, "0");
    assert_eq!(said.lines().nth(2).unwrap().split_whitespace().collect::<Vec<_>>(), [user, user, "1"]);
    let requested = |server| world.records_of(server).iter().any(|record| record.event == "request");
    assert!(requested("web") && requested("metadata"));
    assert_eq!(processes(&mark(&world)), Vec::<String>::new());
}

#[test]
fn an_unprivileged_user_can_make_a_sandbox_inside() {
    let Some(world) = World::for_unprivileged_test() else { return };
    let script = "unshare --user --map-root-user --mount --pid --fork --net sh -c 'mount -t proc proc /proc && mount -t tmpfs x /tmp'";
    assert_eq!(status(&world, script), Some(0));
}

#[test]
fn the_sockets_of_the_host_can_be_reached_and_are_recorded() {
    let Some(world) = World::for_unprivileged_test() else { return };
    let script = "import os, socket\nfor name in ('\\0world-abstract', os.environ['WORLD_UNIX_SOCKET']):\n \
                  s = socket.socket(socket.AF_UNIX)\n s.connect(name)\n assert s.recv(99) == b'hello from the host\\n'\n";
    let python =
        succeeds(Command::new("/usr/bin/python3").arg("--version"), "no Python to open a Unix socket with");
    if met(python).is_none() {
        return;
    }
    assert!(world.command("/usr/bin/python3").args(["-c", script]).status().unwrap().success());
    for server in ["host-abstract", "host-unix"] {
        assert!(world.records_of(server).iter().any(|record| record.event == "connect"), "{server}");
    }
}
