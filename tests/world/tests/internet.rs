//! The world is a network that real programs can use, and its records contain what they did. Each test has a control: a server that refuses
//! here is one that other clients reach.
#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use lockgate_world::{Record, World};
use serde_json::json;

fn curl(world: &World, arguments: &[&str]) -> Output {
    run(world.command("curl").args(["-sS", "--max-time", "10"]).args(arguments))
}

fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn requests(world: &World, server: &str) -> Vec<Record> {
    world.records_of(server).into_iter().filter(|record| record.event == "request").collect()
}

#[test]
fn https_is_verified_and_recorded_with_its_name() {
    let Some(world) = World::for_test() else { return };
    let output = curl(&world, &["-H", "X-Mark: one", "-d", "hello", "https://api.example.com/v1/a?b=c"]);
    assert!(output.status.success(), "{}", text(&output));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((said["path"].as_str(), said["body_length"].as_u64()), (Some("/v1/a?b=c"), Some(5)));

    let requests = requests(&world, "web");
    let [request] = requests.as_slice() else { panic!("{requests:?}") };
    assert_eq!((request.text("sni"), request.text("line")), ("api.example.com", "POST /v1/a?b=c HTTP/1.1"));
    assert_eq!((request.header("x-mark"), request.text("body")), (Some("one"), "hello"));
    assert!(
        request.peer.contains("192.168.77.2:") || request.peer.contains("[fd00:77::2]:"),
        "{}",
        request.peer
    );
    let queries = world.records_of("resolver");
    assert!(
        queries.iter().any(|query| query.text("name") == "api.example.com." && query.text("type") == "A")
    );
}

#[test]
fn both_families_reach_the_same_server() {
    let Some(world) = World::for_test() else { return };
    for (flag, local) in [("-4", "93.184.216.34:80"), ("-6", "[2606:2800:220:1::1]:80")] {
        assert!(curl(&world, &[flag, "http://files.example.com/"]).status.success());
        assert_eq!(requests(&world, "web").last().unwrap().local, local);
    }
}

#[test]
fn bad_certificates_are_bad() {
    let Some(world) = World::for_test() else { return };
    for name in ["badname", "expired", "selfsigned"] {
        let url = format!("https://{name}.example.com/");
        // 60: the peer's certificate cannot be trusted (curl(1), EXIT CODES).
        assert_eq!(curl(&world, &[&url]).status.code(), Some(60), "{name}");
        assert!(requests(&world, name).is_empty());
        assert!(curl(&world, &["-k", &url]).status.success(), "{name}");
        assert_eq!(requests(&world, name).len(), 1);
    }
}

#[test]
fn names_are_those_of_the_table() {
    let Some(world) = World::for_test() else { return };
    let output = curl(&world, &["https://nowhere.example.com/"]);
    assert_eq!(output.status.code(), Some(6), "{}", text(&output));
    let answer = world.records_of("resolver").pop().unwrap();
    assert_eq!((answer.text("name"), answer.text("code")), ("nowhere.example.com.", "NXDOMAIN"));

    world.resolve(&json!({ "nowhere.example.com": ["93.184.216.34"] })).unwrap();
    assert!(curl(&world, &["https://nowhere.example.com/"]).status.success());
    world.resolve(&json!({ "resolves_all": ["10.0.0.5"] })).unwrap();
    assert!(curl(&world, &["https://anything.at.all/"]).status.success());
    assert_eq!(requests(&world, "private").len(), 1);
}

#[test]
fn a_table_changes_under_a_running_world() {
    let Some(world) = World::for_test() else { return };
    world.resolve(&json!({})).unwrap();
    let script = "curl -s --max-time 5 http://late.example.com/; echo first $?; read line; \
                  curl -s --max-time 5 http://late.example.com/; echo second $?";
    let mut child = world
        .command("sh")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while world
        .records_of("resolver")
        .iter()
        .filter(|query| query.text("name") == "late.example.com.")
        .count()
        < 2
    {
        assert!(Instant::now() < deadline, "the first question was never asked");
        std::thread::sleep(Duration::from_millis(20));
    }
    world.resolve(&json!({ "late.example.com": ["93.184.216.34"] })).unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"\n").unwrap();
    let said = text(&child.wait_with_output().unwrap());
    assert!(said.starts_with("first 6\n") && said.ends_with("second 0\n"), "{said}");
}

#[test]
fn a_name_can_turn_private() {
    let Some(world) = World::for_test() else { return };
    let script = "curl -4sS http://rebind.example.com/ && curl -4sS http://rebind.example.com/";
    assert!(run(world.command("sh").args(["-c", script])).status.success());
    let locals: Vec<String> = world
        .records()
        .into_iter()
        .filter(|record| record.event == "request")
        .map(|record| record.local)
        .collect();
    assert_eq!(locals, ["93.184.216.34:80", "10.0.0.5:80"]);
}

#[test]
fn what_must_not_be_reached_can_be_reached_from_the_host() {
    let Some(world) = World::for_test() else { return };
    let targets = [
        ("http://169.254.169.254/latest/meta-data/", "metadata"),
        ("http://100.100.100.200/", "metadata"),
        ("http://[fd00:ec2::254]/", "metadata"),
        ("http://192.168.77.10/", "lan"),
        ("https://lan.example.com/", "lan"),
        ("http://private.example.com/", "private"),
        ("https://private.example.com/", "private"),
        ("http://v6private.example.com/", "private"),
        ("http://mapped.example.com/", "metadata"),
        ("http://127.0.0.1:8000/", "host-loopback"),
        ("http://[::1]:8000/", "host-loopback"),
        ("http://host.example.com:8001/", "host-any"),
        ("http://172.16.3.4:8080/", "anywhere"),
        ("http://[2001:db8::1]/", "anywhere"),
    ];
    let urls: Vec<&str> = targets.iter().map(|(url, _)| *url).collect();
    let output = curl(&world, &urls);
    assert!(output.status.success(), "{}", text(&output));
    let seen: Vec<String> = world
        .records()
        .into_iter()
        .filter(|record| record.event == "request")
        .map(|record| record.server)
        .collect();
    assert_eq!(seen, targets.map(|(_, server)| server));
}

#[test]
fn a_silent_address_and_an_unreachable_one() {
    let Some(world) = World::for_test() else { return };
    let silent = curl(&world, &["--connect-timeout", "1", "http://blackhole.example.com/"]);
    assert_eq!(silent.status.code(), Some(28), "{}", text(&silent));
    let unreachable = curl(&world, &["--connect-timeout", "5", "http://unreachable.example.com/"]);
    assert_eq!(unreachable.status.code(), Some(7), "{}", text(&unreachable));
}

#[test]
fn answers_of_every_shape() {
    let Some(world) = World::for_test() else { return };
    let base = "https://api.example.com";
    let said = |path: &str| text(&curl(&world, &[&format!("{base}{path}")]));
    assert_eq!(curl(&world, &[&format!("{base}/bytes/1000000")]).stdout.len(), 1_000_000);
    assert!(said("/slow?ms=300").contains("waited_ms\":300"));
    assert_eq!(said("/sse").matches("data: event").count(), 5);
    let followed =
        curl(&world, &["-L", &format!("{base}/redirect?to=https%3A%2F%2Fwww.example.org%2Fthere")]);
    assert!(text(&followed).contains("\"host\":\"www.example.org\""), "{}", text(&followed));
    assert_eq!(curl(&world, &["--max-time", "1", &format!("{base}/hang")]).status.code(), Some(28));
    assert_eq!(text(&curl(&world, &["-d", "canary", &format!("{base}/mirror")])), "canary");
}

#[test]
fn bytes_that_are_no_request_are_kept_as_they_came() {
    let Some(world) = World::for_test() else { return };
    let script = "printf 'GET / HTTP/1.1\\r\\nHost : x\\r\\n\\r\\nGET /two' | curl -s --max-time 1 telnet://93.184.216.34:80";
    run(world.command("sh").args(["-c", script]));
    let records = world.records_of("web");
    assert!(records.iter().any(|record| record.event == "malformed"), "{records:?}");
    let closed = records.iter().find(|record| record.event == "closed").unwrap();
    assert_eq!(closed.text("raw"), "GET / HTTP/1.1\r\nHost : x\r\n\r\nGET /two");
}

#[test]
fn servers_that_speak_first_and_servers_that_repeat() {
    let Some(world) = World::for_test() else { return };
    let script = "{ printf 'hey'; sleep 0.3; } | curl -s --max-time 1 telnet://echo.example.com:7777; \
                  { sleep 0.3; } | curl -s --max-time 1 telnet://smtp.example.com:2525";
    let said = text(&run(world.command("sh").args(["-c", script])));
    assert!(said.contains("hey") && said.contains("220 ready"), "{said}");
    assert_eq!(world.records_of("echo").len() + world.records_of("banner").len(), 2);
}
