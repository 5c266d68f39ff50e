//! What a proxy has to carry besides plain requests: HTTP/2, gRPC, WebSocket, events, interim answers, trailers; and a credential that is
//! returned in every form. The `h2` crate makes the HTTP/2 requests, curl and Node the rest.
#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::io::Read;
use std::process::{Command, Stdio};

use lockgate_needs::missing;
use lockgate_world::{Record, World};
use serde_json::{Value, json};

const VALUE: &str = "Bearer sk-canary-t4WnC8zXk2VqJ6mLr9SgD3yPb7HfA1eGu5oEi0Kx";
const BASE: &str = "https://protocols.example";

/// Returns curl's output: the answer's heads and its content, decoded only on request.
fn curl(world: &World, arguments: &[&str]) -> String {
    let mut command = world.command("curl");
    command.args(["-sS", "-i", "--max-time", "10"]).args(arguments).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout.into_iter().map(char::from).collect()
}

fn http2(world: &World, request: &Value) -> Value {
    let mut request = request.clone();
    request["host"] = "protocols.example".into();
    let mut command = world.command(env!("CARGO_BIN_EXE_h2-client"));
    command.args(["93.184.216.34:443", &request.to_string()]).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn content(answer: &Value) -> String {
    answer["data"].as_array().unwrap().iter().filter_map(Value::as_str).collect()
}

fn events(world: &World, event: &str) -> Vec<Record> {
    world.records_of("web").into_iter().filter(|record| record.event == event).collect()
}

#[test]
fn both_versions_are_offered_and_say_the_same() {
    let Some(world) = World::for_test() else { return };
    let answer = http2(
        &world,
        &json!({
            "method": "POST",
            "path": "/echo?a=b",
            "headers": { "x-mark": "two" },
            "data": ["hello"],
            "trailers": { "x-end": "last" },
        }),
    );
    let said: Value = serde_json::from_str(&content(&answer)).unwrap();
    assert_eq!((&answer["alpn"], &answer["status"]), (&json!("h2"), &json!(200)));
    assert_eq!(
        (&said["method"], &said["body"], &said["headers"]["x-mark"]),
        (&json!("POST"), &json!("hello"), &json!("two"))
    );

    let one = curl(&world, &["--http1.1", "-H", "X-Mark: one", "-d", "hello", &format!("{BASE}/echo?a=b")]);
    assert!(one.starts_with("HTTP/1.1 200 OK\r\n") && one.contains("\"body\":\"hello\""), "{one}");

    let requests = events(&world, "request");
    let lines: Vec<&str> = requests.iter().map(|request| request.text("line")).collect();
    assert_eq!(lines, ["POST /echo?a=b HTTP/2.0", "POST /echo?a=b HTTP/1.1"]);
    for (request, mark) in requests.iter().zip(["two", "one"]) {
        assert_eq!((request.text("method"), request.text("path")), ("POST", "/echo?a=b"));
        assert_eq!((request.text("host"), request.text("sni")), ("protocols.example", "protocols.example"));
        assert_eq!((request.header("x-mark"), request.text("body")), (Some(mark), "hello"));
    }
    assert_eq!(requests[0].detail["trailers"], json!([["x-end", "last"]]));
    let closed = events(&world, "closed");
    assert!(closed[0].text("raw").starts_with("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "{closed:?}");
}

#[test]
fn a_credential_comes_back_in_every_form() {
    let Some(world) = World::for_test() else { return };
    let base64 = "QmVhcmVyIHNrLWNhbmFyeS10NFduQzh6WGsyVnFKNm1McjlTZ0QzeVBiN0hmQTFlR3U1b0VpMEt4";
    let escaped = |form: &dyn Fn(u8) -> String| VALUE.bytes().map(form).collect::<String>();
    let forms = [
        ("plain", VALUE.to_owned()),
        ("base64", base64.to_owned()),
        ("hex", escaped(&|octet| format!("{octet:02x}"))),
        ("percent", escaped(&|octet| format!("%{octet:02X}"))),
        ("json", escaped(&|octet| format!("\\u{octet:04x}"))),
        ("chunks1", VALUE.to_owned()),
        ("slow&ms=1", VALUE.to_owned()),
        ("header", format!("x-authorization: {VALUE}\r\n")),
        ("www-authenticate", format!("error_description=\"{VALUE}\"\r\n")),
        ("set-cookie", format!("set-cookie: authorization=\"{VALUE}\";")),
        ("location", format!("location: /echo?authorization={}\r\n", VALUE.replace(' ', "%20"))),
        ("early-hints", format!("103 \r\nx-authorization: {VALUE}\r\n")),
        ("trailer", format!("x-authorization: {VALUE}\r\n")),
    ];
    let credential = format!("Authorization: {VALUE}");
    for (form, expected) in &forms {
        for version in ["--http1.1", "--http2"] {
            let url = format!("{BASE}/echo-auth?as={form}");
            let said = curl(&world, &[version, "-H", &credential, &url]).replace("103 Early Hints", "103 ");
            assert!(said.contains(expected.as_str()), "{version} {form}: {said}");
        }
    }
    for coding in ["gzip", "deflate", "br"] {
        let url = format!("{BASE}/echo-auth?as={coding}&status=500");
        let coded = curl(&world, &["-H", &credential, &url]);
        assert!(
            coded.contains(&format!("content-encoding: {coding}")) && !coded.contains("canary"),
            "{coded}"
        );
        let plain = curl(&world, &["--compressed", "-H", &credential, &url]);
        assert!(plain.starts_with("HTTP/2 500") && plain.contains(VALUE), "{plain}");
    }
}

#[test]
fn one_octet_a_chunk_is_one_octet_a_chunk() {
    let Some(world) = World::for_test() else { return };
    let url = format!("{BASE}/echo-auth?as=chunks1");
    let raw = curl(&world, &["--http1.1", "--raw", "-H", "Authorization: ab", &url]);
    assert!(raw.ends_with("\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n"), "{raw:?}");
    let answer =
        http2(&world, &json!({ "path": "/echo-auth?as=trailer", "headers": { "authorization": "ab" } }));
    assert_eq!(answer["trailers"], json!({ "x-authorization": "ab" }));
}

#[test]
fn shapes_are_the_same_over_both_versions() {
    let Some(world) = World::for_test() else { return };
    for (version, protocol) in [("--http1.1", "HTTP/1.1"), ("--http2", "HTTP/2")] {
        let get = |path: &str| curl(&world, &[version, &format!("{BASE}{path}")]);
        assert!(get("/status?code=401").starts_with(&format!("{protocol} 401")));
        assert!(get("/status?code=204").starts_with(&format!("{protocol} 204")));
        let redirect = get("/redirect?to=https%3A%2F%2Fapi.example.com%2F&status=307");
        assert!(redirect.starts_with(&format!("{protocol} 307")), "{redirect}");
        assert!(redirect.contains("location: https://api.example.com/\r\n"), "{redirect}");
        assert_eq!(get("/events?n=7&ms=1").matches("data: event").count(), 7);
        assert!(get("/slow?ms=50").contains("waited_ms\":50"));
        let big = get("/big?bytes=3000000");
        assert_eq!(big.split_once("\r\n\r\n").unwrap().1.len(), 3_000_000);
        assert!(get("/continue").starts_with(&format!("{protocol} 100")));
        let hints = get("/early-hints");
        assert!(
            hints.starts_with(&format!("{protocol} 103")) && hints.contains("link: </style.css>"),
            "{hints}"
        );
        assert!(hints.contains(&format!("\r\n\r\n{protocol} 200")), "{hints}");
        let mut stalled = world.command("curl");
        stalled.args(["-sS", version, "--max-time", "1", &format!("{BASE}/stall")]).stderr(Stdio::null());
        assert_eq!(stalled.status().unwrap().code(), Some(28));
    }
}

#[test]
fn interim_answers_come_over_http2() {
    let Some(world) = World::for_test() else { return };
    let answer = http2(&world, &json!({ "path": "/early-hints" }));
    assert_eq!((&answer["interim"][0]["status"], &answer["status"]), (&json!(103), &json!(200)));
    let answer = http2(&world, &json!({ "path": "/continue", "method": "POST", "data": ["x"] }));
    assert_eq!(answer["interim"][0]["status"], 100);
}

#[test]
fn a_grpc_call_is_answered_message_by_message() {
    let Some(world) = World::for_test() else { return };
    let message = |text: &str| format!("\0\0\0\0{}{text}", char::from(u8::try_from(text.len()).unwrap()));
    // Each frame waits for an answer to the one before; the last message is split over two of them.
    let two = message("second");
    let data = [message("first"), format!("{}{}", message("x"), &two[..3]), two[3..].to_owned()];
    let headers = json!({ "content-type": "application/grpc", "te": "trailers" });
    let call = json!({ "method": "POST", "path": "/pkg.Service/Echo", "headers": headers, "data": data });
    let answer = http2(&world, &call);
    assert_eq!(content(&answer), data.concat());
    assert_eq!(
        (&answer["headers"]["content-type"], &answer["trailers"]),
        (&json!("application/grpc"), &json!({ "grpc-status": "0" }))
    );
    let request = events(&world, "request").pop().unwrap();
    assert_eq!((request.text("path"), request.text("body")), ("/pkg.Service/Echo", data.concat().as_str()));
}

/// Connects as Node's own client does, sends a text and some octets, and prints each answer as a line of JSON.
const NODE: &str = "const socket = new WebSocket(process.argv[1], { headers: { authorization: process.argv[2] } });
socket.binaryType = 'arraybuffer'; let left = +process.argv[3];
socket.onopen = () => { socket.send('caf\\u00e9'); socket.send(new Uint8Array(70000).fill(7)); };
socket.onmessage = ({ data }) => {
  console.log(JSON.stringify(typeof data === 'string' ? data : new Uint8Array(data).reduce((a, b) => a + b, 0)));
  if (--left === 0) socket.close(1000);
};
socket.onerror = (e) => { console.error(e.message || e.error); process.exit(3); };";

#[test]
fn a_websocket_repeats_what_it_is_sent() {
    let Some(world) = World::for_test() else { return };
    let node = Command::new("node").args(["--experimental-websocket", "-e", "new WebSocket"]).output();
    if !node.is_ok_and(|output| String::from_utf8_lossy(&output.stderr).contains("TypeError")) {
        missing("no Node with a WebSocket client");
        return;
    }
    let talk = |path: &str, answers: &str| {
        let mut command = world.command("node");
        let authority = world.ca_directory().join("ca.pem");
        command.args(["--experimental-websocket", "--no-warnings", "-e", NODE]);
        command.args([&format!("wss://protocols.example{path}"), VALUE, answers]);
        command.env("NODE_EXTRA_CA_CERTS", authority).stdin(Stdio::null());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(talk("/ws", "2"), "\"caf\u{e9}\"\n490000\n");
    assert_eq!(talk("/ws/echo-auth", "3"), format!("\"{VALUE}\"\n\"caf\u{e9}\"\n490000\n"));
    let frames = events(&world, "frame");
    let kinds: Vec<u64> = frames.iter().filter_map(|frame| frame.detail["kind"].as_u64()).collect();
    assert_eq!(kinds, [1, 2, 8, 1, 2, 8]);
    assert_eq!((frames[0].text("data"), &frames[1].detail["length"]), ("caf\u{c3}\u{a9}", &json!(70000)));
    let refused = curl(&world, &["--http1.1", &format!("{BASE}/ws")]);
    assert!(refused.starts_with("HTTP/1.1 426") && refused.contains("upgrade: websocket"), "{refused}");
}

#[test]
fn events_arrive_one_by_one() {
    let Some(world) = World::for_test() else { return };
    let mut command = world.command("curl");
    command.args(["-sS", "-N", "--max-time", "10", &format!("{BASE}/events?n=2&ms=600")]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut first, mut buffer) = (String::new(), [0; 512]);
    let mut stdout = child.stdout.take().unwrap();
    while !first.contains("event 1\n\n") {
        let length = stdout.read(&mut buffer).unwrap();
        assert!(length > 0, "{first}");
        first += &String::from_utf8_lossy(&buffer[..length]);
    }
    assert!(!first.contains("event 2"), "{first}");
    assert!(child.wait().unwrap().success());
}
