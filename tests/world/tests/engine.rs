//! What the engines of the `engine` program provide to their containers, and that nothing of one is left, however it ended. A sandbox in
//! containers relies on the properties of docker's networks proven here.
#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use lockgate_needs::{made_by_setup, met, program};
use lockgate_world::World;
use rustix::process::{Pid, Signal, geteuid, kill_process};

/// How long an engine may take to end.
const PATIENCE: Duration = Duration::from_secs(15);

/// Returns the prefix of a command, or prints why the test is skipped and returns `None`.
fn engine(flags: &[&str]) -> Option<Vec<PathBuf>> {
    let program = program("engine").unwrap();
    let has = |tool: &str| {
        ["/usr/local/bin", "/usr/sbin", "/usr/bin"].iter().any(|it| Path::new(it).join(tool).is_file())
    };
    let archive = match () {
        () if !geteuid().is_root() => Err("this test needs to be root".to_owned()),
        () if !has("dockerd") || !has("docker") => {
            Err("`dockerd` or `docker` (docker.io) is not installed".to_owned())
        }
        () => made_by_setup("images/debian.tar"),
    };
    let archive = met(archive)?;
    let flags = flags.iter().map(PathBuf::from).chain(["--archive".into(), archive, "--".into()]);
    Some([program].into_iter().chain(flags).collect())
}

/// Runs a line of shell beside an engine in the world.
fn in_world(world: &World, line: &str) -> Option<Output> {
    let words = engine(&["--here"])?;
    let mut command = world.command(&words[0]);
    let output = command.args(&words[1..]).args(["sh", "-ec", line]).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(output)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns whether `there` becomes true in time.
fn in_time(mut there: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !there() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

#[test]
fn the_status_is_the_commands_own() {
    let Some(words) = engine(&[]) else { return };
    let status = |line| Command::new(&words[0]).args(&words[1..]).args(["sh", "-c", line]).status().unwrap();
    assert_eq!(status("docker image inspect debian > /dev/null && exit 7").code(), Some(7));
    assert_eq!(status("kill -9 $$").code(), Some(128 + 9));
}

#[test]
fn containers_resolve_names_of_the_world_and_reach_its_servers() {
    let Some(world) = World::for_test() else { return };
    let line = "docker network create user > /dev/null
        for network in bridge user; do
            docker run --rm --network $network debian curl -sS http://api.example.com/$network
        done";
    let Some(output) = in_world(&world, line) else { return };
    let paths: Vec<_> =
        world.records_of("web").into_iter().map(|record| record.detail["target"].clone()).collect();
    assert!(said(&output).matches("\"web\"").count() == 2, "{output:?} {paths:?}");
}

#[test]
fn an_internal_network_is_shut_but_for_a_resolver_that_is_in_it() {
    let Some(world) = World::for_test() else { return };
    // The resolver answers each query with 192.0.2.1 (RFC 5737).
    let resolver = r#"import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("0.0.0.0", 53))
while True:
    d, a = s.recvfrom(2048); q = d[12:d.index(b"\0", 12) + 5]
    answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\xc0\0\2\1" if q[-4:] == b"\0\1\0\1" else b""
    s.sendto(d[:2] + b"\x81\x80\0\1\0" + bytes([len(answer) > 0]) + b"\0\0\0\0" + q + answer, a)"#;
    let dial = r#"import socket
for address in ("10.213.7.1", "192.168.77.2", "172.17.0.1", "93.184.216.34"):
    s = socket.socket(); s.settimeout(1)
    try: s.connect((address, 8001)); print(address, "reached")
    except OSError: pass"#;
    let line = format!(
        "docker network create --internal --subnet 10.213.7.0/26 \
             -o com.docker.network.bridge.inhibit_ipv4=true inner > /dev/null
        run() {{ docker run --rm --network inner --ip 10.213.7.2 \"$@\"; }}
        run debian timeout 3 getent hosts alone.example.com && exit 1
        docker run -d --network inner --ip 10.213.7.3 debian python3 -c '{resolver}' > /dev/null
        run --dns 10.213.7.3 debian getent hosts inner.example.com
        run debian python3 -c '{dial}'"
    );
    let Some(output) = in_world(&world, &line) else { return };
    let said = said(&output);
    assert!(said.contains("192.0.2.1") && !said.contains("reached"), "{output:?}");
    // No resolver outside was queried.
    let asked = world.records().into_iter().filter(|record| record.event == "query");
    let asked: Vec<String> = asked.map(|record| record.detail["name"].to_string()).collect();
    assert!(!asked.iter().any(|name| name.contains("example.com")), "{asked:?}");
}

/// Starts an engine with a container in it, and returns it with the folder of its files.
fn started(words: &[PathBuf]) -> (Child, PathBuf) {
    let line = "docker run -d debian sleep 600 > /dev/null; echo \"$DOCKER_HOST\"; exec sleep 600";
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["sh", "-c", line]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut host = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut host).unwrap();
    let socket = Path::new(host.trim().trim_start_matches("unix://"));
    (child, socket.parent().unwrap().to_owned())
}

/// Returns what of the engine in `folder` is on the machine: files, processes, control groups.
fn left(folder: &Path) -> Vec<String> {
    let name = folder.file_name().unwrap().to_string_lossy().into_owned();
    let mut left: Vec<String> = folder.exists().then(|| name.clone()).into_iter().collect();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        left.extend(line.contains(&name).then_some(line));
    }
    for hierarchy in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
        let group = hierarchy.path().join(&name);
        left.extend(group.exists().then(|| group.display().to_string()));
    }
    left
}

#[test]
fn nothing_is_left_of_an_engine() {
    let Some(words) = engine(&[]) else { return };
    for signal in [Signal::TERM, Signal::KILL] {
        let (mut child, folder) = started(&words);
        assert!(left(&folder).len() > 2, "{:?}", left(&folder));
        kill_process(Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap();
        assert!(in_time(|| left(&folder).is_empty()), "after {signal:?}: {:?}", left(&folder));
    }
}
