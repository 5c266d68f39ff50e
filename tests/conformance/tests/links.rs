//! Promise: with `wiring = "veth"` a sandbox's link leads to its sidecar and nowhere else, nothing leads to it, and it goes
//! with the run. S2.11, S2.12, S2.13, S2.14.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use lockgate_conformance::{
    Backend, Bench, Canary, Ended, Live, Needs, Network, Run, Seen, World, files_under, ready, run, within,
};

/// Serves TCP and UDP at every address of the separate network, and writes down each client.
const SERVER: &str = "
import socket,sys,threading
t=socket.socket(); t.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); t.bind(('0.0.0.0',7777)); t.listen(64)
u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); u.bind(('0.0.0.0',7777))
def note(who): open(sys.argv[1],'a').write('%s\\n' % (who,))
def serve():
 while True:
  c,who=t.accept(); note(who); c.sendall(b'host\\n'); c.close()
threading.Thread(target=serve,daemon=True).start()
open(sys.argv[2],'w').write('up')
while True:
 data,who=u.recvfrom(2000); note(who); u.sendto(data,who)
";
/// Prints the gateway's address inside.
const GATEWAY: &str = r#"while read -r link to by rest; do [ "$to" = 00000000 ] && g=$by; done < /proc/net/route
a=${g#??????}; b=${g#????}; b=${b%??}; c=${g#??}; c=${c%????}; d=${g%??????}
gateway=$(printf '%d.%d.%d.%d' "0x$a" "0x$b" "0x$c" "0x$d")"#;

/// Whether this program tests a backend with links.
fn has_links() -> bool {
    Backend::isolated().has_link()
        || Backend::isolated() == Backend::Container && ready(&[Needs::Linux, Needs::Root, Needs::World])
}

fn linked(bench: &Bench) -> Run {
    match Backend::isolated() {
        linked @ (Backend::Veth | Backend::ContainerVeth) => bench.run(linked),
        other => bench.run(other).by_link(),
    }
}

/// Runs a script on a world's host, with a `lockgate run` command as its argument.
fn on_the_host(
    bench: &Bench,
    world: &World,
    linked: &Run,
    command: &[&str],
    script: impl Fn(&str) -> String,
) -> Ended {
    let words = linked.clone().within(world).words(command);
    let before = world.command_of(&[]).len();
    let line: Vec<String> = words[before..].iter().map(|word| quoted(&word.to_string_lossy())).collect();
    let all = world.command_of(&["sh", "-c", &script(&line.join(" "))].map(Into::into));
    let mut command = Command::new(&all[0]);
    run(command.args(&all[1..]).envs(bench.environment()).current_dir(bench.workspace()))
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Starts a server on the host, at every address, and returns the file it writes its clients to.
fn server(bench: &Bench) -> (Live, PathBuf) {
    let (came, up) = (bench.file("outside/came", ""), bench.outside().join("up"));
    let words = ["python3", "-c", SERVER, came.to_str().unwrap(), up.to_str().unwrap()];
    let live = Live::start(&mut Network::shared().command(words));
    assert!(within(Duration::from_secs(10), || up.exists()), "no server: {}", live.wait());
    (live, came)
}

#[test]
fn the_host_is_out_of_reach_by_whatever_address() {
    if !has_links() {
        return;
    }
    let (bench, other, mark) = (Bench::new(), Bench::new(), Canary::draw());
    let network = Network::shared();
    let (_server, came) = server(&bench);
    for control in [&["tcp", Network::ADDRESS, "7777"][..], &["tcp", "127.0.0.1", "7777"]] {
        assert!(network.probe(&bench, control).done(), "the control {control:?} did not work");
    }
    let (_other, id) = linked(&other).hold(&mark);
    let theirs = network.end_of(&id).expect("the address of the other run's link");
    let their_sandbox = std::net::Ipv4Addr::from(u32::from(theirs) + 1).to_string();
    let theirs = theirs.to_string();

    std::fs::write(&came, "").unwrap();

    let probe = bench.probe();
    let probe = probe.display();
    let mut script = format!("{GATEWAY}\necho \"$gateway\" > gateway\n");
    for address in ["$gateway", Network::ADDRESS, &theirs, &their_sandbox] {
        for port in ["7777", "9999", "9953", "22", "53"] {
            script += &format!("'{probe}' tcp {address} {port} hello\n");
        }
        for port in ["7777", "9999", "9953"] {
            script += &format!("'{probe}' udp {address} {port} hello\n");
        }
        script += &format!("'{probe}' icmp {address}\n");
    }
    let ended = linked(&bench).shell(&script);
    let gateway = std::fs::read_to_string(bench.workspace().join("gateway")).unwrap();
    assert!(gateway.starts_with("240.76."), "the script did not find its gateway: {gateway}");
    let seen = Seen::all(&ended);
    assert_eq!(seen.len(), 4 * 9, "{ended}");
    for seen in &seen {
        assert!(!seen.done(), "reached: {seen}");
    }
    // E20: each ends at once, but for what begins like a question over TCP at port 53, whose rest is awaited.
    for of_address in seen.chunks(9) {
        for tcp in &of_address[..4] {
            assert!(tcp.detail()["ms"].as_u64().is_some_and(|it| it < 1000), "not within a second: {tcp}");
        }
        for udp in &of_address[5..8] {
            assert_eq!(udp.errno(), "ECONNREFUSED", "{udp}");
        }
    }
    let came = std::fs::read_to_string(came).unwrap();
    assert!(came.is_empty(), "the host's server was reached: {came}");
}

#[test]
fn the_wall_stands_when_the_host_flushes_its_rules() {
    if !has_links() {
        return;
    }
    let (bench, mark) = (Bench::new(), Canary::draw());
    // A separate network: what is flushed is shared by all.
    let world = World::new(&bench);
    let probe = bench.probe();
    let line = format!(
        "until [ -e flushed ]; do sleep 0.1; done
         '{0}' tcp 192.168.77.2 7777 {1}; '{0}' http api.example.com 80 /after",
        probe.display(),
        mark.text()
    );
    let (came, up) = (bench.file("outside/came", ""), bench.outside().join("up"));
    let linked = linked(&bench).allow("api.example.com");
    let ended = on_the_host(&bench, &world, &linked, &["/bin/sh", "-c", &line], |run| {
        format!(
            "python3 -c {} '{}' '{}' & server=$!
             until [ -e '{}' ]; do sleep 0.1; done
             {run} & run=$!
             until nft list tables | grep -q lockgate-; do sleep 0.1; done
             nft flush ruleset; nft list tables; touch flushed; wait $run; kill $server",
            quoted(SERVER),
            came.display(),
            up.display(),
            up.display()
        )
    });
    assert!(
        ended.stdout.contains("table inet lockgate-"),
        "the table was flushed (before Linux 6.9?): {ended}"
    );
    let seen = Seen::all(&ended);
    assert!(seen.len() == 2 && !seen[0].done() && seen[1].done(), "{ended}");
    assert!(std::fs::read_to_string(came).unwrap().is_empty(), "the host's server was reached");
}

#[test]
fn nobody_else_reaches_a_link_or_what_is_behind_it() {
    if !has_links() {
        return;
    }
    let (bench, mark) = (Bench::new(), Canary::draw());
    let network = Network::shared();
    let (_live, id) = linked(&bench).hold(&mark);
    let here = network.end_of(&id).expect("the address of the link");
    let there = std::net::Ipv4Addr::from(u32::from(here) + 1).to_string();
    let here = here.to_string();
    let listening = network.ask(&["ss", "-Hltun", "src", &here]).stdout;
    assert!(
        listening.lines().count() == 3,
        "the sidecar's sockets are not where they should be: {listening}"
    );
    for attempt in [
        ["tcp", &here, "9999", "GET / HTTP/1.0\r\n\r\n"],
        ["tcp", &here, "9953", "hello"],
        ["udp", &here, "9953", "hello"],
        ["tcp", &there, "22", "hello"],
        ["udp", &there, "53", "hello"],
    ] {
        let seen = network.probe(&bench, &attempt);
        assert!(!seen.done(), "{attempt:?} worked from the host: {seen}");
    }
    let question = network.probe(&bench, &["dns", "api.example.com", "A", &format!("{here}:9953")]);
    assert!(!question.done() && question.text("rcode").is_empty(), "the host was answered: {question}");
    // A packet that is not dropped is answered at once: by a closed port of the sandbox's kernel, or by an echo.
    let refused = network.probe(&bench, &["tcp", &there, "22"]);
    assert!(refused.errno() != "ECONNREFUSED", "the sandbox answered: {refused}");
    assert!(network.probe(&bench, &["icmp", Network::ADDRESS]).done());
    for address in [&here, &there] {
        let seen = network.probe(&bench, &["icmp", address]);
        assert!(!seen.done(), "{address} answered: {seen}");
    }
    // The packet filter is there, and it is the run's own.
    assert!(network.made(&id).len() == 2, "{:?}", network.made(&id));
}

#[test]
fn links_and_walls_go_with_their_runs() {
    if !has_links() {
        return;
    }
    let network = Network::shared();
    for signal in ["TERM", "KILL"] {
        let (bench, mark) = (Bench::new(), Canary::draw());
        let (live, id) = linked(&bench).hold(&mark);
        assert!(network.made(&id).len() == 2, "{:?}", network.made(&id));
        live.signal(signal);
        let _ = live.wait();
        if signal == "KILL" {
            assert!(
                within(Backend::patience(3), || network.made(&format!("vh-{id}")).is_empty()),
                "the link outlived the sandbox"
            );
            assert!(linked(&bench).command(["true"]).code == 0);
        }
        let gone = || network.made(&id).is_empty();
        assert!(within(Backend::patience(3), gone), "after {signal}: {:?}", network.made(&id));
    }
    let bench = Bench::new();
    let ended = linked(&bench).shell("echo $LOCKGATE_RUN_ID");
    let id = ended.stdout.trim();
    assert!(ended.code == 0 && id.len() == 12, "{ended}");
    // The packet filter is gone with the run, the link when the kernel gets to it.
    assert!(network.made(&format!("lockgate-{id}")).is_empty(), "{:?}", network.made(id));
    assert!(within(Backend::patience(3), || network.made(id).is_empty()), "{:?}", network.made(id));
}

#[test]
fn fifty_at_once_have_addresses_of_their_own() {
    if !has_links() {
        return;
    }
    let (bench, mark) = (Bench::new(), Canary::draw());
    let network = Network::shared();
    let line =
        format!("touch up-$LOCKGATE_RUN_ID; exec '{}' hold 90 {}", bench.probe().display(), mark.text());
    let all: Vec<Live> = (0..50).map(|_| linked(&bench).start(["/bin/sh", "-c", &line])).collect();
    let up = || {
        files_under(&bench.workspace()).into_iter().filter(|path| path.to_string_lossy().starts_with("up-"))
    };
    assert!(within(Duration::from_secs(60), || up().count() == 50), "{} of 50 began", up().count());
    let listed = network.ask(&["ip", "-o", "-4", "addr"]).stdout;
    let addresses: Vec<&str> = listed
        .lines()
        .filter(|line| up().any(|path| line.contains(&path.to_string_lossy()[3..])))
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with("240.76.")))
        .collect();
    let different: BTreeSet<_> = addresses.iter().collect();
    assert_eq!((addresses.len(), different.len()), (50, 50), "{listed}");
    // A killed run leaves its group to the next start with the same state, and there is none.
    all.iter().for_each(|live| live.signal("TERM"));
    all.into_iter().for_each(|live| drop(live.wait()));
}

#[test]
fn a_host_that_routes_the_range_keeps_it() {
    if !has_links() {
        return;
    }
    // A separate network: the route must affect nobody else.
    let bench = Bench::new();
    let world = World::new(&bench);
    let command = |route: &str| {
        on_the_host(&bench, &world, &linked(&bench), &["true"], |run| format!("{route}; {run}"))
    };
    let whole = command("ip route add 240.76.0.0/16 via 192.168.77.1");
    assert!(whole.code == 125 && whole.stderr.contains("240.76.0.0/16"), "{whole}");
    // A default route in two halves is a default route.
    let pieces = command("ip route add 128.0.0.0/1 via 192.168.77.1");
    assert!(pieces.code == 0, "{pieces}");
}

#[test]
fn a_backend_without_links_refuses_by_name() {
    if !has_links() {
        return;
    }
    let bench = Bench::new();
    let ended = bench.run(Backend::Process).flags(["--wiring", "veth"]).command(["true"]);
    assert!(ended.code == 2, "{ended}");
    assert!(ended.stderr.contains("wiring `veth`") && ended.stderr.contains("--wiring redirect"), "{ended}");
}
