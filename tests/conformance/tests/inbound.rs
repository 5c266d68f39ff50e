//! Promise: a port inside is reached from outside only where it is declared, and by the sources that are.
//! S3.7, S3.9.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockgate_conformance::{
    Backend, Bench, Live, Needs, Network, Run, ask_engine, is_engine_without_root, promised, ready, within,
};

/// Echoes each line, over IPv4 and, on the next port, over IPv6.
const SERVER: &str = "import socket,threading
def serve(s):
 while True:
  c,_=s.accept(); threading.Thread(target=lambda:(c.sendall(b'inside:'+c.recv(100)),c.close()),daemon=True).start()
a=socket.socket(); a.bind(('127.0.0.1',7001)); a.listen()
b=socket.socket(socket.AF_INET6); b.setsockopt(socket.IPPROTO_IPV6,socket.IPV6_V6ONLY,1); b.bind(('::1',7002)); b.listen()
threading.Thread(target=serve,args=(b,),daemon=True).start()
open('up','w'); serve(a)";

/// Returns a port that is free now.
fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

fn run_with(bench: &Bench, policy: &str) -> Run {
    let file = bench.file("outside/policy.toml", policy);
    bench.run(Backend::isolated()).flags(["--policy", file.to_str().unwrap()])
}

fn served(bench: &Bench, policy: &str) -> Live {
    let live = run_with(bench, policy).start(["python3", "-c", SERVER]);
    assert!(within(Duration::from_secs(20), || bench.workspace().join("up").exists()), "{}", live.wait());
    live
}

fn ask(at: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&at, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"hello")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn here() -> bool {
    promised("inbound") && ready(if at_engine() { &[Needs::RootsEngine] } else { &[Needs::Linux] })
}

/// Whether an engine opens the ports: in its own network, to servers that listen on every address inside.
fn at_engine() -> bool {
    Backend::isolated().is_engine()
}

/// Returns what the addresses of the network of sidecars begin with.
fn of_sidecars() -> &'static str {
    match Backend::isolated() {
        Backend::Podman => "198.19.253",
        _ => "198.19.255",
    }
}

#[test]
fn a_declared_port_is_reached_and_no_other() {
    if at_engine() || !here() {
        return;
    }
    let bench = Bench::new();
    let [first, second, nobody] = [free_port(), free_port(), free_port()];
    let policy = format!(
        "[[inbound]]\ncontainer_port = 7001\nhost_port = {first}\n[[inbound]]\ncontainer_port = 7002\nhost_port = {second}\n\
         [[inbound]]\ncontainer_port = 7003\nhost_port = {nobody}\n"
    );
    let live = served(&bench, &policy);
    for port in [first, second] {
        for at in [SocketAddr::from(([127, 0, 0, 1], port)), format!("[::1]:{port}").parse().unwrap()] {
            assert_eq!(ask(at).unwrap(), "inside:hello", "{at}");
        }
    }
    // Nobody listens on that port inside, and an undeclared port is not open.
    assert!(ask(SocketAddr::from(([127, 0, 0, 1], nobody))).map_or(true, |answer| answer.is_empty()));
    for port in [7001, 7002] {
        assert!(ask(SocketAddr::from(([127, 0, 0, 1], port))).is_err(), "{port} is open here");
    }
    live.signal("TERM");
    assert!(live.wait().code == 143);
    assert!(within(Duration::from_secs(5), || ask(SocketAddr::from(([127, 0, 0, 1], first))).is_err()));
    let records: Vec<_> =
        bench.every_audit_record().into_iter().filter(|r| r["plane"] == "inbound").collect();
    let outcomes = |outcome: &str| records.iter().filter(|r| r["outcome"] == outcome).count();
    assert_eq!((outcomes("allowed"), outcomes("failed"), records.len()), (4, 1, 5), "{records:?}");
}

#[test]
fn who_is_not_among_the_sources_is_refused_before_anything_is_read() {
    if at_engine() || !here() {
        return;
    }
    let bench = Bench::new();
    let port = free_port();
    let policy = format!(
        "[[inbound]]\ncontainer_port = 7001\nhost_port = {port}\nallowed_sources = [\"127.0.0.2\", \"10.0.0.0/8\"]\n"
    );
    let live = served(&bench, &policy);
    let at = SocketAddr::from(([127, 0, 0, 1], port));
    assert!(ask(at).map_or(true, |answer| answer.is_empty()), "127.0.0.1 was let in");
    live.signal("TERM");
    let ended = live.wait();
    assert!(ended.stderr.contains("source_not_allowed"), "{ended}");
    let records = bench.every_audit_record();
    let denied = records.iter().find(|r| r["plane"] == "inbound").unwrap();
    assert!(denied["guard"] == "source_not_allowed" && denied["received"] == 0, "{denied}");
}

#[test]
fn a_port_in_use_is_an_error_before_anything_starts() {
    if !here() {
        return;
    }
    let bench = Bench::new();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let ended = run_with(&bench, &format!("[[inbound]]\ncontainer_port = {port}\n")).shell("touch began");
    assert!(
        ended.code == 125 && ended.stderr.contains(&format!("open port {port} of this machine")),
        "{ended}"
    );
    assert!(!bench.workspace().join("began").exists());
}

/// Echoes each line on every address, until a file tells it to end.
const SERVER_AT_ENGINE: &str = "import os,socket
s=socket.socket(); s.bind(('0.0.0.0',7001)); s.listen(); s.settimeout(0.2); open('up','w')
while not os.path.exists('stop'):
 try: c,_=s.accept()
 except OSError: continue
 c.sendall(b'inside:'+c.recv(100)); c.close()";

/// Connects to an address and a port, and prints the answer.
const CLIENT: &str = "import socket,sys
try:
 c=socket.create_connection((sys.argv[1],int(sys.argv[2])),3); c.sendall(b'hello'); print(c.recv(100).decode() or 'nothing')
except ConnectionRefusedError: print('refused')
except OSError as error: print(error)";

/// A machine beside the engine's, on its LAN.
struct Neighbour(Child);

impl Neighbour {
    fn of(network: &Network) -> Self {
        let mut command =
            network.command(["unshare", "--net", "/bin/sh", "-c", "echo up; exec cat > /dev/null"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let moved = network.ask(&["ip", "link", "set", "wire", "netns", &child.id().to_string()]);
        assert!(moved.code == 0, "{moved}");
        let it = Self(child);
        // It routes packets for sidecars by way of the engine's machine, as a neighbour can.
        let set =
            "ip link set wire up && ip addr add 192.0.2.9/24 dev wire && ip route add $1.0/24 via 192.0.2.7";
        let done = it.command(&["sh", "-c", set, "sh", of_sidecars()]).status().unwrap();
        assert!(done.success());
        it
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.0.id())).arg("--").args(words);
        command
    }

    fn ask(&self, address: &str, port: &str) -> String {
        let output = self.command(&["python3", "-c", CLIENT, address, port]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

#[test]
fn what_an_engine_publishes_is_reached_by_who_may() {
    if !at_engine() || !here() {
        return;
    }
    let (bench, network) = (Bench::new(), Network::shared());
    let neighbour = Neighbour::of(network);
    let policy = "[[inbound]]\ncontainer_port = 7001\nhost_port = 17001\n\
                  [[inbound]]\ncontainer_port = 7001\nhost_port = 17002\nallowed_sources = [\"192.0.2.9\"]\n\
                  [[inbound]]\ncontainer_port = 7003\nhost_port = 17003\n";
    let live = run_with(&bench, policy).in_network().start(["python3", "-c", SERVER_AT_ENGINE]);
    assert!(within(Backend::patience(10), || bench.workspace().join("up").exists()), "{}", live.wait());
    let ask = |address: &str, port: &str| {
        network.ask(&["python3", "-c", CLIENT, address, port]).stdout.trim().to_owned()
    };
    assert_eq!(ask("127.0.0.1", "17001"), "inside:hello");
    assert_eq!(neighbour.ask("192.0.2.7", "17002"), "inside:hello");
    // Closed: what is open on loopback alone, a source that is not named, a port that is not declared. Docker uses no other family; with
    // Podman this machine itself listens.
    assert_eq!(neighbour.ask("192.0.2.7", "17001"), "refused");
    let of_machine = Backend::isolated() == Backend::Podman;
    assert_eq!(ask("::1", "17001"), if of_machine { "inside:hello" } else { "refused" });
    let not_named = [ask("192.0.2.7", "17002"), ask("127.0.0.1", "17002"), ask("127.0.0.1", "17003")];
    assert!(not_named.iter().all(|answer| !answer.contains("inside")), "{not_named:?}");
    assert_eq!((ask("127.0.0.1", "7001"), ask("192.0.2.7", "7001")), ("refused".into(), "refused".into()));
    // Past the engine's own address, where nothing stops a neighbour, the sidecar sees its source.
    let ports = ["17001", "8080", "8081", "41999", "53"];
    let sidecar = format!("{}.2", of_sidecars());
    let answers = std::thread::scope(|scope| {
        let past = |port| neighbour.ask(&sidecar, port);
        let asked = ports.map(|port| scope.spawn(move || (port, past(port))));
        asked.map(|one| one.join().unwrap())
    });
    for (port, answer) in answers {
        assert!(!answer.contains("inside") && !answer.contains("HTTP"), "{port}: {answer}");
    }
    bench.file("workspace/stop", "");
    assert!(live.wait().code == 0);
    assert_eq!(ask("127.0.0.1", "17001"), "refused");
    let records: Vec<_> =
        bench.every_audit_record().into_iter().filter(|r| r["plane"] == "inbound").collect();
    let of = |outcome: &str, from: &str| {
        let is = |r: &&serde_json::Value| {
            r["outcome"] == outcome && r["target"].as_str().unwrap_or_default().ends_with(from)
        };
        records.iter().filter(is).count()
    };
    assert_eq!((of("allowed", "from 127.0.0.1"), of("allowed", "from 192.0.2.9")), (1, 1), "{records:?}");
    assert_eq!(of("allowed", "from ::1"), usize::from(of_machine), "{records:?}");
    assert_eq!((of("failed", "from 127.0.0.1"), of("denied", "from 192.0.2.7")), (1, 1), "{records:?}");
    let loopback = if of_machine { "from 127.0.0.1" } else { &format!("from {}.1", of_sidecars()) };
    assert_eq!(of("denied", loopback), 1, "loopback of a port that is for others: {records:?}");
    // Where the engine lets it that far, the neighbour's way past is the only other one.
    let counted = 5 + usize::from(of_machine);
    assert!(records.len() - counted == of("denied", "from 192.0.2.9"), "{records:?}");
}

/// Connects, once a server is up, from here and from a container on the engine's network for others: to the sidecar's own address, and to
/// this machine's.
const STRANGER: &str = r#""$@" & for i in $(seq 600); do [ -e up ] && break; sleep 0.1; done
{ python3 -c "$CLIENT" 127.0.0.1 17001
all=$(for to in "$SIDECAR 17001" "$SIDECAR 17002" "192.0.2.7 17001" "192.0.2.7 17002"; do
  docker run -d debian python3 -c "$CLIENT" $to; done)
for id in $all; do
  for i in $(seq 100); do [ "$(docker inspect -f '{{.State.Running}}' $id)" = false ] && break; sleep 0.2; done
  docker logs $id; done; } > heard
touch stop; wait"#;

#[test]
fn a_container_on_another_network_of_the_engines_is_not_this_machine() {
    if !at_engine() || !here() {
        return;
    }
    let bench = Bench::new();
    let policy = "[[inbound]]\ncontainer_port = 7001\nhost_port = 17001\n\
                  [[inbound]]\ncontainer_port = 7001\nhost_port = 17002\nallowed_sources = [\"192.0.2.0/24\", \"127.0.0.1\"]\n";
    let sidecar = format!("{}.2", of_sidecars());
    let run = run_with(&bench, policy)
        .caller("CLIENT", CLIENT)
        .caller("SIDECAR", &sidecar)
        .behind(["sh", "-c", STRANGER, "sh"]);
    let ended = run.in_network().command(["python3", "-c", SERVER_AT_ENGINE]);
    let heard = std::fs::read_to_string(bench.workspace().join("heard")).unwrap_or_default();
    assert!(heard.starts_with("inside:hello\n") && heard.lines().count() == 5, "{heard}{ended}");
    assert_eq!(heard.matches("inside").count(), 1, "a stranger was let in: {heard}");
    let records: Vec<_> =
        bench.every_audit_record().into_iter().filter(|r| r["plane"] == "inbound").collect();
    let allowed = records.iter().filter(|r| r["outcome"] == "allowed").count();
    assert_eq!(allowed, 1, "{records:?}");
    if Backend::isolated() == Backend::Podman {
        // It reached the sidecar with the address that this machine would have.
        let machine = format!("from {}.1", of_sidecars());
        let is = |r: &&serde_json::Value| r["target"].as_str().unwrap_or_default().ends_with(&machine);
        assert!(records.iter().any(|r| is(&r) && r["outcome"] == "denied"), "{records:?}");
    }
}

/// Returns the engine's address.
fn engine(bench: &Bench) -> String {
    let host = bench.environment().into_iter().find(|(name, _)| *name == "DOCKER_HOST").unwrap().1;
    host.to_str().unwrap().to_owned()
}

/// Returns a proxy to the engine that alters what the engine says of itself, with a socket that belongs to `owner`.
fn disguised(bench: &Bench, owner: u32) -> String {
    let real = engine(bench).trim_start_matches("unix://").to_owned();
    let path = bench.outside().join(format!("engine-{owner}.sock"));
    let listener = UnixListener::bind(&path).unwrap();
    std::os::unix::fs::chown(&path, Some(owner), None).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut engine) = (client.unwrap(), UnixStream::connect(&real).unwrap());
            let (mut to, mut from) = (engine.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            std::thread::spawn(move || {
                let mut buffer = vec![0; 1 << 20];
                while let Ok(length @ 1..) = engine.read(&mut buffer) {
                    let said = String::from_utf8_lossy(&buffer[..length]).into_owned();
                    let said = said.replace("\"Name\":\"Engine\"", "\"Name\":\"Podman\"");
                    let _ = client.write_all(said.as_bytes());
                }
                let _ = client.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    format!("unix://{}", path.display())
}

#[test]
fn an_engine_that_hides_who_connects_opens_ports_for_this_machine_alone() {
    if Backend::isolated() != Backend::Docker || !here() {
        return;
    }
    let bench = Bench::new();
    assert_eq!(ask_engine("GET", "/version", &serde_json::Value::Null).1["Components"][0]["Name"], "Engine");
    let port = free_port();
    for owner in [0, 1000] {
        let host = disguised(&bench, owner);
        let local = format!("[[inbound]]\ncontainer_port = 7001\nhost_port = {port}\n");
        let policy = format!("{local}allowed_sources = [\"127.0.0.1\", \"10.0.0.0/8\"]\n");
        let ended = run_with(&bench, &policy).caller("DOCKER_HOST", &host).shell("touch began");
        assert!(ended.code == 125 && ended.stderr.contains("hides who connects"), "{owner}: {ended}");
        assert!(!bench.workspace().join("began").exists(), "{owner}");
    }
    // The control: the same run by the engine directly.
    let policy = format!(
        "[[inbound]]\ncontainer_port = 7001\nhost_port = {port}\nallowed_sources = [\"10.0.0.0/8\"]\n"
    );
    assert_eq!(run_with(&bench, &policy).shell("touch began").code, 0);
}

#[test]
fn podman_without_root_has_no_ports() {
    if Backend::isolated() != Backend::Podman || !promised("inbound") || !ready(&[Needs::Engine]) {
        return;
    }
    // A Podman says itself whether it is one: `rootless` has this run at one that is.
    if !is_engine_without_root() {
        return;
    }
    let bench = Bench::new();
    let host = engine(&bench);
    let port = format!("[[inbound]]\ncontainer_port = 7001\nhost_port = {}\n", free_port());
    let ended = run_with(&bench, &port).caller("DOCKER_HOST", &host).shell("touch began");
    assert!(ended.code == 125 && ended.stderr.contains("Podman's service without root"), "{ended}");
    assert!(!bench.workspace().join("began").exists());
}
