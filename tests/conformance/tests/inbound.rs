//! Promise: a port inside is reached from outside only where it is declared, and by the sources that are.
//! S3.7, S3.9.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use lockgate_conformance::{Backend, Bench, Live, Needs, Run, promised, ready, within};

/// Answers each line with itself, over IPv4 and, on the next port, over IPv6.
const SERVER: &str = "import socket,threading
def serve(s):
 while True:
  c,_=s.accept(); threading.Thread(target=lambda:(c.sendall(b'inside:'+c.recv(100)),c.close()),daemon=True).start()
a=socket.socket(); a.bind(('127.0.0.1',7001)); a.listen()
b=socket.socket(socket.AF_INET6); b.setsockopt(socket.IPPROTO_IPV6,socket.IPV6_V6ONLY,1); b.bind(('::1',7002)); b.listen()
threading.Thread(target=serve,args=(b,),daemon=True).start()
open('up','w'); serve(a)";

/// A port that nobody has just now.
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
    promised("inbound") && ready(&[Needs::Linux])
}

#[test]
fn a_declared_port_is_reached_and_no_other() {
    if !here() {
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
    // Nobody listens there inside, and what is not declared is not open.
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
    if !here() {
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
